"""What an evaluation reports: metrics of its noisy tables."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedsim.algorithms.evaluation import Evaluation
from fedsim.measure.from_histogram import Estimate, metrics
from fedsim.measure.from_joint import gaps
from fedsim.protocol.plan import Admitted
from fedsim.scenario.evaluation import cell_noise
from fedsim.scenario.resolve import Resolved


def estimates(
    evaluation: Resolved, admitted: Sequence[Admitted], shares: Tensor, records: int
) -> dict[str, Estimate]:
    """Metrics by name.

    Args:
        evaluation: as `evaluation_of` makes it.
        admitted: the silos that answered.
        shares: the answer, as shares of their `records`.
    """
    asked, noise = evaluation.algorithm, cell_noise(evaluation, admitted)
    assert isinstance(asked, Evaluation)
    counts, found = (shares.double() * records).numpy(), {}
    if split := 2 * asked.bins:
        of_scores = metrics(counts[:split], noise, records)
        found = {name: of_scores[name] for name in ("accuracy", "auc", "brier", "calibration_error")}
    return found | (gaps(counts[split:], noise, evaluation.outline.groups) if asked.groups else {})
