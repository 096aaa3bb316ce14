"""Where silos' randomness comes from: noise, batches, permutations and the noise of scores; noise as vectors.

A deployed silo's comes from the operating system, never twice, and is not to be seeded. Batches, scores'
noise and floating-point noise are drawn from NumPy's Philox 4x64-10, each stream with a key of 128 bits of
`secrets`. So they rest on the operating system's entropy and on Philox as a pseudo-random generator: it
passes every known statistical test, and was not designed as a cipher. Exact noise does not rest on it:
`fedsim.privacy.discrete_noise` draws from OpenSSL.

That of simulated silos, and of one that was started with `--insecure-simulation`, is reproducible, and
therefore not private.

A silo's noise is a function of its own key, the plan and the dimension, never of the silos it shares a
process with. Rounds that are small are drawn several at a time: a block of rounds shares one stream, in
which every round has its place, so that a round answered again gets the same bits.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedsim.common.seeds import digest128
from fedsim.privacy.mechanism import Mechanism
from fedsim.protocol.plan import Plan, QueryShape


class Purpose(IntEnum):
    """Purpose of a stream of random numbers."""

    NOISE = 0
    BATCH = 1
    PERMUTATION = 2
    SCORE = 3


class Entropy(Protocol):
    """The random numbers of a cohort of silos.

    The guarantee assumes that no one outside a silo can predict its numbers, and that streams of different
    silos, rounds and purposes are independent, in this run and from those of every run that it adds up with.
    A round's stream may be a new one each time or begin anew with the same numbers: no two answers are ever
    made of it, since a reply is stored (`silos.vault.ledger`).
    """

    def streams(self, members: Iterable[int], round_index: int, purpose: Purpose) -> list[Generator]:
        """One generator for each member, in their order, to be used before the next call for this purpose.

        Those of other purposes are used in between: a round's noise is drawn after its batches.
        """


class SeededEntropy:
    """The streams of a cohort of simulated silos, reproducible from a seed and therefore not private.

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
        self._held = {purpose: list[Generator]() for purpose in Purpose}  # building one costs more

    @classmethod
    def joined(cls, parts: Sequence[SeededEntropy]) -> SeededEntropy:
        """Several cohorts as one, in this order."""
        joined = cls(0, 0, (), ())
        joined._keys = [key for part in parts for key in part._keys]
        return joined

    def streams(self, members: Iterable[int], round_index: int, purpose: Purpose) -> list[Generator]:
        """Generators of this purpose, each set to the beginning of a member's stream of the round.

        Its state is uniform over 256 bits, so that it needs no rounds of its own to mix.
        """
        keys, held = [self._keys[member] for member in members], self._held[purpose]
        held += [Generator(np.random.SFC64(0)) for _ in range(len(keys) - len(held))]
        for begun, key in zip(held, keys, strict=False):
            digest = hashlib.sha256(f"{key} {purpose:d} {round_index}".encode()).digest()
            state, half = {"state": np.frombuffer(digest, dtype="<u8")}, {"has_uint32": 0, "uinteger": 0}
            begun.bit_generator.state = {"bit_generator": "SFC64", "state": state, **half}
        return held[: len(keys)]


SECRET_BYTES = 32


class SystemEntropy:
    """The streams of one run of a deployed silo.

    The permutation that Fresh batches are cut from must survive a restart, or a record could be drawn twice.
    Its key is 128 bits of SHA-256 of the run's secret, which its ledger holds.
    """

    def __init__(self, secret: bytes) -> None:
        """`secret`: drawn once a run (`new_secret`), and kept where only the silo can read it. ValueError if
        it is too short to be one.
        """
        if len(secret) < SECRET_BYTES:
            raise ValueError(f"a run's secret has {len(secret)} bytes, not {SECRET_BYTES}")
        self._secret = secret.hex()

    def streams(self, members: Iterable[int], round_index: int, purpose: Purpose) -> list[Generator]:
        """New generators; those of PERMUTATION begin with the same numbers whenever they are asked for."""
        if purpose is Purpose.PERMUTATION:
            stored = (digest128("permutation", self._secret, member, round_index) for member in members)
            return list(map(_stream, stored))
        return [_stream(secrets.randbits(128)) for _ in members]


def new_secret() -> bytes:
    """The secret of a new run."""
    return secrets.token_bytes(SECRET_BYTES)


def _stream(key: int) -> Generator:
    return Generator(np.random.Philox(key=key))


_NUMBERS = 1024  # a silo's numbers in a block of several rounds: enough that a call is cheap beside them
_KEPT = 1 << 27  # numbers of blocks that a cohort keeps (1 GiB), or a quarter of each block if that is more
_TOGETHER = 256  # silos whose streams are used at a time
_AHEAD = 4_000_000  # numbers that a cohort draws ahead at most in a long round (32 MB)


class Noise:
    """The vectors of noise for a cohort's answers in a run, of scale 1, as its mechanism draws them."""

    def __init__(
        self,
        mechanism: Mechanism,
        entropy: Entropy,
        plan: Plan,
        silos: int,
        size: Callable[[QueryShape], int],
        dtype: torch.dtype,
    ) -> None:
        """`size`: how many numbers the answer to a query holds; `dtype`: what the run computes with."""
        self._mechanism, self._entropy = mechanism, entropy
        kinds = {id(asks): asks for asks in plan.rounds}  # rounds are alike as a rule
        sizes = {key: [size(query) for ask in asks for query in ask.queries] for key, asks in kinds.items()}
        self._sizes = [sizes[id(asks)] for asks in plan.rounds]
        simulated = isinstance(entropy, SeededEntropy) and mechanism.floating
        self._kind = np.float32 if simulated and dtype == torch.float32 else np.float64  # of long vectors
        self._width = max(1, *map(sum, self._sizes)) if self._sizes else 1  # numbers of a silo in a round
        self._rounds = max(1, _NUMBERS // self._width)
        kept = max(-(-self._rounds // 4), _KEPT // max(1, silos * self._width))
        self._kept = min(self._rounds, max(1, len(plan.rounds)), kept)  # rounds of a block, at a time
        self._part = -1, -1  # the block, and which of its parts is kept
        self._values, self._ready = np.empty((0, 0)), np.zeros(silos, dtype=bool)

    def round(self, members: Sequence[int], round_index: int) -> RoundNoise:
        """The members' noise of one round."""
        block, place = divmod(round_index, self._rounds)
        sizes = self._sizes[round_index]
        if self._rounds == 1:
            streams = self._entropy.streams(members, block, Purpose.NOISE)
            return RoundNoise(self._mechanism, streams, sizes, np.empty((len(streams), 0), self._kind))
        part, place = divmod(place, self._kept)
        if len(members) * self._kept < len(self._ready):  # few of many: hardly one is asked twice in a part
            stop = (part * self._kept + place + 1) * self._width
            last = [drawn[:, -self._width :] for _, drawn in self._begun(np.array(members), block, stop)]
            return RoundNoise(self._mechanism, [], sizes, np.concatenate(last))
        self._draw(members, block, part)
        drawn = self._values[:, place * self._width : (place + 1) * self._width]
        everyone = len(members) == len(self._ready)
        return RoundNoise(self._mechanism, [], sizes, drawn if everyone else drawn[members])

    def _draw(self, members: Sequence[int], block: int, part: int) -> None:
        """Fill the members' rows of a part of a block, unless they are there."""
        width = self._kept * self._width
        if (block, part) != self._part:
            self._part, self._values = (block, part), np.empty((len(self._ready), width))
            self._ready[:] = False
        ready = self._ready if len(members) == len(self._ready) else self._ready[list(members)]
        if ready.all():
            return
        missing = np.array(members)[~ready]
        for few, drawn in self._begun(missing, block, min((part + 1) * width, self._rounds * self._width)):
            self._values[few, : drawn.shape[1] - part * width] = drawn[:, part * width :]
        self._ready[missing] = True

    def _begun(self, members: np.ndarray, block: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The first numbers of each member's stream of a block, (members, stop), some members at a time."""
        for few in np.split(members, range(_TOGETHER, len(members), _TOGETHER)):
            drawn = np.empty((len(few), stop))
            self._mechanism.fill(self._entropy.streams(few.tolist(), block, Purpose.NOISE), drawn)
            yield few, drawn


class RoundNoise:
    """One (members, numbers) tensor a query, in the plan's order."""

    def __init__(
        self,
        mechanism: Mechanism,
        streams: Sequence[Generator],
        sizes: Sequence[int],
        drawn: np.ndarray,
    ) -> None:
        """`drawn`: what there is already, (members, numbers); its type is that of what follows."""
        self._mechanism, self._streams, self._sizes = mechanism, streams, deque(sizes)
        self._drawn, self._used = drawn, 0

    def next(self) -> Tensor:
        """The next query's noise; how far ahead it is drawn changes nothing."""
        if self._used == self._drawn.shape[1]:
            self._drawn, self._used = np.empty((len(self._streams), self._ahead()), self._drawn.dtype), 0
            self._mechanism.fill(self._streams, self._drawn)
        begin, size = self._used, self._sizes.popleft()
        self._used += self._taken(size)
        return torch.from_numpy(self._drawn[:, begin : begin + size])

    def _taken(self, size: int) -> int:
        """Numbers of an answer; in float32 they are drawn in pairs."""
        return size + size % 2 if self._drawn.dtype == np.float32 else size

    def _ahead(self) -> int:
        """The numbers of whole answers that are drawn at once: of the next one at least."""
        total = 0
        for size in map(self._taken, self._sizes):
            if total and (total + size) * len(self._streams) > _AHEAD:
                break
            total += size
        return total
