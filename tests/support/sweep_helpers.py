"""A small scenario with a sweep, as plain mappings, and a runner that makes results up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.results.record import CellResult
from fedsim.sweeps.cell import Cell, CellOutcome

BASE: dict[str, Any] = {
    "seed": 0,
    "name": "small",
    "trials": 2,
    "data": {"name": "synthetic", "rows": 120, "features": 3},
    "partition": {"name": "iid", "num_partitions": 3},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 4, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0},
    "runtime": "inprocess",
}


def result(error: float = 0.1, train_loss: float | None = None) -> CellResult:
    return CellResult(error, error, train_loss, 1.0, "silo-0", 2.0, "share wrong", 0.01)


class FakeRunner:
    """Applies a function to each cell and remembers the cells."""

    def __init__(self, outcome: Callable[[Cell], CellOutcome]) -> None:
        self.outcome, self.cells = outcome, list[Cell]()

    def run(self, batches: Sequence[Sequence[Cell]]) -> Iterator[tuple[Cell, CellOutcome]]:
        for batch in batches:
            for cell in batch:
                self.cells.append(cell)
                yield cell, self.outcome(cell)


def grown(out: Path) -> bool:
    """Whether a sweep at work in a directory has kept some cells: no other process can open its record."""
    file = out / "cells.sqlite"
    return file.exists() and file.stat().st_size > 20_000


def invoke(*arguments: object) -> tuple[int, str]:
    """The command line's exit code and output."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output
