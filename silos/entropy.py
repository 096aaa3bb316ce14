"""Where a simulated silo's randomness comes from: reproducible, and therefore not private.

NumPy's Philox, key = 128 bits of SHA-256(seed, trial, silo), counter = (round, purpose). Every silo
has its own key, so its noise does not depend on which silos it shares a process with; every round
has its own counter, so a round can be answered again with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from fedsim.protocol.seeds import digest128


class Purpose(IntEnum):
    """What a stream of random numbers is for."""

    NOISE = 0
    BATCH = 1
    PERMUTATION = 2


class SeededEntropy:
    """The streams of a cohort of simulated silos; whoever knows the seed knows the noise."""

    def __init__(self, seed: int, trial: int, names: Sequence[str]) -> None:
        self._keys = [digest128("silo", seed, trial, name) for name in names]
        self._generators: dict[tuple[int, Purpose], tuple[np.random.Generator, dict[str, Any]]] = {}

    def stream(self, member: int, round_index: int, purpose: Purpose) -> np.random.Generator:
        """The silo's generator for this purpose, set to the beginning of the round's stream.

        One generator a silo and purpose is kept and its counter reset: building one costs ten times more.
        """
        if (member, purpose) not in self._generators:
            generator = np.random.Generator(np.random.Philox(key=self._keys[member]))
            self._generators[member, purpose] = generator, generator.bit_generator.state
        generator, start = self._generators[member, purpose]
        start["state"]["counter"][:] = (0, round_index, purpose, 0)
        generator.bit_generator.state = start
        return generator
