"""Tiny scenarios, the command line on them, and sweeps whose results are made up."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from click.testing import Result
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.report.record import CellResult
from fedsim.simulation.sweeps.cell import Cell, CellOutcome

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


def changed(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with values replaced; `changes` are by dotted names, such as "data.rows"."""
    made = copy.deepcopy(dict(tree))
    for name, value in changes.items():
        *parents, last = name.split(".")
        branch = made
        for parent in parents:
            branch = branch[parent]
        branch[last] = value
    return made


def over(tree: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """The tree with these sections: one that has a name as it is, the fields of another over the tree's."""
    made = dict(tree)
    for section, given in sections.items():
        fields = isinstance(given, Mapping) and "name" not in given and isinstance(made.get(section), Mapping)
        made[section] = made[section] | given if fields else given
    return made


once = partial(over, BASE | {"trials": 1})
"""`BASE` with one trial, and other sections."""


FAIR = once(
    data={"name": "synthetic", "rows": 400, "features": 4, "groups": True},
    partition={"name": "iid", "num_partitions": 4},
    problem={
        "name": "logistic_regression",
        "silo_weights": "size",
        "fairness": {"notion": "demographic_parity", "weight": 0.01},
    },
    algorithm={"name": "fair_minibatch_sgd", "num_rounds": 5, "step_size": 1, "clip_norm": 1},
)
"""Fair training on records of two groups."""

SMALL = changed(
    BASE, {"algorithm.num_rounds": 6, "algorithm.step_size": 1.0, "privacy.epsilon": [1.0, 2.0, 4.0]}
)
"""A privacy budget for each silo."""

HOSTILE = (
    "<script>window.pwned = 1</script>",
    '"><img src=http://example.com/x.png onerror=window.pwned=1>',
    "$\\frac$ & {{ 7 * 7 }}",
    "a-very-long-name-of-an-institute-without-a-single-space-" * 3,
    "\u75c5\u9662",
)
"""Names of silos that a page must show as they are."""


def write(folder: Path, tree: object) -> Path:
    """The scenario as `folder`/scenario.yaml; text is written as it is."""
    path = folder / "scenario.yaml"
    path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree), encoding="utf-8")
    return path


def run(*arguments: object, **more: Any) -> Result:
    """What came of a command line; an exception that the command let through fails the test."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], **more)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def invoke(*arguments: object, code: int = 0, **more: Any) -> str:
    """The output of a command line that ends with this exit code."""
    result = run(*arguments, **more)
    assert result.exit_code == code, result.output
    return result.output


def refusal(*arguments: object) -> str:
    """The one line of a command line that is refused."""
    output = invoke(*arguments, code=2).strip()
    assert len(output.splitlines()) == 1, output
    assert output.startswith(("error: ", "refused: ")), output
    return output


def simulate(folder: Path, tree: dict[str, Any]) -> Path:
    """Run a scenario; its run directory."""
    invoke("simulate", write(folder, tree), "--out", folder / "run")
    return folder / "run"


@contextmanager
def edited(run: Path) -> Iterator[dict[str, Any]]:
    """The tree of a run directory's summary, which is written back after the block."""
    path = run / "summary.json"
    tree: dict[str, Any] = json.loads(path.read_text())
    yield tree
    path.write_text(json.dumps(tree))


def result(error: float = 0.1, train_loss: float | None = None) -> CellResult:
    """A cell's, made up."""
    return CellResult(error, error, train_loss, 1.0, "silo-0", 2.0, "share wrong", 0.01)


class FakeRunner:
    """Applies a function to each cell and remembers the cells."""

    def __init__(self, outcome: Callable[[Cell], CellOutcome]) -> None:
        self.outcome, self.cells = outcome, list[Cell]()

    def run(self, batches: Sequence[Sequence[Cell]], work: Any = None) -> Iterator[tuple[Cell, CellOutcome]]:
        for batch in batches:
            for cell in batch:
                self.cells.append(cell)
                yield cell, self.outcome(cell)


def grown(out: Path) -> bool:
    """Whether a sweep at work in a directory has kept some cells: no other process can open its record."""
    file = out / "record.sqlite"
    return file.exists() and file.stat().st_size > 20_000
