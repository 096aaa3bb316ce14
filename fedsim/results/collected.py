"""A run's results as one object, whether it has just ended or was read from its directory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import pyarrow as pa

from fedsim.common.serialise import text
from fedsim.results.audit_file import AuditPart
from fedsim.results.model_file import Trained, trained
from fedsim.results.outcome import (
    BaselineMeasurement,
    CalibrationBin,
    ClippedRound,
    Measurement,
    Outcome,
    SiloMeasurement,
    variants,
)
from fedsim.results.silo_rows import Spent, spend
from fedsim.results.summarise import summarise
from fedsim.results.summary import Summary
from fedsim.scenario.load import relative
from fedsim.scenario.metric import BY_SKLEARN

if TYPE_CHECKING:
    from torch import Tensor

Models = dict[str, dict[int, "Tensor"]]
"""By variant and trial, the final parameters, flat (d,)."""


@dataclass(frozen=True)
class Run:
    """What a run came to.

    Args:
        summary: all of it in numbers.
        scenario: YAML without its seed, since whoever knows the seed can remove the noise.
        description: the scenario's.
        metrics: one row per evaluation: after the last round all metrics, before it three of them.
        silos: one row per trial, variant and silo: the final model on that silo's test records.
        baselines: one row per trial and baseline, of silos alone per silo; not private.
        calibration: one row per trial, variant and bin of probabilities, of final models.
        ledger: one row per trial, silo and round paid for: what was asked, and how many answers it cost.
        clipping: one row per trial and round: what the clip took away from the private run.
        price_spend: makes `spend`.
        load_models: makes `models`.
        load_trained: makes `trained`.
        directory: where it was read from.
        audit: what attacks attained, where somebody has tried.
    """

    summary: Summary
    scenario: str
    description: str
    metrics: pa.Table
    silos: pa.Table
    baselines: pa.Table
    calibration: pa.Table
    ledger: pa.Table
    clipping: pa.Table
    price_spend: Callable[[], pa.Table] = field(repr=False)
    load_models: Callable[[], Models] = field(repr=False)
    load_trained: Callable[[], Trained] = field(repr=False)
    directory: Path | None = None
    audit: AuditPart | None = None

    @cached_property
    def spend(self) -> pa.Table:
        """One row per silo and point: epsilon of the rounds gone by; see `fedsim.results.silo_rows`."""
        return self.price_spend()

    @cached_property
    def models(self) -> Models:
        """By variant and trial, the final parameters, flat (d,)."""
        return self.load_models()

    @cached_property
    def trained(self) -> Trained:
        """What the parameters are parameters of; see `fedsim.results.model_file`."""
        return self.load_trained()


def run_of(outcome: Outcome, folder: Path | None = None) -> Run:
    """The results of a run that has ended; file names are relative to `folder`, else the current one."""
    scenario = scenario_tree(outcome, folder or Path.cwd())
    return Run(
        summarise(outcome),
        without_seed(scenario),
        str(scenario.get("description", "")),
        **_tables(outcome),
        price_spend=lambda: _table(Spent, spend(outcome), {}),
        load_models=lambda: _models(outcome),
        load_trained=lambda: trained(outcome),
    )


def scenario_tree(outcome: Outcome, folder: Path) -> dict[str, Any]:
    """The run's scenario as plain values, its seed and the digests of its files among them.

    File names are relative to `folder`. Of a deployed run it lacks what that did not use.
    """
    unused = {"files"} if outcome.deployed is None else _SIMULATED
    scenario = outcome.resolved.scenario
    tree = relative(scenario.model_dump(mode="json", exclude_none=True, exclude=unused), folder)
    return tree | ({"files": dict(outcome.files)} if outcome.files else {})


SECRETS = {"seed", "nonce", "files"}
"""Sections that are for nobody but those who may see the records."""

_SIMULATED: Any = {
    "data": True,
    "partition": True,
    "files": True,
    "runtime": {"name", "silo_hosts", "address"},
}
"""Where the records of a simulation are, and where it happens."""


def without_seed(scenario: Mapping[str, Any]) -> str:
    """A scenario as YAML to show to anybody; see `shown`."""
    return text(shown(scenario))


def shown(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario without what is secret: whoever knows the seed can remove the noise.

    Nor has it the hashes of files, or those that stand for records in memory: they tell whoever knows all
    records but one whether a guess at that one is right.
    """
    public = {key: value for key, value in scenario.items() if key not in SECRETS}
    if isinstance(data := public.get("data"), Mapping):
        public["data"] = {key: _unhashed(value) for key, value in data.items()}
    return public


def _unhashed(value: Any) -> Any:
    return re.sub(r" sha256 [0-9a-f]{64}$", "", value) if isinstance(value, str) else value


_TESTS = "made of test records, which no silo releases"
_SIMULATION_ONLY = {
    "metrics": "made of test records, and excess_risk and gradient_mapping_sq of training ones",
    "silos": _TESTS,
    "baselines": "made of training and test records without noise: not private",
    "calibration": _TESTS,
    "clipping": "made of training records; a federation would have to query for it",
}
"""What each table of measurements is made of, which it says itself."""


def _tables(outcome: Outcome) -> dict[str, pa.Table]:
    """Those of `Run`, by their names; of a deployed run metrics are of public test records."""
    trials = [trial for _, trial in sorted(outcome.results.trials.items())]
    rows: dict[str, tuple[type[NamedTuple], list[Any]]] = {
        "metrics": (Measurement, outcome.results.measurements),
        "silos": (SiloMeasurement, [row for trial in trials for row in trial.silos]),
        "baselines": (BaselineMeasurement, [row for trial in trials for row in trial.baselines]),
        "calibration": (CalibrationBin, [row for trial in trials for row in trial.calibration]),
        "clipping": (ClippedRound, [row for trial in trials for row in trial.clipping]),
    }
    marked = {name: {"simulation_only": said} for name, said in _SIMULATION_ONLY.items()}
    if outcome.deployed is not None:
        marked["metrics"] = {"public": "made of public records"}
    return {"ledger": _ledger(outcome)} | {name: _table(*each, marked[name]) for name, each in rows.items()}


_TYPES: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), float | None: pa.float64()}


def _table(kind: type[NamedTuple], rows: Sequence[Any], marked: Mapping[str, str]) -> pa.Table:
    """The rows' own fields, and where they have `more` metrics a column for every one."""
    types = {name: _TYPES.get(hint, pa.string()) for name, hint in get_type_hints(kind).items()}
    if types.pop("more", None):
        types |= dict.fromkeys(BY_SKLEARN, pa.float64())
    own = ({**row._asdict(), **getattr(row, "more", {})} for row in rows)
    schema = pa.schema(types, metadata=dict(marked))
    return pa.Table.from_pylist([{name: row.get(name) for name in types} for row in own], schema=schema)


_LEDGER = {
    "trial": pa.int64(),
    "silo": pa.string(),
    "round": pa.int64(),
    "releases": pa.int64(),
    "broadcast_sha256": pa.string(),
}


def _ledger(outcome: Outcome) -> pa.Table:
    rows: dict[str, list[object]] = {name: [] for name in _LEDGER}
    plan = outcome.resolved.trace.plan
    releases = [plan.num_queries([r]) for r in range(len(plan.rounds))]
    for number, trial in sorted(outcome.results.trials.items()):
        for said in trial.statements:
            rows["trial"] += [number] * len(said.rounds)
            rows["silo"] += [said.admitted.terms.name] * len(said.rounds)
            rows["round"] += said.rounds
            rows["releases"] += [releases[r] for r in said.rounds]
            rows["broadcast_sha256"] += said.digests
    return pa.table(rows, schema=pa.schema(_LEDGER))


def _models(outcome: Outcome) -> Models:
    trials = sorted(outcome.results.trials.items())
    return {
        variant: {number: trial.models[variant].contiguous() for number, trial in trials}
        for variant in variants(outcome.resolved)
    }
