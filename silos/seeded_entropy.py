"""Randomness of simulated silos, and of one that was started with `--insecure-simulation`: reproducible, and
therefore not private.

NumPy's Philox, key = 128 bits of SHA-256(seed, trial, silo, run), counter = (round, purpose). Every silo
has its own key, so its noise does not depend on which silos it shares a process with; every round
has its own counter, so a round can be answered again with the same bits. The caller
names the run (`fedsim.simulation.run_digest`): runs of one name have the same noise, so their guarantees do
not add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedsim.protocol.seeds import digest128
from silos.entropy import Purpose


class SeededEntropy:
    """The streams of a cohort of simulated silos; whoever knows the seed knows the noise."""

    def __init__(self, seed: int, trial: int, names: Sequence[str], runs: Sequence[str]) -> None:
        """`runs`: for each silo the digest of its run; equal in two runs, they share every bit of noise."""
        pairs = zip(names, runs, strict=True)
        self._keys = [digest128("silo", seed, trial, name, run) for name, run in pairs]
        self._held: dict[Purpose, _Streams] = {purpose: _Streams(self._keys) for purpose in Purpose}

    @classmethod
    def joined(cls, parts: Sequence[SeededEntropy]) -> SeededEntropy:
        """Several cohorts as one, in this order."""
        joined = cls(0, 0, (), ())
        joined._keys = [key for part in parts for key in part._keys]
        joined._held = {purpose: _Streams(joined._keys) for purpose in Purpose}
        return joined

    def streams(
        self, members: Iterable[int], round_index: int, purpose: Purpose
    ) -> list[np.random.Generator]:
        """The members' generators for this purpose, each set to the beginning of the round's stream."""
        return self._held[purpose].reset(members, (0, round_index, purpose, 0))


class _Streams:
    """One generator a silo, whose counter is reset: building one costs ten times more."""

    def __init__(self, keys: Sequence[int]) -> None:
        self._keys = keys
        self._counter = np.zeros(4, dtype=np.uint64)  # shared by all states: one assignment sets it for all
        self._generators: dict[int, tuple[np.random.Generator, np.random.BitGenerator, dict[str, Any]]] = {}

    def reset(self, members: Iterable[int], counter: tuple[int, int, int, int]) -> list[np.random.Generator]:
        self._counter[:] = counter
        ready = []
        for member in members:
            generator, bits, start = self._generators.get(member) or self._build(member)
            bits.state = start
            ready.append(generator)
        return ready

    def _build(self, member: int) -> tuple[np.random.Generator, np.random.BitGenerator, dict[str, Any]]:
        bits = np.random.Philox(key=self._keys[member])
        start: dict[str, Any] = dict(bits.state)
        start["state"]["counter"] = self._counter
        self._generators[member] = np.random.Generator(bits), bits, start
        return self._generators[member]
