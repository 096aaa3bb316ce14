"""Metrics that `evaluate` makes of private counts of held-out records."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from fedsim.common.serialise import finite
from fedsim.report.outcome import Outcome
from fedsim.report.record import grouped
from fedsim.report.section import Section
from fedsim.report.summary import Part
from fedsim.scenario.metric import BY_GROUP, METRICS


class Evaluated(NamedTuple):
    """A metric of a final model by `evaluate`, the standard error of its noise, and what it estimates."""

    trial: int
    metric: str
    value: float
    standard_error: float
    reason: str | None
    binning: float
    too_few: bool
    exact: float | None = None


class Estimated(Part):
    """A metric of private counts of held-out records: means over trials; `reason`: why it is unknown.
    `exact`, of the same weighing, is known in simulation only. Bins move `value` by `binning` at most.
    """

    metric: str
    weighing: str
    value: float | None
    standard_error: float | None
    binning: float = 0.0
    too_few: bool
    exact: float | None
    reason: str | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """In which a number from 0 lies, for 95 % of the noise that one trial may have; None if unknown."""
        if self.value is None or self.standard_error is None:
            return None
        return max(0.0, self.value - 1.96 * self.standard_error), self.value + 1.96 * self.standard_error


def _summarise(outcome: Outcome) -> list[Estimated]:
    return [
        Estimated(
            metric=name,
            weighing=outcome.resolved.scenario.privacy.unit.weighing,
            value=finite(fmean(row.value for row in rows)),
            standard_error=finite(fmean(row.standard_error for row in rows)),
            binning=fmean(row.binning for row in rows),
            too_few=any(row.too_few for row in rows),
            exact=None if any(row.exact is None for row in rows) else fmean(row.exact or 0 for row in rows),
            **next(({"reason": row.reason} for row in rows if row.reason), {}),
        )
        for name, rows in grouped(outcome.results.rows(Evaluated), lambda row: row.metric).items()
    ]


def _line(one: Estimated) -> str:
    title = METRICS[one.metric].title if one.metric in METRICS else one.metric.replace("_", " ")
    title += " among those held out" if one.metric in BY_GROUP else ""
    exact = "" if one.exact is None else f"; exact, in simulation only: {one.exact:.3f}"
    exact += f"; weighing: {one.weighing}"
    if one.too_few or one.interval is None:
        return f"evaluation, {title}: {one.reason or 'too few to say'}{exact}"
    low, high = one.interval
    bins = f", bins move it by {one.binning:.3f} at most" if one.binning >= 0.0005 else ""
    error = f"standard error {one.standard_error:.3f}{bins}"
    if one.metric in BY_GROUP:
        error = f"95 % interval by the noise {low:.3f} to {high:.3f}"
    return f"evaluation, {title}: {one.value:.3f}, {error}{exact}"


def _apart(part: list[Estimated]) -> list[str]:
    """A sentence where mean predicted probability and observed share differ by more than a tenth of it,
    beyond what noise (95 % of it) and bins may do.
    """
    found = {one.metric: one for one in part if one.interval is not None}
    said, seen = found.get("mean_predicted_probability"), found.get("observed_share")
    if said is None or seen is None:
        return []
    mean, share = said.value or 0.0, seen.value or 0.0
    unsure = said.binning + 1.96 * ((said.standard_error or 0.0) + (seen.standard_error or 0.0))
    if abs(mean - share) - unsure <= 0.1 * share:
        return []
    told = f"evaluation: predicted probabilities are too {'high' if mean > share else 'low'}, of class 1"
    means = f"{mean:.3f} on average, and the observed share is {share:.3f}"
    return [f"{told} {means}: do not read one as a risk"]


EVALUATION = Section(
    "evaluation",
    Evaluated,
    part=list[Estimated],
    summarise=_summarise,
    lines=lambda part, _run: [*map(_line, part), *_apart(part)],
)
