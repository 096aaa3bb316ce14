"""A deployed silo's randomness: from the operating system, never twice, and not to be seeded.

Batches, scores' noise and floating-point noise are drawn from NumPy's Philox 4x64-10, each stream with a key
of 128 bits of `secrets`. So they rest on the operating system's entropy and on Philox as a pseudo-random
generator: it passes every known statistical test, and was not designed as a cipher. Exact noise does not rest
on it: `fedsim.mechanisms.discrete_noise` draws from OpenSSL.

The permutation that Fresh batches are cut from must survive a restart, or a record could be drawn twice. Its
key is 128 bits of SHA-256 of the run's secret, which its ledger holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import numpy as np

from fedsim.protocol.seeds import digest128
from silos.entropy import Purpose

SECRET_BYTES = 32


class SystemEntropy:
    """The streams of one run of a deployed silo."""

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
