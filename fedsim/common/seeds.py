"""Public randomness: everything in a simulation that is random and not a silo's own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence


def digest128(*parts: object) -> int:
    """128 bits of SHA-256 over the parts, each with its length, so that no two lists collide."""
    text = "".join([f"{len(text)}:{text}" for text in map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


class _Key(ISeedSequence):
    """A key as it is: building a Philox generator by `key` asks the operating system for entropy besides."""

    def __init__(self, key: int) -> None:
        self._words = np.array([key % 2**64, key >> 64], dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> np.ndarray:
        return self._words


def generator(*parts: object) -> np.random.Generator:
    """A NumPy Philox generator keyed by the parts: equal parts, equal stream, on every machine."""
    return np.random.Generator(np.random.Philox(cast(Any, _Key(digest128(*parts)))))


def generators(parts: Iterable[object], names: Iterable[str]) -> Iterator[np.random.Generator]:
    """`generator(*parts, name)` for each name: one object, which is set anew for the next."""
    begun = generator(*parts)
    state: Any = begun.bit_generator.state
    for name in names:
        state["state"]["key"] = _Key(digest128(*parts, name)).generate_state(2)
        begun.bit_generator.state = state
        yield begun


def server_rng(seed: int) -> np.random.Generator:
    """The server method's own randomness: public, and the same in the dry run and in the run."""
    return generator(seed, "server half")  # names the stream: another word would be other numbers
