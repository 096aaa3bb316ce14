"""Silo sampling: the law of S_r and M_r, the effective number M of silos, and each silo's share in a mean.

The effective number is 1 / M = E[1 / M_r] (thesis Assumption 1.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError


@dataclass(frozen=True)
class RandomSize:
    """A uniformly random set of silos in each round, its size random too."""

    name: ClassVar[str] = "random_size"
    low: Annotated[
        int, Field(ge=1, alias="min_silos", description="least M_r: silos in a round are uniform on min..max")
    ]
    high: Annotated[int, Field(ge=1, alias="max_silos", description="largest M_r")]

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InputError("min_silos", self.low, f"at most max_silos, {self.high}")


@dataclass(frozen=True)
class Available:
    """Each silo is available independently, with its probability, in canonical order.

    An empty round is repeated and costs nothing. So the set has the law of independent attendance given that
    it is not empty.
    """

    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Recorded:
    """A recorded attendance: positions of the silos in each round, ascending; empty rounds are left out."""

    attendance: tuple[tuple[int, ...], ...]  # the sets, none empty
    repeat: bool  # whether the record starts again after its last set
    known: bool  # whether silos know it before admission, so that each plan holds only the silo's rounds
    source: str  # the file, for messages


Participants = None | int | RandomSize | Available | Recorded  # None: all; a number: M silos at random


def announced(participants: Participants) -> bool:
    """Whether a silo knows its rounds at admission; if not, its plan covers every round."""
    if isinstance(participants, Recorded):
        return participants.known
    return not isinstance(participants, Available)


def effective_m(participants: Participants, num_silos: int) -> float:
    """M = 1 / E[1 / M_r] over rounds that are not empty; for a recorded attendance the mean over its rounds.

    Exactly M where M_r is always M, and never above the largest M_r: the inverses are averaged relative to
    that one, since 1 / (1 / N) is below N for one N in fourteen. Exact up to rounding else.
    """
    sizes, chances = size_law(participants, num_silos)
    largest = float(sizes.max())
    return min(largest, largest / float(chances @ (largest / sizes) / chances.sum()))


def size_law(participants: Participants, num_silos: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of M_r, and their probabilities up to a common factor."""
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
    """N E[1{i in S_r} / M_r] of each silo i: the factor of p_i in the mean aggregate, (num_silos,).

    It is 1 where sets are uniformly random given their size, and then the aggregate is unbiased; it is larger
    for silos that are available more often. For a recorded attendance it is the mean over its rounds.
    """
    match participants:
        case Available(probabilities) if len(set(probabilities)) > 1:
            return _available_pull(np.array(probabilities))
        case Recorded():
            present = _incidence(participants, num_silos)
            return np.asarray((present * (num_silos / present.sum(axis=1, keepdims=True))).mean(axis=0))
    return np.ones(num_silos)


def _available_pull(p: np.ndarray) -> np.ndarray:
    """`pull` of independent attendance given a round that is not empty; M' is the number of other silos:

        E[1{i in S} / M] = p_i E[1 / (1 + M')] = p_i int_0^1 prod_{j != i} (1 - p_j + p_j t) dt.

    The integrand falls as exp(-(1 - t) sum p) from t = 1, so quadrature is by octaves of 1 - t.
    """
    found = np.zeros(len(p))
    nodes, weights = np.polynomial.legendre.leggauss(32)
    edges = 1 - np.append(0.5 ** np.arange(len(p).bit_length() + 5), 0.0)
    for low, high in pairwise(edges):
        for node, weight in zip(nodes, weights, strict=True):  # Gauss-Legendre, mapped to [low, high]
            logs = np.log1p(p * ((low + high + (high - low) * node) / 2 - 1))
            found += weight * (high - low) / 2 * np.exp(logs.sum() - logs)
    with np.errstate(divide="ignore"):  # a silo that is always available
        not_empty = -np.expm1(np.log1p(-p).sum())
    return np.asarray(len(p) * p * found / not_empty)


def attendance_law(probabilities: tuple[float, ...]) -> np.ndarray:
    """P(M_r = 0), ..., P(M_r = N) of independent attendance, the Poisson binomial law, by convolution."""
    chances = np.ones(1)
    for p in probabilities:
        chances = np.append(chances * (1 - p), 0.0) + np.append(0.0, chances * p)
    return chances


Law = tuple[tuple[int, float], ...]  # (m, P(M_r = m)) of every size m >= 1 of a round that is not empty


def law(participants: Participants, num_silos: int) -> Law:
    """The law of M_r."""
    sizes, chances = size_law(participants, num_silos)
    values, place = np.unique(sizes, return_inverse=True)
    share = np.bincount(place, chances / chances.sum())
    return tuple((m, p) for m, p in zip(values.tolist(), share.tolist(), strict=True) if p > 0)


def drawn_evenly(participants: Participants) -> bool:
    """Whether S_r is uniformly random given its size (thesis Assumption 1.4)."""
    if isinstance(participants, Available):
        return len(set(participants.probabilities)) == 1
    return not isinstance(participants, Recorded)


def planned_share(participants: Participants, num_silos: int) -> list[float]:
    """The share of all rounds that each silo's plan holds: its rounds if it knows them, else all."""
    if not announced(participants):
        return [1.0] * num_silos
    if isinstance(participants, Recorded):
        return (_incidence(participants, num_silos) > 0).mean(axis=0).tolist()  # type: ignore[no-any-return]
    return [sum(m * p for m, p in law(participants, num_silos)) / num_silos] * num_silos


def mean_shares(participants: Participants, num_silos: int) -> list[float]:
    """E[1{i in S_r} / M_r^2] of each silo: the share of its variance in an unweighted mean over S_r.

    They sum to E[1 / M_r] = 1 / M. Exact where silos are drawn evenly and for a record; with unequal
    availability 1 / M is divided in proportion to it.
    """
    if isinstance(participants, Recorded):
        present = _incidence(participants, num_silos)
        return (present / present.sum(axis=1, keepdims=True) ** 2).mean(axis=0).tolist()  # type: ignore[no-any-return]
    total = 1 / effective_m(participants, num_silos)
    often = participants.probabilities if isinstance(participants, Available) else (1.0,) * num_silos
    return [total * each / sum(often) for each in often]


def _incidence(participants: Recorded, num_silos: int) -> np.ndarray:
    present = np.zeros((len(participants.attendance), num_silos))
    for row, members in zip(present, participants.attendance, strict=True):
        row[list(members)] = 1
    return present
