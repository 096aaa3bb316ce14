"""Public randomness: everything in a simulation that is random and not a silo's own."""

from __future__ import annotations

import hashlib

import numpy as np


def digest128(*parts: object) -> int:
    """128 bits of SHA-256 over the parts, each with its length, so that no two lists collide."""
    text = "".join(f"{len(str(part))}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def generator(*parts: object) -> np.random.Generator:
    """A NumPy Philox generator keyed by the parts: equal parts, equal stream, on every machine."""
    return np.random.Generator(np.random.Philox(key=digest128(*parts)))


def server_rng(seed: int) -> np.random.Generator:
    """The server method's own randomness: public, and the same in the dry run and in the run."""
    return generator(seed, "server half")  # names the stream: another word would be other numbers
