"""Which of a silo's records train and which test, and which it puts aside to tune with.

With a reserve, a silo permutes its records once, by a permutation that depends on no value and no trial. The
first h = round(fraction n / 2) train candidates, the next h score them. A run on the rest divides it anew in
every trial. So a record is for ever in one of three parts: to train candidates, to score them, or the rest.
Sizes are functions of n and the fraction, hence public.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.common.seeds import generator
from fedsim.data.source import Ints


class Reserve(Section):
    """Part of each silo's records that is put aside, the same in every trial."""

    fraction: float = Field(gt=0, lt=1, description="part of each silo's records that is put aside")
    use: Literal["rest", "reserved"] = Field(
        "rest",
        description="rest: run without what is put aside; reserved: on it alone, half to train, half to test",
    )


def training_records(records: int, test_fraction: float, reserve: Reserve | None, silo: str) -> int:
    """How many of a silo's records train.

    Raises:
        InputError: the silo cannot put aside two records and keep one.
    """
    if reserve is None:
        return training_size(records, test_fraction)
    half = _half(records, reserve.fraction, silo)
    return half if reserve.use == "reserved" else training_size(records - 2 * half, test_fraction)


def divide(
    rows: Ints, test_fraction: float, reserve: Reserve | None, seed: int, trial: int, silo: str
) -> tuple[Ints, Ints]:
    """Training rows and test rows of one silo in one trial; errors as `training_records`."""
    if reserve is None:
        return split(rows, test_fraction, seed, trial, silo)
    half = _half(len(rows), reserve.fraction, silo)
    parts = np.split(generator("reserve", seed, silo).permutation(rows), [half, 2 * half])
    train, score, rest = (np.sort(part) for part in parts)
    return (train, score) if reserve.use == "reserved" else split(rest, test_fraction, seed, trial, silo)


def split(rows: Ints, test_fraction: float, seed: int, trial: int, silo: str) -> tuple[Ints, Ints]:
    """Training rows and test rows, drawn for this silo alone: other silos' presence changes nothing."""
    order = generator("split", seed, trial, silo).permutation(rows)
    train = training_size(len(rows), test_fraction)
    order[:train].sort()
    order[train:].sort()
    return order[:train], order[train:]


def training_size(records: int, test_fraction: float) -> int:
    """n - round(test_fraction n), and at least 1.

    >>> training_size(10, 0.25), training_size(1, 0.99)
    (8, 1)
    """
    return max(1, records - round(test_fraction * records))


def _half(records: int, fraction: float, silo: str) -> int:
    half = round(fraction * records / 2)
    if half < 1 or records - 2 * half < 1:
        hint = (
            f"silo {silo!r} would put aside {2 * half} of its {records} records; at least 2 are needed, "
            "one to train and one to score with, and 1 must be left"
        )
        raise InputError("scenario.data.reserve.fraction", fraction, hint)
    return half
