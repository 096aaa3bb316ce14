"""Additive shares modulo 2^64: two parties hold a sum together that neither of them holds alone.

An integer x is split into a uniform word u and x - u. Either of them alone is uniform whatever x is, so that
an aggregator who has one share of every silo, and their sum, has learnt nothing; both sums added are the sum
of all x modulo 2^64, read as two's complement. Words are uniform because they come from the operating
system's entropy, and only in so far as it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def split(counts: Counts) -> tuple[Words, Words]:
    """Two shares of `counts`, int64 of any shape; each of the same shape, each alone uniform."""
    mask = np.frombuffer(os.urandom(8 * counts.size), np.uint64).reshape(counts.shape)
    return mask, counts.view(np.uint64) - mask


def add(shares: Sequence[Words] | Words) -> Words:
    """The sum modulo 2^64 over the first axis: one party's shares of silos (silos, ...) to (...)."""
    summed: Words = np.add.reduce(np.asarray(shares, np.uint64), axis=0)
    return summed


def total(server: Words, shuffler: Words) -> Counts:
    """What both parties' sums say together: int64, right if the true total is in [-2^63, 2^63)."""
    return (server + shuffler).view(np.int64)
