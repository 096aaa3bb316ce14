"""Which cells one worker runs in one call."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from fedsim.runtime.cells import Cell, data_key
from fedsim.sweep.keys import canonical

TOGETHER = 1
"""Most cells in a batch. A batch is kept as a whole when it is done, so that more of them would be run
again after an interruption; a call costs under a millisecond, which is little beside a cell."""


def batches(cells: Iterable[Cell], most: int = TOGETHER) -> list[list[Cell]]:
    """Cells of equal records that differ in numbers only, `most` at a time; equal records are adjacent."""
    found = []
    for _, group in groupby(sorted(cells, key=_order), key=_order):
        alike = list(group)
        found += [alike[k : k + most] for k in range(0, len(alike), most)]
    return found


def _order(cell: Cell) -> tuple[str, int, str]:
    return data_key(cell.scenario), cell.trial, kind(cell)


def kind(cell: Cell) -> str:
    """The scenario without the numbers that change no shape: step sizes, clips, epsilons, ..."""
    parts = {key: value for key, value in cell.scenario.items() if key not in ("data", "partition", "seed")}
    return canonical(_without_floats(parts))


def _without_floats(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_floats(item) for item in value]
    return "number" if isinstance(value, float) else value
