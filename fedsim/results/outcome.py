"""What a run produces, on every runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedsim.data.recipe import Fitted
from fedsim.protocol.links import Variant
from fedsim.protocol.terms import Admitted, Statement
from fedsim.scenario.metric import METRICS, BaselineName
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved


class Measurement(NamedTuple):
    """The model after `round` rounds, on the pooled test records of all silos.

    `seconds` is what the rounds so far took, without the measuring between them.
    `more` has the other metrics (`fedsim.scenario.metric`): after the last round all of them.
    `excess_risk` is F(w) - F(w*), and `gradient_mapping_sq` |G_eta(w)|^2, of the training objective; None
    where they are not measured or do not exist (`fedsim.measure.objective`). Among `Results` an error or loss
    that is not a number is None; an observer is told what was found.
    """

    trial: int
    variant: Variant
    round: int
    error: float | None
    loss: float | None
    participants: int
    seconds: float
    excess_risk: float | None = None
    gradient_mapping_sq: float | None = None
    more: Mapping[str, float | None] = {}


class SiloMeasurement(NamedTuple):
    """A trial's final model on one silo's own test records; None where they do not define the number.

    Of other metrics `more` has the one that the scenario chose.
    """

    trial: int
    variant: Variant
    silo: str
    error: float | None
    loss: float | None
    test_records: int
    more: Mapping[str, float | None] = {}


class CalibrationBin(NamedTuple):
    """Test records to which a trial's final model gives probabilities in one of ten equal parts of [0, 1].

    `predicted` is their mean, `observed` the share of records of which it was so.
    """

    trial: int
    variant: Variant
    bin: int
    records: int
    predicted: float
    observed: float


class BaselineMeasurement(NamedTuple):
    """What could be had without the federation, on the pooled test records of one trial; not private.

    `method` says how it was fitted, or why it was not; the numbers are None then.
    """

    trial: int
    baseline: BaselineName
    silo: str | None
    train_records: int
    method: str
    error: float | None
    loss: float | None
    more: Mapping[str, float | None] = {}


class HasMetrics(Protocol):
    """A row of any table of metrics; `error`, `loss` and what its table adds are fields of its own."""

    @property
    def more(self) -> Mapping[str, float | None]:
        """The other metrics."""
        ...


def value(row: HasMetrics, name: str) -> float | None:
    """A metric of a row; None where it was not measured.

    >>> value(SiloMeasurement(0, "private", "a", 0.5, 0.7, 9, {"auc": 0.75}), "auc")
    0.75
    """
    own: float | None = getattr(row, name, None)
    return row.more.get(name) if own is None else own


def said(row: HasMetrics, metric: str) -> str:
    """`test error 0.1234`."""
    number = value(row, metric)
    return f"{METRICS[metric].title} {'not defined' if number is None else f'{number:.4f}'}"


class ClippedRound(NamedTuple):
    """What the clip took away in one round: how many terms, the share of them that it shortened, and the
    median of their norms over the clip.
    """

    trial: int
    round: int
    terms: int
    clipped: float
    median_norm: float


@dataclass(frozen=True)
class TrialResult:
    """One finished trial: its final model per variant, and what each silo states about the run.

    `silos`, `calibration` and `baselines` are measured on test records, `clipping` on training records, so
    they exist in simulation only; `objective` says how the excess risk was measured, on training records;
    `warnings` say what is odd about the records it read; `fitted` prepares others as those were, and is None
    where only the silos know how.
    """

    trial: int
    models: dict[Variant, Tensor]
    statements: list[Statement]
    silos: list[SiloMeasurement] = field(default_factory=list)
    objective: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    clipping: list[ClippedRound] = field(default_factory=list)
    fitted: Fitted | None = None
    calibration: list[CalibrationBin] = field(default_factory=list)
    baselines: list[BaselineMeasurement] = field(default_factory=list)


@dataclass
class Results:
    """Filled as a run goes on, so that an interrupted run loses nothing that was measured.

    `keep` is told every trial that ends, with what was measured in it.
    """

    measurements: list[Measurement] = field(default_factory=list)
    trials: dict[int, TrialResult] = field(default_factory=dict)
    keep: Callable[[TrialResult, list[Measurement]], None] = lambda result, measurements: None

    def add(self, measurement: Measurement) -> None:
        """Add a measurement; a number that is none, such as an error over no spread, is None from here on."""
        self.measurements.append(Measurement(*map(_defined, measurement)))

    def finish(self, result: TrialResult) -> None:
        """Add a trial that has ended."""
        self.trials[result.trial] = result
        self.keep(result, [each for each in self.measurements if each.trial == result.trial])

    def left(self, trials: int) -> list[int]:
        """The trials that have not ended, of so many."""
        return [trial for trial in range(trials) if trial not in self.trials]


def _defined(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _defined(each) for key, each in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


Observer = Callable[[Measurement], None]


@dataclass(frozen=True)
class Deployed:
    """What a deployed run has beside a simulated one's results.

    Args:
        notices: the silos' own lines for the report, each with the silo's name.
        accountants: how the silos priced the plan.
        min_silos: answers that a round needed, where so many were asked.
        answered: how many silos' answers every round counted.
        left_out: for each silo that was, the number of rounds and the reasons.
        unstated: silos that gave no statement at the end, and why; their rounds are those that were asked.
        receipts: signed statements, JSON.
        identities: every silo's public key as its server knew it, hexadecimal.
        measured: whether there were public test records.
        remarks: lines on what was left out or is odd.
        unmeasured: what only a simulation can know, by name.
    """

    notices: tuple[str, ...]
    accountants: tuple[str, ...]
    min_silos: int
    answered: Sequence[int]
    left_out: Mapping[str, tuple[int, tuple[str, ...]]]
    unstated: Mapping[str, str]
    receipts: Mapping[str, str]
    identities: Mapping[str, str]
    measured: bool
    remarks: tuple[str, ...]
    unmeasured: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """A run and how it ended."""

    resolved: Resolved
    results: Results
    wall_seconds: float
    interrupted: bool = False
    heterogeneity: dict[str, Any] | None = None
    admitted: Sequence[Admitted] = ()
    """What silos accepted before round 0, of all trials whose participation differs."""
    deployed: Deployed | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the scenario's files as the run began; see `fedsim.scenario.files`."""

    @property
    def main(self) -> Variant:
        """The variant that the scenario asked for."""
        return variants(self.resolved)[0]


def variants(resolved: Resolved) -> list[Variant]:
    """The run itself, and its non-private twin where asked for."""
    scenario = resolved.scenario
    if not resolved.mechanism.private:
        return ["nonprivate"]
    return ["private", "nonprivate"] if scenario.report.nonprivate_twin else ["private"]


def measures_objective(scenario: Scenario) -> bool:
    """Whether the excess risk is measured: as the scenario says, else where a data set knows its optimum."""
    asked = scenario.report.excess_risk
    return scenario.data.knows_optimum if asked is None else asked
