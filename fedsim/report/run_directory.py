"""A run directory: written, and read back, refusing one that is half there or of another version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.torch import load_file, save

from fedsim.common.errors import InputError
from fedsim.common.serialise import from_yaml, to_yaml
from fedsim.problems.section import ProblemSection
from fedsim.report.model_file import FITTED, ModelFile, Trained, read_trained, write_trained
from fedsim.report.outcome import Outcome, variants
from fedsim.report.record import MADE_OF, TABLES, LedgerRow, exported
from fedsim.report.silo_rows import spend
from fedsim.report.summarise import summarise
from fedsim.report.summary import AGAIN, FILE, Deployment, Summary, opened
from fedsim.report.sweep_summary import read_only
from fedsim.scenario.load import anchored, relative
from fedsim.scenario.metric import BY_SKLEARN

if TYPE_CHECKING:
    from torch import Tensor

Models = dict[str, dict[int, "Tensor"]]  # the final parameters by variant and trial, flat (d,)


@dataclass(frozen=True)
class RunData:
    """A run's summary, tables and models, from memory or from its directory."""

    summary: Summary  # the run in numbers
    scenario: str  # YAML without its seed, which is enough to remove the noise
    description: str  # the scenario's
    source: Outcome | Path  # a run that has just ended, or the directory that it was read from
    table: Callable[[str], pa.Table] = field(repr=False)  # one of the `exported` tables, by its name
    load_models: Callable[[], Models] = field(repr=False)  # makes `models`
    load_trained: Callable[[], Trained] = field(repr=False)  # makes `trained`

    @property
    def directory(self) -> Path | None:
        """Where it was read from."""
        return self.source if isinstance(self.source, Path) else None

    @cached_property
    def models(self) -> Models:
        """The final parameters by variant and trial, flat (d,)."""
        return self.load_models()

    @cached_property
    def trained(self) -> Trained:
        """The problem, recipe and preparation of the parameters; see `fedsim.report.model_file`."""
        return self.load_trained()


def data_of(outcome: Outcome, folder: Path | None = None) -> RunData:
    """The results of a run that has ended; file names are relative to `folder`, else the current one."""
    scenario = scenario_tree(outcome, folder or Path.cwd())
    about = summarise(outcome), without_seed(scenario), str(scenario.get("description", ""))
    table, models = cache(partial(_table_of, outcome)), partial(_models_of, outcome)
    return RunData(*about, outcome, table, models, partial(_trained_of, outcome))


_TYPES: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), float | None: pa.float64()}


def columns(name: str) -> dict[str, pa.DataType]:
    """A table's columns and their types; `more` stands for a column of each metric by scikit-learn."""
    types = {field: _TYPES.get(hint, pa.string()) for field, hint in get_type_hints(TABLES[name]).items()}
    if types.pop("more", None):
        types |= dict.fromkeys(BY_SKLEARN, pa.float64())
    return types


def arrow(name: str, rows: Sequence[Any], made_of: Mapping[str, str] | None = None) -> pa.Table:
    """Rows of a table as Arrow's; `made_of` is its metadata, else what it is made of in a simulation."""
    if made_of is None:
        made_of = {"simulation_only": MADE_OF[name]} if name in MADE_OF else {}
    schema = pa.schema(columns(name), metadata=dict(made_of) or None)
    own = {field: i for i, field in enumerate(TABLES[name]._fields)}
    values = [
        [row[own[column]] for row in rows] if column in own else [row.more.get(column) for row in rows]
        for column in schema.names
    ]
    return pa.table(values, schema=schema)


def _table_of(outcome: Outcome, name: str) -> pa.Table:
    """A table of the record; of a deployed run metrics are of public test records."""
    made: dict[str, Callable[[Outcome], Sequence[Any]]] = {"spend": spend, "ledger": _ledger}
    rows = made[name](outcome) if name in made else outcome.results.rows(TABLES[name])
    of_server = outcome.deployed and name in ("metrics", "baselines")
    public = {"public": "made of public records"} if of_server else None
    return arrow(name, rows, public)


def _ledger(outcome: Outcome) -> list[LedgerRow]:
    plan = outcome.resolved.trace.plan
    releases = [plan.num_queries([r]) for r in range(len(plan.rounds))]
    return [
        LedgerRow(trial, statement.admitted.terms.name, r, releases[r], digest)
        for trial, result in sorted(outcome.results.trials.items())
        for statement in result.statements
        for r, digest in zip(statement.rounds, statement.digests, strict=True)
    ]


def _models_of(outcome: Outcome) -> Models:
    trials = sorted(outcome.results.trials.items())
    models = {
        variant: {k: trial.models[variant].contiguous() for k, trial in trials if variant in trial.models}
        for variant in variants(outcome.resolved)
    }
    return {variant: own for variant, own in models.items() if own or variant == outcome.main}


def _trained_of(outcome: Outcome) -> Trained:
    resolved = outcome.resolved
    section = resolved.scenario.problem
    fitted = {k: trial.fitted for k, trial in sorted(outcome.results.trials.items()) if trial.fitted}
    kept = ModelFile(
        problem=ProblemSection(name=section.name, model=section.model),
        num_features=resolved.outline.num_features,
        num_classes=resolved.outline.num_classes,
        dtype=resolved.scenario.runtime.dtype,
        recipe=next((each.recipe for each in fitted.values()), None),
    )
    return kept, fitted


def scenario_tree(outcome: Outcome, folder: Path) -> dict[str, Any]:
    """The run's scenario as plain values, its seed and the digests of its files among them.

    File names are relative to `folder`. Of a deployed run it lacks what that did not use.
    """
    unused = {"files"} if outcome.deployed is None else _WHERE
    scenario = outcome.resolved.scenario
    tree = relative(scenario.model_dump(mode="json", exclude_none=True, exclude=unused), folder)
    return tree | ({"files": dict(outcome.files)} if outcome.files else {})


SECRETS = {"seed", "nonce", "files"}  # sections that are as secret as the records

_WHERE: Any = {"data": True, "partition": True, "files": True, "runtime": {"name", "silo_hosts", "address"}}
"""Where the records of a simulation are, and where it happens."""


def without_seed(scenario: Mapping[str, Any]) -> str:
    """A scenario as YAML to show to anybody; see `shown`."""
    return to_yaml(shown(scenario))


def shown(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario without its secrets: the seed is enough to remove the noise.

    Nor has it hashes of files or of records in memory: who knows all records but one could check a guess at
    that one by them.
    """
    public = {key: value for key, value in scenario.items() if key not in SECRETS}
    if isinstance(data := public.get("data"), Mapping):
        digest = re.compile(r" sha256 [0-9a-f]{64}$")
        public["data"] = {k: digest.sub("", v) if isinstance(v, str) else v for k, v in data.items()}
    return public


def read(directory: Path) -> RunData:
    """Read a run's results; no data set, no Ray, and models only once they are asked for.

    InputError names the file that is missing, damaged, or of another version.
    """
    about = read_only(Summary, directory), *scenario_of(directory / "scenario.yaml")
    tables, models = {name: _table(directory, name) for name in exported()}, partial(_models, directory)
    return RunData(
        *about,
        directory,
        tables.__getitem__,
        load_models=models,
        load_trained=lambda: read_trained(directory, {k for own in models().values() for k in own}),
    )


def scenario_of(path: Path) -> tuple[str, str]:
    """A scenario file's text without its seed, and its description; InputError if damaged or missing."""
    try:
        tree = from_yaml(opened(path, lambda: path.read_text(encoding="utf-8")))
    except yaml.YAMLError:
        tree = None
    if not isinstance(tree, dict):
        raise InputError("RUN", str(path), f"not a scenario, cut short?; {AGAIN}")
    return without_seed(tree), str(tree.get("description", ""))


def _table(directory: Path, name: str) -> pa.Table:
    path = directory / f"{name}.parquet"
    table = opened(path, partial(pq.read_table, path))
    missing = [column for column in columns(name) if column not in table.column_names]
    if missing:
        raise InputError("RUN", str(path), f"has no column {missing[0]!r}; {AGAIN}")
    return table


def _models(directory: Path) -> Models:
    models: Models = {}
    for path in sorted(set(directory.glob("*.safetensors")) - {directory / FITTED}):
        for key, tensor in opened(path, partial(load_file, path)).items():
            trial, variant = key.removeprefix("trial-").split(".")
            models.setdefault(variant, {})[int(trial)] = tensor
    return {variant: dict(sorted(trials.items())) for variant, trials in models.items()}


RECEIPTS = "receipts"
SECRET = """\
# Anyone who has this file can draw the noise again: the seed, known or guessed, is enough to remove the noise
# from all that was released. Share this file, and the directory that it is in, only with those who may see
# the records. Keep the seed.
"""
"""Stands in a scenario that repeats noise."""
_DEPLOYED = "# What this run's server knew. Its seed is public: the silos drew their noise by themselves.\n"
_NO_NOISE = "# No privacy: this run neither clipped nor added noise.\n"


def write(outcome: Outcome, run: RunData, folder: Path, place: Path) -> None:
    """Write a run's data, `run` being of `outcome`, into an empty folder; it will be at `place`, which file
    names in the scenario are relative to.
    """
    head = _DEPLOYED if outcome.deployed else SECRET if outcome.main == "private" else _NO_NOISE
    (folder / "scenario.yaml").write_text(head + to_yaml(scenario_tree(outcome, place)), encoding="utf-8")
    (folder / FILE).write_text(run.summary.json_text() + "\n", encoding="utf-8")
    for name in exported():
        pq.write_table(run.table(name), folder / f"{name}.parquet")
    for variant, models in run.models.items():
        named = {f"trial-{trial}.{variant}": model for trial, model in models.items()}
        other = "nonprivate_model" if variant == outcome.main else "nonprivate_baseline"
        file = folder / f"{'model' if variant == 'private' else other}.safetensors"
        file.write_bytes(save(named))  # a full disk is an OSError, which its `save_file` does not raise
    write_trained(run.trained, folder)
    if outcome.deployed is not None:
        _write_receipts(outcome.deployed, folder / RECEIPTS)


def move_scenario(file: Path, before: Path, after: Path) -> None:
    """Let a scenario that was copied from the folder `before` to `after` name the files that it named."""
    content = file.read_text(encoding="utf-8")
    tree = from_yaml(content)
    moved = relative(anchored(tree, before.resolve()), after)
    if moved != tree:
        head = "".join(line for line in content.splitlines(keepends=True) if line.startswith("#"))
        file.write_text(head + to_yaml(moved), encoding="utf-8")


def _write_receipts(deployed: Deployment, folder: Path) -> None:
    """Each silo's signed statement, as it came, and the key that checks it."""
    for name, receipt in deployed.receipts.items():
        file = folder / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(receipt, encoding="utf-8")
    for name, key in deployed.identities.items():
        (folder / f"{name}.pub").write_text(f"{key}\n", encoding="utf-8")
