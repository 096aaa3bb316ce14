"""Write the data of a run into a directory."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from safetensors.torch import save

from fedsim.common.yaml_file import text, value
from fedsim.results.collected import Run, scenario_tree
from fedsim.results.model_file import write_trained
from fedsim.results.outcome import Deployed, Outcome
from fedsim.results.summary import FILE
from fedsim.scenario.load import anchored, relative

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
    for name in ("metrics", "silos", "baselines", "calibration", "ledger", "clipping", "spend"):
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
