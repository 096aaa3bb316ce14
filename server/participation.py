"""Who takes part in which round (thesis Assumption 1.4), from a public seed or from a record of it.

No privacy is ever claimed from it: a silo's budget holds whichever silos the server picks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.seeds import generator
from fedsim.theory.participants import Available, Participants, RandomSize, Recorded, announced

Schedule = list[list[int]]
"""For each round, the participating silos' positions in ascending order; never none."""


def schedule(
    num_silos: int, participants: Participants, holds: Sequence[bool], seed: int, trial: int
) -> Schedule:
    """Who answers in each round. InputError if a record of attendance is too short.

    Args:
        participants: None for all, M for a uniformly random set of so many, or another way.
        holds: for each round, whether it keeps the silos of the round before.
    """
    if participants is None:
        return [list(range(num_silos))] * len(holds)
    if isinstance(participants, Recorded):
        return _recorded(participants, holds)
    rng = generator(seed, "participation", trial)
    rounds: Schedule = []
    for hold in holds:
        if hold and rounds:
            rounds.append(rounds[-1])
        elif isinstance(participants, Available):
            rounds.append(_available(np.array(participants.probabilities), rng))
        else:
            size = participants
            if isinstance(size, RandomSize):
                size = int(rng.integers(size.low, size.high + 1))
            rounds.append(sorted(rng.choice(num_silos, size, replace=False).tolist()))
    return rounds


def _available(probabilities: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Independent attendance given that some silo is present, drawn at once however rare that is.

    The first to come, in canonical order, is i with probability proportional to p_i prod_{j<i} (1 - p_j);
    those behind i come independently.
    """
    law = probabilities * np.cumprod(np.append(1.0, 1 - probabilities[:-1]))
    first = int(rng.choice(len(law), p=law / law.sum()))
    behind = np.flatnonzero(rng.random(len(law)) < probabilities)
    return [first, *behind[behind > first].tolist()]


def _recorded(record: Recorded, holds: Sequence[bool]) -> Schedule:
    """The record's sets in turn. Where an algorithm holds its silos, those of the held ones that are there
    answer, and the server waits where none is: what a record says is not overruled.
    """
    sets = iter(cycle(record.attendance) if record.repeat else record.attendance)
    rounds: Schedule = []
    held: set[int] = set()
    for hold in holds:
        keep = held if hold and rounds else None
        kept = ([member for member in members if keep is None or member in keep] for members in sets)
        there = next(filter(None, kept), None)
        if there is None:
            hint = f"is too short: its {len(record.attendance)} rounds with a silo in them serve "
            hint += f"{len(rounds)} of the run's {len(holds)} rounds; give a longer one or set repeat: true"
            raise InputError("scenario.participation.path", record.source, hint)
        held = held if keep is not None else set(there)
        rounds.append(there)
    return rounds


def admitted_rounds(participants: Participants, rounds: Schedule, num_silos: int) -> list[Sequence[int]]:
    """The rounds in each silo's plan: its own if known at admission, else all that might be."""
    if announced(participants):
        return rounds_of_silos(rounds, num_silos)
    return [range(len(rounds))] * num_silos


def rounds_of_silos(rounds: Schedule, num_silos: int) -> list[Sequence[int]]:
    """For each silo, the rounds it takes part in, ascending."""
    if all(len(members) == num_silos for members in rounds):
        return [range(len(rounds))] * num_silos
    own: list[list[int]] = [[] for _ in range(num_silos)]
    for r, members in enumerate(rounds):
        for member in members:
            own[member].append(r)
    return list(own)
