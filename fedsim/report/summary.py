"""`summary.json`: what a run came to and what it cost each silo, as types that write and read themselves.

A field that does not apply is left out; a number that does not exist, or is infinite, is None.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fedsim.common.errors import InputError
from fedsim.common.serialise import finite
from fedsim.privacy.registry import NONE
from fedsim.protocol.unit import RECORD
from fedsim.scenario.metric import METRICS, BaselineName

FORMAT = 5  # of the directory of a run or sweep; a reader refuses any other
FILE = "summary.json"
FEW = 10  # trials below which there are no percentiles to speak of
AGAIN = "run the scenario again with this version; a sweep's finished cells are kept"
EPSILON = "privacy.epsilon"

OF_TRAINING = ("excess_risk", "gradient_mapping_sq")
NONPRIVATE = "without noise and clipping"
MEASURED = (*METRICS, *OF_TRAINING)  # metrics of an evaluation

Interval = tuple[float, float]
Label = str | float | int | bool | None
Labels = dict[str, Label]  # the value of each varied field
Setting = dict[str, Any]  # {dotted field: value}
Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")


class Part(BaseModel):
    """Written with the fields that were set, in the order of their declaration."""

    model_config = ConfigDict(frozen=True)

    def tree(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return self.model_dump(exclude_unset=True)

    def json_text(self) -> str:
        """JSON for a file or a terminal."""
        return json.dumps(self.tree(), indent=2, allow_nan=False)


class SiloRow(Part):
    """A silo's budget, guaranteed and spent epsilon in its costliest trial, for replacing one of n records.

    Under secure aggregation `epsilon_colluding` holds if its two parties collude. `epsilon_attribute` is for
    changing the group of one record, where that is no feature.
    `epsilon_claimed` and `delta_claimed` are a theorem's; `epsilon_attainable` is a lower bound on the true
    epsilon where `epsilon_guaranteed` may exceed it; `epsilon_dp_accounting` is another library's number.
    Other records, `held_out`, answer an evaluation; the larger cost of the two is guaranteed. `guarantee` is
    set where there is none.

    Of private tuning (`fedsim.simulation.selection`): n_tune records are put aside, whose cost is that of
    training the candidates or of scoring them, and n_run are left to the reported run.
    """

    name: str
    n: int | None = None
    guarantee: str | None = None
    epsilon_budget: float | None
    delta: float | None
    epsilon_guaranteed: float | None = None
    noise_multiplier: float
    releases: int = 0
    held_out: int | None = None
    epsilon_training: float | None = None
    epsilon_evaluation: float | None = None
    epsilon_colluding: float | None = None
    epsilon_attribute: float | None = None
    epsilon_spent: float | None = None
    rounds: int | None = None
    epsilon_claimed: float | None = None
    delta_claimed: float | None = None
    epsilon_attainable: float | None = None
    epsilon_dp_accounting: float | None = None
    n_tune: int | None = None
    n_run: int | None = None
    score_noise_multiplier: float | None = None
    epsilon_scores: float | None = None
    epsilon_tuning: float | None = None
    epsilon_run: float | None = None
    epsilon_total: float | None = None


class Parameters(Part):
    """The numbers that a theorem or `auto` chose; see `fedsim.theory.theorem.Derived`."""

    theorem: str
    values: dict[str, Any]
    not_applied: dict[str, Any] = {}
    predicted: dict[str, float] = {}
    reasons: dict[str, str] = {}


class PersonRow(Part):
    """What is guaranteed to a person of so many records in a silo, or in so many silos; None: nothing."""

    records: int | None = None
    silos: int | None = None
    epsilon: float | None
    delta: float | None


class Persons(Part):
    """What a guarantee is worth to persons; `most_records` of one in a silo are counted in the data."""

    note: str
    rows: list[PersonRow]
    most_records: int | None = None


class TunedCombination(Part):
    """A combination of a sweep that was tuned by so many runs, and what that cost each silo."""

    varied: Labels
    runs: int
    silos: list[SiloRow]


class TuningLedger(Part):
    """The cost of private tuning."""

    note: str
    guarantee: str
    mechanism: str
    fraction: float
    combinations: list[TunedCombination]


class Privacy(Part):
    """The privacy statement of a run, of its plan before it runs, or of a sweep's runs, of which it has each
    different text once; the words are `fedsim.report.privacy_statement`'s. `tuning` is a sweep's.
    """

    notices: list[str] = []
    unit: str
    adjacency: str
    title: str
    counted: str
    guarantee: str
    guarantee_colluding: str = ""
    mechanism: str
    calibration: str
    sampler: list[str]
    accountant: str
    spent: dict[str, float] = {}  # shares of mu^2; training has the rest
    bound: str | None = None  # of unit person
    h: int | None = None
    epsilon_spent_note: str = ""
    epsilon_attainable_note: str = ""
    trusted: list[str] = []
    not_private: list[str] = []
    theorem: str | None = None
    violations: list[str] = []
    silos: list[SiloRow] = []
    persons: Persons | None = None
    tuning: TuningLedger | None = None

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed."""
        return self.mechanism != NONE.name


def spans(trials: int) -> str:
    """The meaning of an interval over so many trials.

    >>> spans(3), spans(100)
    ('from the lowest to the highest', 'where 90 % of them fall')
    """
    return "from the lowest to the highest" if trials < FEW else "where 90 % of them fall"


class Spread(NamedTuple):
    """A mean over trials, and where 90 % of them fall; of fewer than `FEW`, the lowest and the highest."""

    mean: float
    low: float
    high: float


def value_text(value: Spread | None, form: str = ".4f") -> str:
    """`0.0553 [0.0254, 0.0838]`: the mean and, where trials differ, where 90 % of them fall; or empty."""
    if value is None:
        return ""
    interval = f" [{value.low:{form}}, {value.high:{form}}]" if value.low < value.high else ""
    return f"{value.mean:{form}}{interval}"


if TYPE_CHECKING:

    class _Fields(Part):
        def __getattr__(self, name: str) -> Any: ...
else:
    _KINDS = {"": float | None, "_interval90": Interval | None}
    _OWN = {f"{name}{end}": (kind, None) for name in MEASURED for end, kind in _KINDS.items()}
    _Fields = create_model("_Fields", __base__=Part, **_OWN)


class Values(_Fields):
    """Mean of each metric and its 5th to 95th percentile, such as `auc` and `auc_interval90`; else None.

    On test records (`fedsim.scenario.metric`), but for the last two, which are of training records.
    """

    def spread(self, name: str) -> Spread | None:
        """Mean and interval of a metric in `MEASURED`; None where it was not measured."""
        held = dict(self)
        mean, interval = held[name], held[f"{name}_interval90"]
        return None if mean is None else Spread(mean, *(interval or (mean, mean)))


class CombinationRow(Values):
    """One point of a sweep's grid, over its finished trials; its metrics are those of `Values`.

    `epsilon_guaranteed` is what it costs the silo that it costs most, tuning included where that was private.
    `epsilon_budget` is the largest of the silos' budgets; None without a mechanism, or without a limit.
    `epsilon_claimed` is what a theorem claims for that silo, and `epsilon_attainable` a lower bound on the
    true epsilon where `epsilon_guaranteed` may exceed it. `chosen` is None where nothing could be chosen.
    """

    varied: Labels
    private: bool
    chosen: Setting | None
    epsilon_budget: float | None
    epsilon_guaranteed: float | None
    costliest_silo: str | None
    noise_multiplier: float | None
    epsilon_claimed: float | None = None
    epsilon_attainable: float | None = None
    trials: int
    seconds_per_run: float | None


class Metrics(Values):
    """Final values over the finished trials.

    `error_name` says what `error` is, `metric` what is plotted, tuned and compared; `threshold` is of class
    1's probability. `nonprivate` is the non-private baseline: the same algorithm without noise and clipping.
    """

    error_name: str
    metric: str = "error"
    weighing: str = RECORD.weighing  # of all but person_loss
    threshold: float | None = None
    nonprivate: Values = Values()

    @property
    def chosen(self) -> Spread | None:
        """Mean and interval of the chosen metric."""
        return self.spread(self.metric)


class Baseline(Values):
    """A baseline over trials, without the federation or without noise: on the same records, not private.

    `silos` were fitted, where each is one; `methods` say how, or why not. See `fedsim.measure.baselines`.
    """

    name: BaselineName
    silos: int | None = None
    train_records: tuple[int, int]
    methods: list[str]

    @property
    def label(self) -> str:
        """Its name in tables and figures."""
        return NAMES[self.name]


NAMES: dict[BaselineName, str] = {
    "majority": "majority class",
    "mean": "mean of the targets",
    "silo_alone_on_all": "silo alone (all records)",
    "silo_alone": "silo alone (own records)",
    "at_home": "at home (own records)",
    "pooled": "all silos pooled",
    "throw_away": "public records alone",
    "converged": "converged, without noise",
    "clipped": "clipped, without noise",
}


class Participation(Part):
    """Who took part: the M that theorems speak of, and what the run saw.

    `effective_m` is M with 1 / M = E[1 / M_r] (thesis Assumption 1.4): exact, or of a file its average over
    all its rounds. What was observed comes from the ledgers of all finished trials. `pull` is the least and
    the largest N E[1{i in S_r} / M_r] of a silo: 1 where the server's sum is unbiased.
    """

    name: str
    num_silos: int
    effective_m: float
    expected_inverse_m: float
    observed_mean_m: float | None
    observed_mean_inverse_m: float | None
    pull: tuple[float, float]
    plan_covers: str
    empty_round_probability: float | None = None


class Heterogeneity(Part):
    """Heterogeneity of the silos (`fedsim.measure.objective`); `reason`: why it was not measured."""

    upsilon_star_sq: float | None
    phi_sq_at_optimum: float | None
    phi_sq_mean_at_optimum: float | None
    at: str | None = None
    reason: str | None = None
    note: str


class LeftOut(Part):
    """A silo that some rounds went without: `which`, from 1 on, and its first few different `reasons`."""

    name: str
    rounds: int
    which: str = ""
    reasons: list[str]


class Deployment(Part):
    """Results of a deployed run that a simulated one does not have; four fields are not in `summary.json`.

    `absent`: silos of the federation that did not join, and why; the run is of the others alone.
    `round_seconds`: what each round took; None where it was not kept.
    `without_statement`: silos that gave none at the end, and why; their whole plan counts as spent.
    `unmeasured`: what only a simulation can know.
    """

    notices: list[str] = Field([], exclude=True)  # the silos' own lines for the report, each with its silo
    accountants: list[str] = Field([], exclude=True)  # how the silos priced the plan
    receipts: dict[str, str] = Field({}, exclude=True)  # signed statements, JSON, by name of the file
    identities: dict[str, str] = Field({}, exclude=True)  # public keys as the server knew them, hexadecimal
    min_silos: int
    absent: dict[str, str] = {}
    left_out: list[LeftOut] = []
    round_seconds: list[float | None] = []
    without_statement: dict[str, str]
    remarks: list[str]
    unmeasured: list[str]
    measured: bool


class Trials(Part):
    """Numbers of trials."""

    asked: int
    finished: int


class Summary(Part):
    """A run; besides, it has a part of each section by its name (`fedsim.report.sections.registry`).

    `noise_cost` is the loss that the model's noise is expected to cost, by public numbers alone.
    """

    format: int
    scenario: str
    status: str
    algorithm: str
    problem: str
    runtime: str
    trials: Trials
    rounds: int
    dimension: int
    noise_cost: float | None = None
    wall_seconds: float
    warnings: list[str] = []
    metrics: Metrics
    baselines: list[Baseline] = []
    participation: Participation
    heterogeneity: Heterogeneity | None = None
    deployment: Deployment | None = None
    parameters: Parameters | None = None
    privacy: Privacy
    versions: dict[str, str]
    environment: dict[str, Any]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def tree(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        own = super().tree()
        return {name: own[name] for name in dict.fromkeys((*_FIRST, *own)) if name in own}

    @property
    def metric(self) -> str:
        """The chosen metric."""
        return self.metrics.metric

    @property
    def error_name(self) -> str:
        """What `error` is."""
        return self.metrics.error_name

    @property
    def repetitions(self) -> int:
        """The number of trials that baselines are means of."""
        return self.trials.finished

    @property
    def combinations(self) -> list[CombinationRow]:
        """A run is a sweep of one combination, or of two with its non-private baseline."""
        if not self.privacy.private:
            return [self._combination(self.metrics, False)]
        return [self._combination(self.metrics, True), self._combination(self.metrics.nonprivate, False)]

    def _combination(self, values: Values, private: bool) -> CombinationRow:
        silos = [silo for silo in self.privacy.silos if private and silo.guarantee is None]  # not public
        budgets = [silo.epsilon_budget for silo in silos]
        costs = [inf if silo.epsilon_guaranteed is None else silo.epsilon_guaranteed for silo in silos]
        costliest = silos[costs.index(max(costs))] if silos else None
        budget = finite(max((inf if each is None else each for each in budgets), default=inf))
        return CombinationRow(
            varied={"algorithm": self.algorithm} | ({EPSILON: budget} if private else {}),
            private=private,
            chosen={},
            epsilon_budget=budget,
            epsilon_guaranteed=costliest and costliest.epsilon_guaranteed,
            costliest_silo=costliest and costliest.name,
            noise_multiplier=costliest and costliest.noise_multiplier,
            trials=self.trials.finished,
            seconds_per_run=None,
            **{name: value for name, value in values if name in Values.model_fields},
        )

    def levels(self) -> list[tuple[str, Baseline]]:
        """Every baseline by its label."""
        return [(one.label, one) for one in self.baselines]

    @property
    def unmeasured(self) -> str:
        """Why there is no value of the metric."""
        if self.deployment is not None and not self.deployment.measured:
            return "there are no public test records"
        return "it has no finite value" if self.trials.finished else "no trial is complete"


_FIRST = (
    *("format", "scenario", "status", "algorithm", "problem", "runtime", "trials", "rounds", "dimension"),
    *("noise_cost", "wall_seconds", "warnings", "metrics", "calibration", "groups", "baselines", "joining"),
    *("own_models", "costs", "evaluation", "participation", "heterogeneity", "objective", "clipping"),
    *("chosen_clips", "chosen_h"),
)
"""The order of keys in JSON; others follow."""


def opened(path: Path, load: Callable[[], T], remedy: str = AGAIN) -> T:
    """Load a file. InputError if the file is missing or damaged; it says what to do about it."""
    try:
        return load()
    except json.JSONDecodeError as error:
        hint = f"line {error.lineno}: not valid JSON, cut short?"
    except FileNotFoundError:
        hint = "is missing"
    except OSError as error:
        hint = f"cannot be read ({error.strerror or 'damaged'})"
    except Exception:  # of whatever library reads it
        hint = "is damaged, cut short?"
    raise InputError("RUN", str(path), f"{hint}; {remedy}")


def read_json(path: Path, remedy: str = AGAIN) -> Any:
    """A file's plain values; errors as of `opened`."""
    return opened(path, lambda: json.loads(path.read_text(encoding="utf-8")), remedy)


def validated(kind: type[Model], tree: Any, path: Path, remedy: str = AGAIN) -> Model:
    """The contents of a file as a model; InputError with the first thing that is wrong."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError("RUN", str(path), f"{where}: {first['msg'].lower()}; {remedy}") from None
