"""The run directory: written beside its place and moved there whole, so that it is never half there."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.torch import save_file
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.protocol.links import Variant
from fedsim.report.figure import draw
from fedsim.results.outcome import Measurement, Outcome, SiloMeasurement, variants
from fedsim.results.spend import spend_table
from fedsim.results.summary import summarise


def check_free(directory: Path) -> Path:
    """Before any work is done: the directory can be made and holds nothing yet; its absolute path.

    Raises:
        InputError: it holds another run, or cannot be made.
    """
    place = directory.resolve()
    if place == Path.cwd() or place.is_file() or (place.is_dir() and any(place.iterdir())):
        raise InputError("--out", str(directory), "holds another run or other files; name a new directory")
    parent = next(folder for folder in place.parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        raise InputError("--out", str(directory), f"cannot be written ({error.strerror})") from None
    return place


def write(outcome: Outcome, directory: Path) -> list[str]:
    """Write everything that there is to know about a run; returns the names of the files."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _fill(outcome, draft)
        draft.chmod(0o755)
        draft.replace(directory)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return sorted(file.name for file in directory.iterdir())


def _fill(outcome: Outcome, folder: Path) -> None:
    (folder / "scenario.yaml").write_text(_repeated(outcome), encoding="utf-8")
    summary = json.dumps(summarise(outcome), indent=2, allow_nan=False)
    (folder / "summary.json").write_text(summary + "\n", encoding="utf-8")
    pq.write_table(metrics_table(outcome), folder / "metrics.parquet")
    pq.write_table(silos_table(outcome), folder / "silos.parquet")
    pq.write_table(ledger_table(outcome), folder / "ledger.parquet")
    pq.write_table(spend_table(outcome), folder / "spend.parquet")
    for variant in variants(outcome.resolved):
        save_file(_models(outcome, variant), folder / model_file(variant, outcome.main))
    draw(outcome, folder / "metrics.png")


SECRET = """\
# Keep the seed: whoever knows it, or guesses it (the default is 0), can remove the noise from all that was
# released. Share this file, and the directory that it is in, only with those who may see the records.
"""
"""Stands in a scenario that repeats noise."""


def _repeated(outcome: Outcome) -> str:
    scenario = outcome.resolved.scenario
    tree = scenario.model_dump(mode="json", exclude_none=True)
    head = (
        SECRET if outcome.main == "private" else "# No privacy: this run neither clipped nor added noise.\n"
    )
    return head + yaml.safe_dump(tree, sort_keys=False)


def model_file(variant: Variant, main: Variant) -> str:
    """Where a variant's models go: only private ones are in `model.safetensors`."""
    if variant == "private":
        return "model.safetensors"
    return "nonprivate_model.safetensors" if main == variant else "nonprivate_twin.safetensors"


def metrics_table(outcome: Outcome) -> pa.Table:
    """One row per evaluation, `Measurement`'s fields; simulation only."""
    numbers = [pa.float64()] * 2
    types = [pa.int64(), pa.string(), pa.int64(), *numbers, pa.int64(), pa.float64(), *numbers]
    marked = {
        "simulation_only": "made of test records, and excess_risk and gradient_mapping_sq of training ones"
    }
    schema = pa.schema(list(zip(Measurement._fields, types, strict=True)), metadata=marked)
    return pa.Table.from_pylist([row._asdict() for row in outcome.results.measurements], schema=schema)


def silos_table(outcome: Outcome) -> pa.Table:
    """One row per trial, variant and silo: the final model on that silo's test records; simulation only."""
    rows = [row for _, trial in sorted(outcome.results.trials.items()) for row in trial.silos]
    types = [pa.int64(), pa.string(), pa.string(), pa.float64(), pa.float64(), pa.int64()]
    fields = list(zip(SiloMeasurement._fields, types, strict=True))
    marked = pa.schema(fields, metadata={"simulation_only": "made of test records, which no silo releases"})
    return pa.Table.from_pylist([row._asdict() for row in rows], schema=marked)


def ledger_table(outcome: Outcome) -> pa.Table:
    """One row per trial, silo and round paid for: what was asked, and how many noisy answers it cost."""
    rows: dict[str, list[object]] = {
        "trial": [],
        "silo": [],
        "round": [],
        "releases": [],
        "broadcast_sha256": [],
    }
    plan = outcome.resolved.trace.plan
    releases = [plan.num_queries([r]) for r in range(len(plan.rounds))]
    for number, trial in sorted(outcome.results.trials.items()):
        for statement in trial.statements:
            rows["trial"] += [number] * len(statement.rounds)
            rows["silo"] += [statement.admitted.terms.name] * len(statement.rounds)
            rows["round"] += statement.rounds
            rows["releases"] += [releases[r] for r in statement.rounds]
            rows["broadcast_sha256"] += statement.digests
    return pa.table(rows)


def _models(outcome: Outcome, variant: Variant) -> dict[str, Tensor]:
    """The variant's final parameters in each finished trial, flat (d,)."""
    return {
        f"trial-{number}.{variant}": trial.models[variant].contiguous()
        for number, trial in sorted(outcome.results.trials.items())
    }
