"""What a person sees while a sweep runs."""

from __future__ import annotations

from typing import Any

import pytest
from support.sweep_helpers import result

from fedsim.api import sweep
from fedsim.simulation.failures import Failure
from fedsim.sweeps.cell import Cell
from fedsim.sweeps.engine import Event
from fedsim.sweeps.job import Place, job_of

CELL = Cell({}, 0, False)


def test_the_board_counts_and_names_the_best_private_mean_and_the_time_left(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now)
    board = sweep._Board(job_of(base | {"trials": 3, "sweep": {"grid": {"privacy.epsilon": [1, 2]}}}))
    board.add(Event(Place(0, 0, 0), "key", CELL, result(0.4), True))
    board.add(Event(Place(2, 0, 0), "key", CELL, result(0.1), False))  # the twin
    assert board.seconds_left() is None
    for trial, error in enumerate((0.1, 0.5)):  # lucky once
        now += 3.0
        board.add(Event(Place(1, 0, trial), "key", CELL, result(error + 0.2), False))
    now += 3.0
    board.add(Event(Place(0, 0, 1), "key", CELL, Failure("refused", "no"), False))
    assert (board.done, board.cached, board.failed) == (5, 1, 1)
    assert board.seconds_left() == pytest.approx(4 * 3.0)
    assert board.text() == "1 failed; best so far 0.4000: epsilon=1"
