"""Randomness of simulated silos, and of one that was started with `--insecure-simulation`: reproducible, and
therefore not private.

NumPy's SFC64, whose 256 bits of state are SHA-256(key, purpose, round), key = 128 bits of SHA-256(seed,
trial, silo, run). Every silo has its own key, so its noise does not depend on which silos it shares a process
with; every round begins at its own state, so a round can be answered again with the same bits. The caller
names the run (`fedsim.simulation.run_digest`): runs of one name have the same noise, so their guarantees do
not add up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from fedsim.protocol.seeds import digest128
from silos.entropy import Purpose


class SeededEntropy:
    """The streams of a cohort of simulated silos; whoever knows the seed knows the noise."""

    def __init__(self, seed: int, trial: int, names: Sequence[str], runs: Sequence[str]) -> None:
        """`runs`: for each silo the digest of its run; equal in two runs, they share every bit of noise."""
        pairs = zip(names, runs, strict=True)
        self._keys = [digest128("silo", seed, trial, name, run) for name, run in pairs]
        self._held: dict[tuple[int, Purpose], np.random.Generator] = {}  # building one costs ten times more

    @classmethod
    def joined(cls, parts: Sequence[SeededEntropy]) -> SeededEntropy:
        """Several cohorts as one, in this order."""
        joined = cls(0, 0, (), ())
        joined._keys = [key for part in parts for key in part._keys]
        return joined

    def streams(
        self, members: Iterable[int], round_index: int, purpose: Purpose
    ) -> list[np.random.Generator]:
        """The members' generators for this purpose, each set to the beginning of the round's stream."""
        return [self._begun(member, round_index, purpose) for member in members]

    def _begun(self, member: int, round_index: int, purpose: Purpose) -> np.random.Generator:
        """A generator whose state is uniform over 256 bits, so that it needs no rounds of its own to mix."""
        if (member, purpose) not in self._held:
            self._held[member, purpose] = np.random.Generator(np.random.SFC64(0))
        begun = self._held[member, purpose]
        digest = hashlib.sha256(f"{self._keys[member]} {purpose:d} {round_index}".encode()).digest()
        state = {"state": np.frombuffer(digest, dtype="<u8")}
        begun.bit_generator.state = {"bit_generator": "SFC64", "state": state, "has_uint32": 0, "uinteger": 0}
        return begun
