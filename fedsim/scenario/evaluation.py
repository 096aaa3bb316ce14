"""The evaluation of a run's final model on records that did not train it: a run of its own, of one round.

**Guarantee.** Silo i's records are divided into those that train and those that are held out. For every i,
all that the silo releases, in training and in the evaluation, is (eps, delta_i)-DP for replacing one of its
records, with both sizes fixed and public, for any behaviour of the server and the other silos, and, as of
every division (`fedsim.protocol.division`),

    eps = max(epsilon of training, epsilon of the evaluation) <= eps_i.

Each part has its own gate (`silos.vault.gate`), which holds no record of the other, and its own noise
(`fedsim.simulation.run_digest`). That of the held-out records answers once a run: a `score_histogram`, a
`joint`, or both, which are then priced as one composition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedsim.algorithms.registry import EVALUATION
from fedsim.algorithms.section import section_of
from fedsim.privacy.calibrate import Budget
from fedsim.problems.minimise import without_public
from fedsim.protocol.plan import Admitted
from fedsim.protocol.unit import Person, Rule
from fedsim.scenario.privacy import alike
from fedsim.scenario.resolved import Resolved


def evaluation_of(resolved: Resolved) -> Resolved:
    """A run's evaluation as a run, of all silos; n_i and weights are those of the held-out records.

    Noise is calibrated to each silo's budget, whatever set that of training. In sums it is calibrated to the
    smallest: a record counts once or not at all, so that no silo can take a smaller clip instead.
    """
    scenario, outline = resolved.scenario, resolved.outline
    assert scenario.evaluate is not None
    sizes = tuple(outline.held_out[name] for name in resolved.names)
    report = scenario.report.model_copy(update={"clipping": False})
    privacy, unit = scenario.privacy, scenario.privacy.unit
    if isinstance(unit, Person) and isinstance(unit.h, Rule):  # counts take a person's mean at any bound
        privacy = privacy.model_copy(update={"unit": replace(unit, bound="mean", h=None)})
    asked: dict[str, object] = {"name": EVALUATION, "bins": scenario.evaluate.asked_bins}
    if scenario.evaluate.by_group:
        asked |= {"groups": len(outline.groups), "classes": outline.num_classes}
        asked |= {"threshold": scenario.report.threshold}
    section = section_of(EVALUATION).model_validate(asked)
    parts = {"privacy": privacy, "evaluate": None, "report": report, "algorithm": section}
    budgets = tuple(map(Budget, sizes, resolved.epsilons, resolved.deltas))
    weights = tuple(n / sum(sizes) for n in sizes)
    return replace(
        resolved,
        scenario=scenario.model_copy(update=parts),
        outline=replace(outline, sizes=dict(zip(resolved.names, sizes, strict=True))),
        algorithm=section.build(),
        problem=without_public(resolved.problem),
        budgets=budgets if resolved.sums is None else alike(budgets),
        premises=replace(resolved.premises, weights=weights, participants=None),
        prescribed=None,
        stages=(),
    )


def cell_noise(evaluation: Resolved, admitted: Sequence[Admitted]) -> float:
    """Standard deviation of the noise on a cell of the silos' added counts; as `sum_noise`."""
    sums = evaluation.sums
    return (math.sqrt(2) if sums is None else sums.mechanism.reach(1.0)) * sum_noise(evaluation, admitted)


def sum_noise(resolved: Resolved, admitted: Sequence[Admitted]) -> float:
    """Standard deviation, over spread x clip x noise ratio, of the noise on the silos' added sums, all of
    which are in them and weigh by size.

    `admitted`: the silos of the run, in canonical order.
    """
    if resolved.sums is None:
        return math.hypot(*(silo.noise_multiplier for silo in admitted))
    mechanism, common = resolved.sums.mechanism, admitted[0].terms.noise_multiplier
    assert common is not None
    return common * math.sqrt(mechanism.variance(len(admitted)))
