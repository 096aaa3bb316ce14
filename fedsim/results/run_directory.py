"""A run directory: written, and read back, refusing one that is half there or of another version."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.torch import load_file, save

from fedsim.common.errors import InputError
from fedsim.common.serialise import text, value
from fedsim.results.audit_file import read_audit
from fedsim.results.collected import Models, Run, scenario_tree, without_seed
from fedsim.results.model_file import FITTED, Trained, read_trained, write_trained
from fedsim.results.outcome import Deployed, Outcome
from fedsim.results.place import UNFINISHED
from fedsim.results.summary import AGAIN, FILE, MEASURED, opened, read_summary
from fedsim.scenario.load import anchored, relative
from fedsim.scenario.metric import BY_SKLEARN

_COLUMNS = {
    "metrics": ("trial", "variant", "round", *MEASURED),
    "silos": ("trial", "variant", "silo", "error", "loss", *BY_SKLEARN),
    "baselines": ("trial", "baseline", "silo", "error", "loss", *BY_SKLEARN),
    "calibration": ("trial", "variant", "bin", "records", "predicted", "observed"),
    "ledger": ("trial", "silo", "round", "releases"),
    "clipping": ("trial", "round", "terms", "clipped", "median_norm"),
    "spend": ("silo", "round", "epsilon_spent", "budget"),
}
"""Without which a table is not one of a run's."""


def read(directory: Path) -> Run:
    """Read a run's results; no data set, no Ray, and models only once they are asked for.

    Raises:
        InputError: names the file that is missing, damaged, or of another version.
    """
    if not directory.is_dir():
        raise InputError("RUN", str(directory), f"no such directory; {AGAIN}")
    if (directory / UNFINISHED).is_dir() and not (directory / FILE).exists():
        hint = f"the run has not ended; fedsim simulate --resume {directory} goes on with it"
        raise InputError("RUN", str(directory), hint)
    summary = read_summary(directory)
    scenario, description = scenario_of(directory / "scenario.yaml")
    tables = {name: _table(directory, name) for name in _COLUMNS}
    spend = tables.pop("spend")
    return Run(
        summary,
        scenario,
        description,
        **tables,
        price_spend=lambda: spend,
        load_models=lambda: _models(directory),
        load_trained=lambda: _trained(directory),
        directory=directory,
        audit=read_audit(directory),
    )


def scenario_of(path: Path) -> tuple[str, str]:
    """A scenario file's text without its seed, and its description; InputError if damaged or missing."""
    try:
        tree = value(opened(path, lambda: path.read_text(encoding="utf-8")))
    except yaml.YAMLError:
        tree = None
    if not isinstance(tree, dict):
        raise InputError("RUN", str(path), f"not a scenario, cut short?; {AGAIN}")
    return without_seed(tree), str(tree.get("description", ""))


def _table(directory: Path, name: str) -> pa.Table:
    path = directory / f"{name}.parquet"
    table = opened(path, lambda: pq.read_table(path))
    missing = [column for column in _COLUMNS[name] if column not in table.column_names]
    if missing:
        raise InputError("RUN", str(path), f"has no column {missing[0]!r}; {AGAIN}")
    return table


def _models(directory: Path) -> Models:
    found: Models = {}
    for path in sorted(set(directory.glob("*.safetensors")) - {directory / FITTED}):
        for key, tensor in opened(path, partial(load_file, path)).items():
            trial, variant = key.removeprefix("trial-").split(".")
            found.setdefault(variant, {})[int(trial)] = tensor
    return {variant: dict(sorted(trials.items())) for variant, trials in found.items()}


def _trained(directory: Path) -> Trained:
    return read_trained(directory, {trial for models in _models(directory).values() for trial in models})


RECEIPTS = "receipts"
SECRET = """\
# Anyone who has this file can draw the noise again: whoever knows the seed, or guesses it, can remove the
# noise from all that was released. Share this file, and the directory that it is in, only with those who may
# see the records. Keep the seed.
"""
"""Stands in a scenario that repeats noise."""
_DEPLOYED = "# What this run's server knew. Its seed is public: the silos drew their noise by themselves.\n"
_NO_NOISE = "# No privacy: this run neither clipped nor added noise.\n"


def write(outcome: Outcome, run: Run, folder: Path, place: Path) -> None:
    """Write all data of a run, `run` being the results of `outcome`, into an empty folder.

    Args:
        place: where the folder will be, which file names in the scenario are relative to.
    """
    head = _DEPLOYED if outcome.deployed else SECRET if outcome.main == "private" else _NO_NOISE
    (folder / "scenario.yaml").write_text(head + text(scenario_tree(outcome, place)), encoding="utf-8")
    (folder / FILE).write_text(run.summary.json_text() + "\n", encoding="utf-8")
    for name in _COLUMNS:
        pq.write_table(getattr(run, name), folder / f"{name}.parquet")
    for variant, models in run.models.items():
        named = {f"trial-{trial}.{variant}": model for trial, model in models.items()}
        file = folder / _model_file(variant, twin=variant != outcome.main)
        file.write_bytes(save(named))  # a full disk is an OSError, which its `save_file` does not raise
    write_trained(run.trained, folder)
    if outcome.deployed is not None:
        _write_receipts(outcome.deployed, folder / RECEIPTS)


def move_scenario(file: Path, before: Path, after: Path) -> None:
    """Let a scenario that was copied from the folder `before` to `after` name the files that it named."""
    found = file.read_text(encoding="utf-8")
    tree = value(found)
    moved = relative(anchored(tree, before.resolve()), after)
    if moved != tree:
        head = "".join(line for line in found.splitlines(keepends=True) if line.startswith("#"))
        file.write_text(head + text(moved), encoding="utf-8")


def _write_receipts(deployed: Deployed, folder: Path) -> None:
    """Each silo's signed statement, as it came, and the key that checks it."""
    folder.mkdir()
    for name, receipt in deployed.receipts.items():
        (folder / f"{name}.json").write_text(receipt, encoding="utf-8")
    for name, key in deployed.identities.items():
        (folder / f"{name}.pub").write_text(f"{key}\n", encoding="utf-8")


def _model_file(variant: str, twin: bool) -> str:
    """Only private models are in `model.safetensors`."""
    if variant == "private":
        return "model.safetensors"
    return "nonprivate_twin.safetensors" if twin else "nonprivate_model.safetensors"
