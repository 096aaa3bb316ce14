"""Which cells one worker runs in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from fedsim.common.canonical import canonical
from fedsim.sweeps.cell import Cell
from fedsim.sweeps.kept import data_key

T = TypeVar("T")

TOGETHER = 64
"""Most cells in a batch: where folding saves no more. An interruption loses the batches at work."""

_TRIALS = 8  # most trials in a batch: each brings its own records


def batches(cells: Iterable[Cell], most: int = TOGETHER) -> list[list[Cell]]:
    """Cells that fold together, as every setting in every trial, the others alone; by their data."""
    alike: dict[str, list[Cell]] = defaultdict(list)
    alone = []
    for cell in sorted(cells, key=lambda cell: (data_key(cell.scenario), cell.trial)):
        key = cell.fold_key
        if key is None:
            alone.append([cell])
        else:
            alike[f"{key} {cell.train_loss}"].append(cell)
    return [batch for group in alike.values() for batch in _grids(group, most)] + alone


def _grids(cells: list[Cell], most: int) -> list[list[Cell]]:
    """Cut into batches that are products: trials with the same settings together."""
    by_trial: dict[int, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        by_trial[cell.trial][canonical(cell.scenario)] = cell
    same: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for trial, held in by_trial.items():
        same[tuple(sorted(held))].append(trial)
    found: list[list[Cell]] = []
    for settings, trials in same.items():
        for some in _pieces(settings, most):
            together = max(1, min(_TRIALS, most // len(some)))
            found += [
                [by_trial[trial][setting] for setting in some for trial in few]
                for few in _pieces(trials, together)
            ]
    return found


def _pieces(items: Sequence[T], most: int) -> list[Sequence[T]]:
    return [items[k : k + most] for k in range(0, len(items), most)]
