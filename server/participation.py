"""Who takes part in which round: drawn from a public seed before admission (thesis Assumption 1.4).

No privacy is ever claimed from it: a silo's budget holds whoever the server picks.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.protocol.seeds import generator

Schedule = list[list[int]]
"""For each round, the participating silos' positions in ascending order."""


def schedule(num_silos: int, active: int | None, holds: Sequence[bool], seed: int, trial: int) -> Schedule:
    """All silos in every round, or a uniformly random set of `active` of them.

    Args:
        num_silos: N.
        active: M, or None for all.
        holds: for each round, whether it keeps the silos of the round before.
    """
    if active is None:
        return [list(range(num_silos))] * len(holds)
    rng = generator(seed, "participation", trial)
    rounds: Schedule = []
    for hold in holds:
        drawn = (
            rounds[-1] if hold and rounds else sorted(rng.choice(num_silos, active, replace=False).tolist())
        )
        rounds.append(drawn)
    return rounds


def rounds_of_silos(rounds: Schedule, num_silos: int) -> list[Sequence[int]]:
    """For each silo, the rounds it takes part in, ascending."""
    if all(len(members) == num_silos for members in rounds):
        return [range(len(rounds))] * num_silos
    own: list[list[int]] = [[] for _ in range(num_silos)]
    for r, members in enumerate(rounds):
        for member in members:
            own[member].append(r)
    return list(own)
