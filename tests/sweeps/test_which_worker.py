"""Records are prepared once where it can be helped: a worker goes on with those that it has."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

from support.sweep_helpers import BASE

from fedsim.scenario.load import parse
from fedsim.sweeps.cell import Cell, cell_of, records_key
from fedsim.sweeps.pool import Workers


class Actor:
    """Takes down what it is given; stands for a Ray actor, which does no more with it."""

    def __init__(self) -> None:
        self.trials: list[int] = []
        self.run = self

    def remote(self, cells: list[Cell]) -> object:
        self.trials.append(cells[0].trial)
        return object()


def test_no_two_workers_read_the_same_records_until_one_would_be_idle() -> None:
    cells = [cell_of(parse(copy.deepcopy(BASE)), trial, False) for trial in (0, 0, 1, 1, 1, 1, 2)]
    first, second = Actor(), Actor()
    workers: Any = Workers(2, None)
    workers._actors, workers._given = [first, second], [deque(), deque()]
    workers._waiting = deque((records_key(cell.scenario, cell.trial), [cell]) for cell in cells)
    for _ in range(4):
        workers._hand_out()
        for queue in filter(None, workers._given):
            queue.popleft()
    assert first.trials[:3] == [0, 0, 2]
    assert second.trials == [1, 1, 1]
    assert first.trials[3:] == [1]  # nothing else is left
    assert sorted(workers._homes.values()) == [0, 0, 1]
