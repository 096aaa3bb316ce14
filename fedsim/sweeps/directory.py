"""A sweep's directory: its cells, which stay, and its results, each replaced as a whole."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from fedsim.common.errors import InputError
from fedsim.common.files import remove_drafts, whole_file, whole_files
from fedsim.results.write import SECRET
from fedsim.sweeps.cells import Cell, Failure, repeated_by_simulate
from fedsim.sweeps.page import figure_name, write_page
from fedsim.sweeps.summary import Sweep, cells_table, summarise

CELLS, FAILED, LOCK = "cells", "failed", ".lock"


@contextmanager
def claimed(directory: Path) -> Iterator[Path]:
    """Make the directory, or go on with the sweep that it holds; nobody else may meanwhile.

    Raises:
        InputError: it holds something else, is in use, or cannot be made.
    """
    place = directory.resolve()
    if place.is_file() or (place.is_dir() and any(place.iterdir()) and not (place / CELLS).is_dir()):
        raise InputError(
            "--out", str(directory), "holds a run or other files, and no sweep; name another one"
        )
    try:
        (place / CELLS).mkdir(parents=True, exist_ok=True)
        handle = os.open(place / LOCK, os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise InputError("--out", str(directory), f"cannot be written ({error.strerror})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError("--out", str(directory), "another sweep is at work in it; wait for it") from None
        remove_drafts(place / CELLS)
        for old in (place / FAILED).glob("*.yaml"):  # they are run again
            old.unlink()
        yield place
    finally:
        os.close(handle)


def write(sweep: Sweep, tree: Mapping[str, Any], directory: Path) -> list[str]:
    """Write or replace the results; returns the names of the files."""
    summary = summarise(sweep)
    text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    scenario = SECRET + yaml.safe_dump(dict(tree), sort_keys=False)
    with whole_files(directory) as draft:
        (draft / "scenario.yaml").write_text(scenario, encoding="utf-8")
        (draft / "summary.json").write_text(text, encoding="utf-8")
        pq.write_table(cells_table(sweep), draft / "cells.parquet")
    write_page(directory)
    name = figure_name(summary)
    return ["report.html", "scenario.yaml", "summary.json", "cells.parquet", f"{name}.png", f"{name}.svg"]


def write_failure(cell: Cell, failure: Failure, title: str, key: str, directory: Path) -> Path:
    """A scenario that `fedsim simulate` runs to see the failure again."""
    tree = {**cell.scenario, "name": f"failed: {title}", "trials": cell.trial + 1}
    folder = directory / FAILED
    folder.mkdir(exist_ok=True)
    path = folder / f"{key[:16]}.yaml"
    head = f"# Trial {cell.trial} failed ({failure.kind}).\n# " + "\n# ".join(failure.message.splitlines())
    if not repeated_by_simulate(cell):
        head += (
            "\n# In the sweep its noise had another key: simulate draws noise of its own, and may not fail."
        )
    seed = "" if cell.scenario["privacy"].get("mechanism") == "none" else SECRET
    text = f"{head}\n# fedsim simulate {path.name}\n{seed}{yaml.safe_dump(tree, sort_keys=False)}"
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path
