"""How silos come to take part, and their effective number M: 1 / M = E[1 / M_r] (thesis Assumption 1.4)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError


@dataclass(frozen=True)
class RandomSize:
    """A uniformly random set of silos in each round, its size random too.

    Raises:
        InputError: the least size is above the largest.
    """

    name: ClassVar[str] = "random_size"
    low: Annotated[
        int,
        Field(ge=1, alias="min_silos", description="least M_r: silos in a round are uniform on min..max"),
    ]
    high: Annotated[int, Field(ge=1, alias="max_silos", description="largest M_r")]

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InputError("min_silos", self.low, f"at most max_silos, {self.high}")


@dataclass(frozen=True)
class Available:
    """Each silo is there on its own with its probability, in canonical order.

    A round that nobody attends is no round: the server asks again, which costs nobody anything. So the set
    has the law of independent attendance given that it is not empty.
    """

    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Recorded:
    """Who was there, one ascending set of positions after the other; sets that nobody is in are left out.

    Args:
        attendance: the sets, none empty.
        repeat: begin again after the last one.
        known: the silos know it before admission, so that each one's plan holds only its own rounds.
        source: the file, for messages.
    """

    attendance: tuple[tuple[int, ...], ...]
    repeat: bool
    known: bool
    source: str


Participants = None | int | RandomSize | Available | Recorded
"""None: all silos; a number: a uniformly random set of M silos."""


def announced(participants: Participants) -> bool:
    """Whether a silo knows its own rounds at admission; if not, its plan covers every round."""
    if isinstance(participants, Recorded):
        return participants.known
    return not isinstance(participants, Available)


def effective_m(participants: Participants, num_silos: int) -> float:
    """M = 1 / E[1 / M_r] over rounds that somebody attends; of a recorded attendance its average.

    Exactly M where M_r is always M, and never above the largest M_r: the inverses are averaged relative to
    that one, since 1 / (1 / N) is below N for one N in fourteen. Exact up to rounding else.
    """
    sizes, law = size_law(participants, num_silos)
    largest = float(sizes.max())
    return min(largest, largest / float(law @ (largest / sizes) / law.sum()))


def size_law(participants: Participants, num_silos: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of M_r, and how likely each is up to a common factor."""
    match participants:
        case None:
            sizes = np.array([num_silos])
        case int():
            sizes = np.array([participants])
        case RandomSize(low, high):
            sizes = np.arange(low, high + 1)
        case Recorded(attendance):
            sizes = np.array([len(members) for members in attendance])
        case Available(probabilities):
            return np.arange(1, num_silos + 1), attendance_law(probabilities)[1:]
    return sizes, np.ones(len(sizes))


def pull(participants: Participants, num_silos: int) -> np.ndarray:
    """N E[1{i in S_r} / M_r] of each silo i: by how much its p_i counts in the mean aggregate, (num_silos,).

    One where sets are uniformly random given their size, and then the aggregate is unbiased; larger for
    those that come more often. Of a recorded attendance its average.
    """
    match participants:
        case Available(probabilities) if len(set(probabilities)) > 1:
            return _available_pull(np.array(probabilities))
        case Recorded(attendance):
            found = np.zeros(num_silos)
            for members in attendance:
                found[list(members)] += num_silos / len(members)
            return found / len(attendance)
    return np.ones(num_silos)


def _available_pull(p: np.ndarray) -> np.ndarray:
    """Of independent attendance given that somebody comes; M' is the number of the others:

        E[1{i in S} / M] = p_i E[1 / (1 + M')] = p_i int_0^1 prod_{j != i} (1 - p_j + p_j t) dt.

    The integrand falls as exp(-(1 - t) sum p) from t = 1, so quadrature is by octaves of 1 - t.
    """
    found = np.zeros(len(p))
    nodes, weights = np.polynomial.legendre.leggauss(32)
    edges = 1 - np.append(0.5 ** np.arange(len(p).bit_length() + 5), 0.0)
    for low, high in pairwise(edges):
        for node, weight in zip(nodes, weights, strict=True):
            logs = np.log1p(p * ((low + high + (high - low) * node) / 2 - 1))
            found += weight * (high - low) / 2 * np.exp(logs.sum() - logs)
    with np.errstate(divide="ignore"):  # somebody who always comes
        somebody = -np.expm1(np.log1p(-p).sum())
    return np.asarray(len(p) * p * found / somebody)


def attendance_law(probabilities: tuple[float, ...]) -> np.ndarray:
    """P(M_r = 0), ..., P(M_r = N) of independent attendance, the Poisson binomial law, by convolution."""
    law = np.ones(1)
    for p in probabilities:
        law = np.append(law * (1 - p), 0.0) + np.append(0.0, law * p)
    return law
