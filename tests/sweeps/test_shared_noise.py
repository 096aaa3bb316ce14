"""Which cells of a sweep share noise, and that what is composed never does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations as pairs
from pathlib import Path
from typing import Any

import pytest
from support.run_keys import OTHER, TREE, changed, of_batch, of_run, recorded, twins

from fedsim.results.record import CellResult, Record
from fedsim.scenario.load import parse
from fedsim.simulation.failures import Failure
from fedsim.sweeps.cell import Cell, cell_of
from fedsim.sweeps.engine import Engine, Event
from fedsim.sweeps.job import Place, job_of
from fedsim.sweeps.run import failure_file, write_failure
from fedsim.sweeps.run_cells import run_batch


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """See `run_keys.recorded`."""
    return recorded(monkeypatch)


def cells_of(*changes: Mapping[str, Any]) -> list[Cell]:
    return [cell_of(parse(twins(changed(TREE, one))), 0, False) for one in changes]


def test_cells_that_fold_share_their_noise_and_are_what_they_are_alone(keys: list[int]) -> None:
    cells = cells_of({}, OTHER["clip"], OTHER["step size"], OTHER["epsilon"])
    together = of_batch(cells, keys)
    assert len(together) == 3
    folded = run_batch(cells)
    for cell, found in zip(cells, folded, strict=True):
        assert of_batch([cell], keys) == together
        (alone,) = run_batch([cell])
        assert isinstance(alone, CellResult)
        assert isinstance(found, CellResult)
        assert alone.loss == pytest.approx(found.loss, rel=1e-9)
    assert len({one.loss for one in folded if isinstance(one, CellResult)}) == 4


def test_only_cells_that_fold_share(keys: list[int]) -> None:
    shared = of_batch(cells_of({}), keys)
    for name in set(OTHER) - {"clip", "step size", "epsilon", "another silo's epsilon"}:
        assert shared.isdisjoint(of_batch(cells_of(OTHER[name]), keys)), name


@pytest.mark.parametrize(
    ("changes", "equal"),
    [
        ({}, False),
        ({"privacy": {"epsilon": "unlimited", "calibration": "sigma", "noise_multiplier": 3.0}}, True),
    ],
)
def test_simulate_shares_with_a_cell_only_what_is_the_same_run(
    changes: dict[str, Any], equal: bool, keys: list[int], tmp_path: Path
) -> None:
    """A failed cell's file says which of the two it is."""
    tree = twins(changed(TREE, changes))
    (cell,) = cells_of(changes)
    own, alone = of_batch([cell], keys), of_run(tree, keys)
    assert own == alone if equal else own.isdisjoint(alone)
    assert cell.repeated_by_simulate == equal
    failure = Failure("failed", "of noise")
    failed = Event(Place(0, 0, 0), "0" * 64, cell, failure, False)
    write_failure(failed, failure, "title", tmp_path)
    said = failure_file(failed, tmp_path).read_text()
    assert ("draws noise of its own" in said) == (not equal)
    assert "draw the noise again" in said


TUNED: dict[str, Any] = changed(TREE, {"data.rows": 300, "report": {"nonprivate_twin": False}})
GRID = [0.05, 1.0]


def of_selection(keys: list[int], folder: Path, **changes: Any) -> list[tuple[Cell, set[int]]]:
    """Each cell that a private selection runs, and the keys of its run and its score."""
    tune = {
        "grid": {"algorithm.step_size": GRID},
        "criterion": "private_error",
        "repetitions": 2,
        "private": {"fraction": 0.4},
    }
    tree = TUNED | {"sweep": {"tune": tune | changes}}
    found: list[tuple[Cell, set[int]]] = []

    class Watched:
        def run(self, batches: Any) -> Iterator[tuple[Cell, Any]]:
            for batch in batches:
                for cell in batch:
                    keys.clear()
                    (outcome,) = run_batch([cell])
                    found.append((cell, set(keys)))
                    yield cell, outcome

    Engine(job_of(tree), Record()).run(Watched(), lambda _: None)
    return found


def test_private_tuning_shares_noise_with_nothing(keys: list[int], tmp_path: Path) -> None:
    found = of_selection(keys, tmp_path)
    tuning = [own for cell, own in found if cell.scored]
    assert len(tuning) == 4
    assert all(len(own) == 3 for own in tuning)  # one key a silo, and a purpose for each of noise and score
    assert all(a.isdisjoint(b) for a, b in pairs([own for _, own in found], 2))


SECOND: dict[str, dict[str, Any]] = {
    "another candidate": {"grid": {"algorithm.step_size": [GRID[0], 0.5]}},
    "more repetitions": {"repetitions": 3},
}


@pytest.mark.parametrize("changes", SECOND.values(), ids=SECOND)
def test_a_second_selection_on_the_same_records_draws_noise_of_its_own(
    changes: dict[str, Any], keys: list[int], tmp_path: Path
) -> None:
    """Also for a candidate that both have, at equal noise multipliers and in equal trials."""
    first = of_selection(keys, tmp_path / "first")
    second = of_selection(keys, tmp_path / "second", **changes)
    candidates = [[own for cell, own in found if cell.scored] for found in (first, second)]
    assert all(a.isdisjoint(b) for a in candidates[0] for b in candidates[1])
    assert of_selection(keys, tmp_path / "again") == first
