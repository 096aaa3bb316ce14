"""A sweep's directory: its cells, which stay, and its results, each replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.common.errors import InputError
from fedsim.common.files import unwritable, whole_file, whole_files
from fedsim.common.serialise import canonical, finite, to_yaml
from fedsim.mechanisms.registry import NONE
from fedsim.report.sweep_page import figure_name, write_page
from fedsim.report.sweep_summary import CELLS, SweepSummary
from fedsim.results.record import Record
from fedsim.results.run_directory import SECRET
from fedsim.results.summary import FILE
from fedsim.scenario.load import relative
from fedsim.scenario.metric import BY_SKLEARN
from fedsim.simulation.failures import Failure
from fedsim.sweeps.engine import Event, Results, Row
from fedsim.sweeps.job import Job

FAILED = "failed"


@contextmanager
def opened(directory: Path, tell: Callable[[str], None]) -> Iterator[Record]:
    """The record of a new directory, or of that of an earlier sweep to continue it; locked inside the block.

    Args:
        directory: of the sweep.
        tell: told of damaged entries, which are run again.

    Raises:
        InputError: it holds something else, is in use, or cannot be made.
    """
    place = directory.resolve()
    if place.is_file() or (place.is_dir() and any(place.iterdir()) and not (place / CELLS).is_file()):
        raise InputError(
            "--out", str(directory), "holds a run or other files, and no sweep; name another one"
        )
    with ExitStack() as stack:
        try:
            place.mkdir(parents=True, exist_ok=True)
            record = stack.enter_context(Record.open(place / CELLS, tell, durable=False))
        except BlockingIOError:
            hint = "another sweep is at work in it; wait for it"
            raise InputError("--out", str(directory), hint) from None
        except OSError as error:
            raise unwritable(directory, error) from None
        for old in (place / FAILED).glob("*.yaml"):  # they are run again
            old.unlink()
        yield record


def write(job: Job, results: Results, summary: SweepSummary, directory: Path) -> list[str]:
    """Write or replace the results; returns the names of the files."""
    scenario = SECRET + to_yaml(relative(job.tree, directory))
    with whole_files(directory) as draft:
        (draft / "scenario.yaml").write_text(scenario, encoding="utf-8")
        (draft / FILE).write_text(summary.json_text() + "\n", encoding="utf-8")
        pq.write_table(cells_table(job, results), draft / "cells.parquet")
    for event, failure in results.failures:
        write_failure(event, failure, job.title(event.place), directory)
    write_page(directory)
    name = figure_name(summary)
    return ["report.html", "scenario.yaml", FILE, "cells.parquet", f"{name}.png", f"{name}.svg"]


def write_failure(event: Event, failure: Failure, title: str, directory: Path) -> None:
    """Write a scenario that `fedsim simulate` runs to see the failure again."""
    cell, path = event.cell, failure_file(event, directory)
    tree = {**cell.scenario, "name": f"failed: {title}", "trials": cell.trial + 1}
    path.parent.mkdir(exist_ok=True)
    head = f"# Trial {cell.trial} failed ({failure.kind}).\n# " + "\n# ".join(failure.message.splitlines())
    if not cell.repeated_by_simulate:
        head += (
            "\n# In the sweep its noise had another key: simulate draws noise of its own, and may not fail."
        )
    seed = "" if cell.scenario["privacy"].get("mechanism") == NONE.name else SECRET
    text = f"{head}\n# fedsim simulate {path.name}\n{seed}{to_yaml(relative(tree, path.parent))}"
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def failure_file(event: Event, directory: Path) -> Path:
    """Where the scenario of a failed cell is in a sweep's directory."""
    return directory / FAILED / f"{event.key[:16]}.yaml"


def cells_table(job: Job, results: Results) -> pa.Table:
    """Varied and chosen fields as columns, then what was measured."""
    rows = [_row(job, row) for row in results.rows]
    names = list(rows[0]) if rows else []
    return pa.table({name: _column([row[name] for row in rows]) for name in names})


def _row(job: Job, row: Row) -> dict[str, Any]:
    combination, result = job.combinations[row.place.combination], row.result
    picked = combination.candidates[row.place.candidate].chosen
    return {
        **{field: combination.varied.get(field) for field in job.varied},
        **{field: picked.get(field) for field in job.tuned},
        "private": combination.private,
        "trial": row.place.trial,
        "error": result.error,
        "loss": result.loss,
        **{name: result.more[name] for name in BY_SKLEARN if name in result.more},
        "epsilon_guaranteed": finite(result.epsilon),
        "worst_silo": result.silo if combination.private else None,
        "noise_multiplier": result.noise_multiplier,
        "seconds": result.seconds,
        "cached": row.cached,
        "key": row.key,
    }


def _column(values: Sequence[Any]) -> pa.Array:
    """Values of one type as they are; whole sections, and a mixture, as texts."""
    try:
        if not any(isinstance(value, dict | list) for value in values):
            return pa.array(values)
    except pa.ArrowException:
        pass
    return pa.array([v if v is None or isinstance(v, str) else canonical(v) for v in values], pa.string())
