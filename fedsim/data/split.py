"""Training and test records of one silo."""

from __future__ import annotations

from fedsim.data.source import Ints
from fedsim.protocol.seeds import generator


def training_size(records: int, test_fraction: float) -> int:
    """n - round(test_fraction n), and at least 1."""
    return max(1, records - round(test_fraction * records))


def split(rows: Ints, test_fraction: float, seed: int, trial: int, silo: str) -> tuple[Ints, Ints]:
    """Training rows and test rows, drawn for this silo alone: other silos' presence changes nothing."""
    order = generator("split", seed, trial, silo).permutation(rows)
    train = training_size(len(rows), test_fraction)
    order[:train].sort()
    order[train:].sort()
    return order[:train], order[train:]
