"""A run directory: written, and read back, refusing one that is half there or of another version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from safetensors.torch import load_file, save

from fedsim.common.errors import InputError
from fedsim.common.files import OF_TRIAL, RECORD, SCENARIO
from fedsim.common.serialise import from_yaml, to_yaml
from fedsim.problems.section import ProblemSection
from fedsim.report.model_file import FITTED, ModelFile, Trained, read_trained, write_trained
from fedsim.report.outcome import Outcome, Results, variants
from fedsim.report.record import Ended, LedgerRow, Record, Row, SiloSpend
from fedsim.report.silo_rows import spend
from fedsim.report.summarise import summarise
from fedsim.report.summary import AGAIN, FILE, Deployment, Summary, opened
from fedsim.scenario.load import anchored, relative
from fedsim.scenario.resolve import Resolved

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
    load_rows: Callable[[Any], list[Any]] = field(repr=False)  # makes `rows`

    @property
    def directory(self) -> Path | None:
        """Where it was read from."""
        return self.source if isinstance(self.source, Path) else None

    def rows(self, kind: type[Row]) -> list[Row]:
        """All rows of a class of `fedsim.report.record`, in the order of their trials."""
        return self.load_rows(kind)

    @cached_property
    def models(self) -> Models:
        """The final parameters by variant and trial, flat (d,)."""
        source = self.source
        return _models(source) if isinstance(source, Path) else _models_of(source)

    @cached_property
    def trained(self) -> Trained:
        """The problem, recipe and preparation of the parameters; see `fedsim.report.model_file`."""
        if isinstance(self.source, Path):
            return read_trained(self.source, {k for own in self.models.values() for k in own})
        return _trained_of(self.source)


def data_of(outcome: Outcome, folder: Path | None = None) -> RunData:
    """The results of a run that has ended; file names are relative to `folder`, else the current one."""
    deployed, place = outcome.deployed is not None, folder or Path.cwd()
    scenario = scenario_tree(outcome.resolved, outcome.files, place, deployed)
    about = summarise(outcome), without_seed(scenario), str(scenario.get("description", ""))
    return RunData(*about, outcome, cache(partial(_rows_of, outcome)))


def _rows_of(outcome: Outcome, kind: type[Any]) -> list[Any]:
    compute = AT_THE_END.get(kind)
    return outcome.results.rows(kind) if compute is None else compute(outcome)


def _ledger(outcome: Outcome) -> list[LedgerRow]:
    plan = outcome.resolved.trace.plan
    releases = [plan.num_queries([r]) for r in range(len(plan.rounds))]
    return [
        LedgerRow(trial, statement.admitted.terms.name, r, releases[r], digest)
        for trial, result in sorted(outcome.results.trials.items())
        for statement in result.statements
        for r, digest in zip(statement.rounds, statement.digests, strict=True)
    ]


AT_THE_END: dict[type[Any], Callable[[Outcome], list[Any]]] = {LedgerRow: _ledger, SiloSpend: spend}
"""Rows that are computed of a run that has ended."""


def ended(run: RunData) -> list[Any]:
    """The rows of the record's last entry: that the run has ended, and what is computed then."""
    return [Ended(run.summary.status), *(row for kind in AT_THE_END for row in run.rows(kind))]


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


def scenario_tree(
    resolved: Resolved, files: Mapping[str, str], folder: Path, deployed: bool = False
) -> dict[str, Any]:
    """The run's scenario as plain values, its seed and the digests of its `files` among them.

    File names are relative to `folder`. Of a deployed run it lacks what that did not use.
    """
    unused = _WHERE if deployed else {"files"}
    tree = relative(resolved.scenario.model_dump(mode="json", exclude_none=True, exclude=unused), folder)
    return tree | ({"files": dict(files)} if files else {})


def scenario_text(resolved: Resolved, files: Mapping[str, str], folder: Path, deployed: bool = False) -> str:
    """`scenario.yaml` in the run's directory `folder`."""
    head = _DEPLOYED if deployed else SECRET if resolved.mechanism.private else _NO_NOISE
    return head + to_yaml(scenario_tree(resolved, files, folder, deployed))


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
    from fedsim.report.sweep_summary import read_only

    return run_of(read_only(Summary, directory), directory)


def run_of(summary: Summary, directory: Path) -> RunData:
    """As `read`, with a summary that was read."""
    about = summary, *scenario_of(directory / SCENARIO)
    return RunData(*about, directory, Results(ended_record(directory)).rows)


def ended_record(directory: Path) -> Record:
    """The record of a run or sweep that has ended; InputError likewise."""
    record = Record.read(directory / RECORD)
    if not record.rows(Ended):
        from fedsim.report.sweep_summary import NOT_ENDED

        raise InputError("RUN", str(directory), NOT_ENDED)
    return record


def scenario_of(path: Path) -> tuple[str, str]:
    """A scenario file's text without its seed, and its description; InputError if damaged or missing."""
    try:
        tree = from_yaml(opened(path, lambda: path.read_text(encoding="utf-8")))
    except yaml.YAMLError:
        tree = None
    if not isinstance(tree, dict):
        raise InputError("RUN", str(path), f"not a scenario, cut short?; {AGAIN}")
    return without_seed(tree), str(tree.get("description", ""))


def _models(directory: Path) -> Models:
    models: Models = {}
    others = {directory / FITTED, *directory.glob(f"{OF_TRIAL}*")}  # of a run that may go on
    for path in sorted(set(directory.glob("*.safetensors")) - others):
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
    """Write a run's files, `run` being of `outcome`, into an empty folder; it will be at `place`, which file
    names in the scenario are relative to. A record that is at `place` stays there.
    """
    scenario = scenario_text(outcome.resolved, outcome.files, place, outcome.deployed is not None)
    (folder / SCENARIO).write_text(scenario, encoding="utf-8")
    (folder / FILE).write_text(run.summary.json_text() + "\n", encoding="utf-8")
    for variant, models in run.models.items():
        named = {f"trial-{trial}.{variant}": model for trial, model in models.items()}
        other = "nonprivate_model" if variant == outcome.main else "nonprivate_baseline"
        file = folder / f"{'model' if variant == 'private' else other}.safetensors"
        file.write_bytes(save(named))  # a full disk is an OSError, which its `save_file` does not raise
    write_trained(run.trained, folder)
    if outcome.results.folder != place:
        outcome.results.copy(folder / RECORD, ended(run))
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
