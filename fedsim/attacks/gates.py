"""Cohorts that are attacked: always through the silo's own gate, as any server would have to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol

import numpy as np
from torch import Tensor

from fedsim.mechanisms.mechanism import Mechanism
from fedsim.mechanisms.registry import GAUSSIAN
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Plan
from fedsim.protocol.terms import Share, Terms
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.memory_ledger import MemoryLedger
from fedsim.simulation.side_by_side import SideBySide
from silos.entropy import SeededEntropy
from silos.gate import Gate, hold

Floats = np.ndarray
Data = tuple[Floats, Floats]
"""A silo's records: features (n, f) and targets (n,), float64. Simulation only."""


class Answering(Protocol):
    """What answers as a gate does."""

    def answer(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        """See `silos.gate.Gate.answer`."""
        ...


_DELTA = 1e-5  # of prices that nobody reads: what a plan costs is known before the audit


def cohort(
    resolved: Resolved,
    algorithm: Algorithm,
    plan: Plan,
    data: Sequence[Data],
    noise: Sequence[float],
    streams: Sequence[str],
    *,
    rounds: Sequence[Sequence[int]] | None = None,
    copies: int | None = None,
    mechanism: Mechanism = GAUSSIAN,
    shares: Sequence[Share] | None = None,
) -> Gate:
    """A gate over silos at given noise multipliers and without a budget.

    Args:
        resolved: what is attacked.
        data: one silo's records each.
        noise: z of each; 0 clips and adds nothing.
        streams: whose batches and noise each draws: equal streams draw alike.
        rounds: those in each silo's plan; all by default.
        copies: runs side by side on the same records; then broadcasts may be (members, d), and member
            c len(data) + s is silo s in copy c.
        mechanism: adds the noise.
        shares: each silo's part in sums over silos, of a mechanism of sums.
    """
    problem, dtype, repeats = resolved.halves[1], resolved.dtype, copies or 1
    everything = [range(len(plan.rounds))] * len(data)
    terms = [
        Terms(f"{copy}/{place}", len(target), inf, _DELTA, own, z, shares[place] if shares else None)
        for copy in range(repeats)
        for place, ((_, target), own, z) in enumerate(zip(data, rounds or everything, noise, strict=True))
    ]
    entropy = randomness(resolved.scenario.seed, list(streams) * repeats)
    records = hold(data, problem, dtype) if copies is None else SideBySide(data, problem, dtype, copies)
    ledgers = [MemoryLedger() for _ in terms]
    return Gate(records, problem, algorithm, plan, terms, mechanism, entropy, ledgers, LIMITS, dtype)


def randomness(seed: int, streams: Sequence[str]) -> SeededEntropy:
    """The audit's own random numbers, of a key that no run has."""
    return SeededEntropy(seed, 0, streams, ["audit"] * len(streams))
