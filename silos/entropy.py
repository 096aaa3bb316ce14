"""Where silos' randomness comes from: noise, batches, permutations and the noise of scores.

A deployed silo's comes from the operating system, never twice, and is not to be seeded. Batches, scores'
noise and floating-point noise are drawn from NumPy's Philox 4x64-10, each stream with a key of 128 bits of
`secrets`. So they rest on the operating system's entropy and on Philox as a pseudo-random generator: it
passes every known statistical test, and was not designed as a cipher. Exact noise does not rest on it:
`fedsim.mechanisms.discrete_noise` draws from OpenSSL.

That of simulated silos, and of one that was started with `--insecure-simulation`, is reproducible, and
therefore not private.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np

from fedsim.common.seeds import digest128


class Purpose(IntEnum):
    """What a stream of random numbers is for."""

    NOISE = 0
    BATCH = 1
    PERMUTATION = 2
    SCORE = 3


class Entropy(Protocol):
    """The random numbers of a cohort of silos.

    The guarantee assumes that nobody outside a silo can predict its numbers, and that streams of different
    silos, rounds and purposes are independent, in this run and from those of every run that it adds up with.
    A round's stream may be a new one each time or begin anew with the same numbers: no two answers are ever
    made of it, since a reply is stored (`silos.ledger`).
    """

    def streams(
        self, members: Iterable[int], round_index: int, purpose: Purpose
    ) -> list[np.random.Generator]:
        """One generator for each member, in their order, to be used before the next call for this purpose.

        Those of other purposes are used in between: a round's noise is drawn after its batches.
        """
        ...


class SeededEntropy:
    """The streams of a cohort of simulated silos; whoever knows the seed knows the noise.

    NumPy's SFC64, whose 256 bits of state are SHA-256(key, purpose, round), key = 128 bits of SHA-256(seed,
    trial, silo, run). Every silo has its own key, so its noise does not depend on which silos it shares a
    process with; every round begins at its own state, so a round can be answered again with the same bits.
    The caller names the run (`fedsim.simulation.run_digest`): runs of one name have the same noise, so their
    guarantees do not add up.
    """

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


SECRET_BYTES = 32


class SystemEntropy:
    """The streams of one run of a deployed silo.

    The permutation that Fresh batches are cut from must survive a restart, or a record could be drawn twice.
    Its key is 128 bits of SHA-256 of the run's secret, which its ledger holds.
    """

    def __init__(self, secret: bytes) -> None:
        """`secret`: drawn once a run (`new_secret`), and kept where nobody else can read it.

        Raises:
            ValueError: it is too short to be one.
        """
        if len(secret) < SECRET_BYTES:
            raise ValueError(f"a run's secret has {len(secret)} bytes, not {SECRET_BYTES}")
        self._secret = secret.hex()

    def streams(
        self, members: Iterable[int], round_index: int, purpose: Purpose
    ) -> list[np.random.Generator]:
        """New generators; those of PERMUTATION begin with the same numbers whenever they are asked for."""
        if purpose is Purpose.PERMUTATION:
            return [_stream(self._stored(member, round_index)) for member in members]
        return [_stream(secrets.randbits(128)) for _ in members]

    def _stored(self, member: int, round_index: int) -> int:
        return digest128("permutation", self._secret, member, round_index)


def new_secret() -> bytes:
    """The secret of a new run."""
    return secrets.token_bytes(SECRET_BYTES)


def _stream(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key))
