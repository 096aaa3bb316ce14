"""What participation means to a theorem: the law of M_r, and how a silo's noise enters a round's mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.theory.participants import (
    Available,
    Participants,
    Recorded,
    announced,
    effective_m,
    size_law,
)

Law = tuple[tuple[int, float], ...]
"""(m, P(M_r = m)) of every size that a round can have, none 0; of one that somebody attends."""


def law(participants: Participants, num_silos: int) -> Law:
    """The law of M_r."""
    sizes, chances = size_law(participants, num_silos)
    values, place = np.unique(sizes, return_inverse=True)
    share = np.bincount(place, chances / chances.sum())
    return tuple((m, p) for m, p in zip(values.tolist(), share.tolist(), strict=True) if p > 0)


def drawn_evenly(participants: Participants) -> bool:
    """Whether S_r is uniformly random given its size, as thesis Assumption 1.4 has it."""
    if isinstance(participants, Available):
        return len(set(participants.probabilities)) == 1
    return not isinstance(participants, Recorded)


def planned_share(participants: Participants, num_silos: int) -> list[float]:
    """The part of all rounds that each silo plans for: those it is in if it knows them, else all."""
    if not announced(participants):
        return [1.0] * num_silos
    if isinstance(participants, Recorded):
        return (_incidence(participants, num_silos) > 0).mean(axis=0).tolist()  # type: ignore[no-any-return]
    return [sum(m * p for m, p in law(participants, num_silos)) / num_silos] * num_silos


def mean_shares(participants: Participants, num_silos: int) -> list[float]:
    """E[1{i in S_r} / M_r^2] of each silo: the share of its own variance in a plain mean over S_r.

    They sum to E[1 / M_r] = 1 / M. Exact where silos are drawn evenly and for a record; with unequal
    availability 1 / M is divided in proportion to it.
    """
    if isinstance(participants, Recorded):
        present = _incidence(participants, num_silos)
        return (present / present.sum(axis=1, keepdims=True) ** 2).mean(axis=0).tolist()  # type: ignore[no-any-return]
    total = 1 / effective_m(participants, num_silos)
    often: Sequence[float] = [1.0] * num_silos
    if isinstance(participants, Available):
        often = participants.probabilities
    return [total * each / sum(often) for each in often]


def _incidence(participants: Recorded, num_silos: int) -> np.ndarray:
    present = np.zeros((len(participants.attendance), num_silos))
    for row, members in zip(present, participants.attendance, strict=True):
        row[list(members)] = 1
    return present
