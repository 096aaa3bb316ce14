"""A scenario: one YAML file with everything that a run depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.choice import Shorthand
from fedsim.common.errors import InputError
from fedsim.common.registry import Later
from fedsim.common.section import Section
from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.dataset import Elsewhere
from fedsim.data.registry import DataConfig, PartitionConfig
from fedsim.privacy.registry import MECHANISMS, check_serves
from fedsim.problems.section import ProblemSection
from fedsim.scenario.algorithm import AlgorithmConfig
from fedsim.scenario.metric import MetricName
from fedsim.scenario.participation import AllSilos, Participation
from fedsim.scenario.privacy import PrivacySection
from fedsim.theory.symbols import Constants

if TYPE_CHECKING:
    from fedsim.algorithms.prepared import Stage
else:
    Stage = Annotated[Any, Later("fedsim.algorithms.prepared:Stage")]


class RuntimeSection(Section):
    """How and where a run is executed."""

    name: Literal["ray", "inprocess"] = Field("ray", description="ray: trials in parallel processes")
    silo_hosts: int = Field(
        0, ge=0, description="ray: processes that hold a trial's silos; 0 keeps them in the trial's own"
    )
    address: str | None = Field(None, description="ray: an existing cluster instead of a local one")
    plug_ins: Literal["in_process", "isolated"] = Field(
        "in_process",
        description="where code that fedsim does not ship runs; isolated: in a confined process without "
        "records, as in a deployed silo",
    )
    dtype: Literal["float64", "float32"] = Field("float64", description="type of parameters and features")
    shuffler: Literal["total", "shares", "envelopes"] = Field(
        "total",
        description="secure aggregation: how much of the protocol runs; total: contributions are added at "
        "once; shares, envelopes: by the real shuffler, under ray in an actor of its own",
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu",
        description="cuda: in simulation, in one process, networks' gradients are made and clipped on a GPU",
    )
    noise: Literal["silos", "aggregate"] = Field(
        "silos",
        description="aggregate: in simulation, that of the silos' weighted sum is drawn at once; the "
        "model has the same law, and no silo's message a guarantee",
    )

    def check(self) -> None:
        """InputError on a field of another runtime."""
        for field in ("address", "silo_hosts"):
            if self.name != "ray" and (value := dict(self)[field]):
                raise InputError(f"scenario.runtime.{field}", value, "needs runtime ray, not inprocess")
        self.on_host("runtime inprocess", self.name == "inprocess")

    def on_host(self, what: str, fits: bool = False) -> None:
        """InputError where gradients are made on a device, which is for `what` alone, and it does not fit."""
        if self.device != "cpu" and not fits:
            raise InputError("scenario.runtime.device", self.device, f"cpu: {self.device} is for {what}")


class ReportSection(Section):
    """What is measured during a run, in simulation only."""

    evaluate_every: int = Field(1, ge=1, description="rounds between two evaluations on the test records")
    metric: MetricName = Field(
        "error",
        description="what is plotted, tuned and compared; all others are measured after the last round",
    )
    against: MetricName | None = Field(
        None,
        description="a second metric, such as parity_gap: a sweep draws the metric against it, a line for "
        "each epsilon, along the first other number that is varied",
    )
    threshold: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="probability above which class 1 of two is predicted, for balanced_accuracy, "
        "sensitivity, specificity and between groups",
    )
    baselines: bool = Field(
        True,
        description="also measure the majority class or mean, silos alone, and all training records pooled, "
        "without privacy",
    )
    nonprivate_baseline: bool = Field(
        True, description="also run with neither clipping nor noise, to compare"
    )
    clipping: bool = Field(True, description="count the terms that the clip shortens, round by round")
    heterogeneity: bool = Field(
        False, description="measure upsilon_*^2 and phi^2 at the optimum of the training records"
    )
    excess_risk: bool | None = Field(
        None,
        description="measure F(w) - F(w*) and the squared gradient mapping on the training records; default: "
        "where the data set's optimum is known (synthetic)",
    )
    own_models: bool = Field(
        False,
        description="also test silos' own models on their own records, beside one model and each silo alone",
    )
    at_home: bool = Field(
        False,
        description="also test, on each silo's own records, a model that it makes at home of the run's and "
        "its own records; not private: it stays there",
    )
    trackers: tuple[str, ...] = Field(
        (), description="installed trackers (entry points of fedsim.trackers) that follow the run"
    )


class EvaluateSection(Section):
    """After training, private counts of each silo's held-out records, once."""

    bins: int | None = Field(
        None,
        ge=2,
        le=2048,
        multiple_of=2,
        description="of the predicted probability of class 1; even; default: 10, or none with by_group",
    )
    by_group: bool = Field(False, description="gaps between groups of data.attribute, at report.threshold")

    @property
    def asked_bins(self) -> int:
        """Bins of the histogram; 0 for none."""
        return self.bins or (0 if self.by_group else 10)


Grid = dict[str, list[Any]]
Criterion = Literal["final_train_loss", "final_metric", "private_error", "private_metric"]


class PrivateSection(Section):
    """Choose within each silo's budget, on records that it puts aside for nothing else."""

    fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="part of each silo's records that is put aside: half of it trains candidates, half "
        "scores them, and reported runs use the rest",
    )
    metric: Literal["error", "log_loss", "brier", "auc"] = Field(
        "error", description="what silos score candidates by, on their own records; log_loss and auc as below"
    )
    bins: int = Field(
        10, ge=2, le=1000, description="auc: equal bins of predicted probabilities; each has noise of its own"
    )
    bound: float = Field(
        0.01, gt=0, lt=0.5, description="log_loss: probabilities are held to [bound, 1 - bound]"
    )


class TuneSection(Section):
    """Fields that are chosen, not reported: for each combination the values with the best criterion."""

    grid: Grid = Field(
        {},
        description="dotted field to candidate values; every combination of them is tried, with every "
        "candidate that a value of the sweep's own grid brings along",
    )
    criterion: Criterion | None = Field(
        None,
        description="what is best for the chosen values, as a mean over repetitions. final_train_loss: the "
        "final model's loss on all silos' training records (weighted by p_i, without the regulariser); "
        "final_metric: report.metric on the test records; neither is private. With private, private_error: "
        "silos' noisy shares of misclassified records; private_metric: private.metric by noisy scores. "
        "Default: with private the latter, or for error the former; else final_metric where report.metric is "
        "not error, else final_train_loss",
    )
    repetitions: int = Field(3, ge=1, description="runs of each candidate, on trials that are not reported")
    private: PrivateSection | None = Field(
        None,
        description="each silo may spend its (epsilon_i, delta_i) once more, on records put aside, for all "
        "runs of all candidates together; no record is in both, so the total is the larger of the two",
    )


def with_criterion(tune: TuneSection, metric: object) -> TuneSection:
    """Fill in the default criterion, for a scenario with this `report.metric`."""
    by_metric: Criterion = "final_train_loss" if metric in (None, "error") else "final_metric"
    if tune.private:
        by_metric = "private_error" if tune.private.metric == "error" else "private_metric"
    return tune.model_copy(update={"criterion": tune.criterion or by_metric})


class Choices(Section):
    """Candidates in a value that is a whole section, beside its fields."""

    tune: Grid = Field({}, description="field of the section to candidate values")
    one_of: list[dict[str, Any]] = Field(
        [], description="alternatives: fields over the section's own, each with `label` and `tune` if need be"
    )


class SweepSection(Section):
    """`fedsim sweep` runs every combination of grid and cells, each with the scenario's trials.

    A value may be a whole section, such as an `algorithm`; a key `label` in it names it in the report, and
    `tune` and `one_of` are candidates of its own (`Choices`), of which the best is reported.
    """

    grid: Grid = Field(
        {}, description="dotted field to values, e.g. privacy.epsilon: [1, 2]; all combinations"
    )
    cells: list[dict[str, Any]] = Field(
        [], description="a list of settings {dotted field: value}; combined with each point of the grid"
    )
    tune: TuneSection | None = Field(None, description="fields to choose for each combination")


class Scenario(Section):
    """Everything a run depends on."""

    name: str = Field(description="title of the run", min_length=1)
    description: str = Field("", description="what it shows")
    purpose: str | None = Field(
        None, description="of a deployed run, what it is for: the silos' operators read it with the name"
    )
    variant: str | None = Field(None, description="which of `variants` this is")
    variants: dict[str, dict[str, Any]] | None = Field(
        None, description="of a file: {name: {dotted field: value}}; those of `variant` are set over the rest"
    )
    seed: int = Field(
        0,
        ge=0,
        description="seed of partition, splits, participation and simulated noise; a simulated run or sweep "
        "without one draws it",
    )
    nonce: str | None = Field(
        None,
        pattern="^[0-9a-f]{32}$",
        description="128 random bits that key the noise too, drawn by a run with objects or code not of "
        "fedsim; the same nonce with other code shares noise, and guarantees do not add up",
    )
    trials: int = Field(1, ge=1, description="repetitions, each with a fresh split and fresh noise")
    data: Annotated[DataConfig, Shorthand()] = Field(
        Elsewhere(), description="the records; `fedsim deploy` does without: its silos have their own"
    )
    public: Annotated[DataConfig, Shorthand()] | None = Field(
        None, description="records that need no protection, of the same columns; all of them are used"
    )
    partition: Annotated[PartitionConfig, Shorthand()] = Field(
        NaturalIdPartition(), description="who holds which record; not asked for without `data`"
    )
    prepare: tuple[Stage, ...] = Field((), description="private stages before training that map the features")
    problem: Annotated[ProblemSection, Shorthand()] = Field(description="what is minimised")
    algorithm: Annotated[AlgorithmConfig, Shorthand()] = Field(
        description="how; auto: as public numbers choose"
    )
    privacy: PrivacySection = Field(description="what each silo allows")
    assumptions: Constants = Field(
        Constants(), description="constants of the objective that theorems and bounds need"
    )
    participation: Participation = Field(AllSilos(), description="who takes part in a round")
    runtime: Annotated[RuntimeSection, Shorthand()] = Field(RuntimeSection(), description="where it runs")
    files: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] | None = Field(
        None,
        description="SHA-256 of files by the field that names them, such as data.path, as a run writes it: "
        "with other contents it is refused",
    )
    report: ReportSection = Field(ReportSection(), description="what is measured")
    evaluate: EvaluateSection | None = Field(
        None,
        description="private accuracy, AUC, Brier score and calibration of two classes, gaps between groups",
    )
    sweep: SweepSection | None = Field(None, description="variations of this scenario, for `fedsim sweep`")

    @model_validator(mode="after")
    def _dealt(self) -> Self:
        """Require a partition of records that are named here."""
        if "partition" not in self.model_fields_set and not isinstance(self.data, Elsewhere):
            raise InputError("partition", None, "is required")
        return self

    def value(self, field: str) -> Any:
        """The plain value of a dotted field; None where that is left out."""
        found: Any = self.model_dump()
        for part in field.split("."):
            found = found.get(part)
        return found

    def check(self) -> None:
        """Check, without reading records, that each section is complete and that they fit together."""
        self.runtime.check()
        self.privacy.check()
        self.data.check()
        check_serves(MECHANISMS[self.privacy.mechanism], self.algorithm.name, self.algorithm.kind)

    def check_single(self) -> None:
        """InputError if the scenario has a `sweep` section, or trains no model."""
        if self.algorithm.name == "release":
            hint = "trains no model: `fedsim release` asks for values, in simulation"
            raise InputError("scenario.algorithm.name", self.algorithm.name, hint)
        if self.sweep is not None:
            hint = "is many runs; `fedsim sweep` makes them all, and sweep=null leaves the section out"
            raise InputError("scenario.sweep", sorted(self.sweep.model_fields_set), hint)


ROOT = "scenario"  # the first part of a field name in errors about the file
