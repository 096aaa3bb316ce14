"""How silos come to take part, and their effective number M: 1 / M = E[1 / M_r] (thesis Assumption 1.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RandomSize:
    """M_r uniform on {low, ..., high}, then a uniformly random set of so many silos."""

    low: int
    high: int


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


def mean_inverse(participants: Participants, num_silos: int) -> float:
    """E[1 / M_r] of a round that somebody attends: exact, and for a recorded attendance its average."""
    match participants:
        case None:
            return 1 / num_silos
        case RandomSize(low, high):
            return float(np.mean(1 / np.arange(low, high + 1)))
        case Available(probabilities):
            law = attendance_law(probabilities)
            return float(law[1:] @ (1 / np.arange(1, len(law))) / law[1:].sum())
        case Recorded(attendance):
            return float(np.mean([1 / len(members) for members in attendance]))
        case int():
            return 1 / participants


def attendance_law(probabilities: tuple[float, ...]) -> np.ndarray:
    """P(M_r = 0), ..., P(M_r = N) of independent attendance, the Poisson binomial law, by convolution."""
    law = np.ones(1)
    for p in probabilities:
        law = np.append(law * (1 - p), 0.0) + np.append(0.0, law * p)
    return law
