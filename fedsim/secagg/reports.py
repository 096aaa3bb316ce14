"""A silo's report of a round: one envelope for the shuffler, and in it one for the server.

    inner = sealed to the server:   position, 4 bytes | Ed25519 signature, 64 bytes | the server's share
                                    or the whole message
    outer = sealed to the shuffler: position in the roster, 4 bytes | Ed25519 signature, 64 bytes | inner |
                                    the shuffler's share

**Additive shares** modulo 2^64: two parties hold a sum together that neither of them holds alone. An integer
x is split into a uniform word u and x - u. Either of them alone is uniform whatever x is, so an aggregator
who has one share of every silo, and their sum, has learnt nothing; both sums added are the sum of all x
modulo 2^64, read as two's complement. Words are uniform because they come from the operating system's
entropy, and only in so far as it is.

**Binding.** Envelopes and signatures are bound to a `ReportContext`: run, round, roster, form of the numbers,
and the start of the shuffler's process. So a report of another round, for another amount of noise, or one
that an earlier process may have released is not a report of this one: it does not open. All reports of a
context have one size. Numbers are little-endian.

The server's share is signed for the server too: a shuffler could else put shares of its own making in place
of all silos' but one, and the sum would be that one's answer. A whole message is not, since the server must
not learn whose it is; there a shuffler that does not do its work is one that colludes.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsim.common.errors import InputError, Refused
from fedsim.common.identity import is_signed
from fedsim.privacy.discrete_noise import with_noise
from fedsim.secagg.envelopes import OVERHEAD, EnvelopeKey, seal
from fedsim.secagg.roster import Roster

Counts = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def split(counts: Counts) -> tuple[Words, Words]:
    """Two shares of `counts`, int64 of any shape; each of the same shape, each alone uniform."""
    mask = np.frombuffer(os.urandom(8 * counts.size), np.uint64).reshape(counts.shape)
    return mask, counts.view(np.uint64) - mask


def add(shares: Sequence[Words] | Words) -> Words:
    """The sum modulo 2^64 over the first axis: one party's shares of silos (silos, ...) to (...)."""
    summed: Words = np.add.reduce(np.asarray(shares, np.uint64), axis=0)
    return summed


def total(server: Words, shuffler: Words) -> Counts:
    """What both parties' sums say together: int64, right if the true total is in [-2^63, 2^63)."""
    return (server + shuffler).view(np.int64)


Transport = Literal["shares", "messages"]
Numbers = npt.NDArray[np.float64]
MAX_QUERIES, MAX_DIMENSION = 1000, 2**31 - 1

NO_START = "0" * 64  # of a shuffler whose notes and keys live in one process's memory alone

_TAG = b"fedsim report 2"
_WORD, _POSITION, _SIGNATURE = 8, 4, 64
_OWNER = _POSITION + _SIGNATURE
_PLACE = struct.Struct(">8s32sQ32s32s32s")
_FORM = struct.Struct(">8sII")


@dataclass(frozen=True)
class Form:
    """What a report's numbers are; InputError names the field."""

    transport: Transport  # as two additive shares of integers, or as whole messages of floating-point numbers
    dimension: int  # d, of one query's answer
    # one a query: the standard deviation of the discrete Gaussian noise, in steps, that the server and
    # the shuffler each add to the sum; 0 where silos add their own
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.transport not in ("shares", "messages"):
            raise InputError("transport", self.transport, "shares or messages")
        if not 1 <= self.dimension <= MAX_DIMENSION:
            raise InputError("dimension", self.dimension, f"from 1 to {MAX_DIMENSION}")
        if not 1 <= len(self.scales) <= MAX_QUERIES:
            raise InputError("scales", len(self.scales), f"of 1 to {MAX_QUERIES} queries")
        if not all(math.isfinite(scale) and scale >= 0 for scale in self.scales):
            raise InputError("scales", self.scales, "finite, and at least 0")
        if self.transport == "messages" and any(self.scales):
            raise InputError("scales", self.scales, "0 for messages, which are not added up by an aggregator")

    @property
    def words(self) -> int:
        """Numbers in a message or a share: d for each query."""
        return self.dimension * len(self.scales)

    @property
    def inner_bytes(self) -> int:
        """Bytes of the server's envelope."""
        return OVERHEAD + _WORD * self.words + (_OWNER if self.transport == "shares" else 0)

    @property
    def report_bytes(self) -> int:
        """Bytes of a report; every report of this form has as many."""
        share = _WORD * self.words if self.transport == "shares" else 0
        return OVERHEAD + _OWNER + self.inner_bytes + share

    @cached_property
    def digest(self) -> bytes:
        """SHA-256, 32 bytes."""
        head = _FORM.pack(self.transport.encode(), self.dimension, len(self.scales))
        return hashlib.sha256(head + np.asarray(self.scales, ">f8").tobytes()).digest()


@dataclass(frozen=True)
class ReportContext:
    """The run, the round and the form that a report is bound to."""

    run: str  # the session, the server's name for the run and the same for all silos; 64 hexadecimal digits
    round: int
    roster: str  # digest of the roster, 64 hexadecimal digits
    form: Form
    # the entry with which the shuffler's process began, 64 hexadecimal digits: what an earlier one has
    # released, and its notes may have forgotten, no later one opens
    start: str = NO_START

    def info(self, role: Literal["server", "shuffler", "silo", "share"]) -> bytes:
        """What an envelope for the server or the shuffler is bound to, or a silo's signature of its report or
        of the server's share."""
        run, roster, start = (bytes.fromhex(each) for each in (self.run, self.roster, self.start))
        return _TAG + _PLACE.pack(role.encode(), run, self.round, roster, self.form.digest, start)


class Opened(NamedTuple):
    """A report as the shuffler has it: whose it is, the server's envelope, and its own share (words,)."""

    position: int
    inner: bytes
    share: Words


def seal_report(
    numbers: Counts | Numbers,
    context: ReportContext,
    roster: Roster,
    position: int,
    sign: Callable[[bytes], bytes],
) -> bytes:
    """A silo's report of `numbers` (queries, d): int64 to be shared, or float64 to be sent whole.

    The `roster` is the one that the silo has pinned, `position` the silo's in `roster.names`. InputError if
    the numbers are of another shape or type than the context's, or the context is of another roster.
    """
    form = context.form
    wanted, shape = np.int64 if form.transport == "shares" else np.float64, (len(form.scales), form.dimension)
    if numbers.shape != shape or numbers.dtype != wanted:
        raise InputError("numbers", f"{numbers.dtype}{numbers.shape}", f"{wanted.__name__}{shape}")
    if context.roster != roster.digest:
        raise InputError("roster", context.roster, f"{roster.digest}, the roster that is pinned")
    place = position.to_bytes(_POSITION, "little")
    if form.transport == "shares":
        for_server, own = split(numbers.astype(np.int64, copy=False).ravel())
        share = own.astype("<u8").tobytes()
        words = for_server.astype("<u8").tobytes()
        content = place + sign(context.info("share") + place + words) + words
    else:
        share, content = b"", numbers.astype("<f8").tobytes()
    inner = seal(content, roster.server, context.info("server"))
    signature = sign(context.info("silo") + place + inner + share)  # lengths follow from the context
    return seal(place + signature + inner + share, roster.shuffler.key, context.info("shuffler"))


def open_report(report: bytes, context: ReportContext, roster: Roster, key: EnvelopeKey) -> Opened:
    """A report of a roster's silo for this context; Refused if not, by a reason that tells nothing of it."""
    form = context.form
    if len(report) != form.report_bytes:
        raise Refused("a report of another size than the round's")
    content = key.open(report, context.info("shuffler"))
    position, rest = _signed(content, context.info("silo"), roster, "a report")
    share = np.frombuffer(rest[form.inner_bytes :], "<u8").astype(np.uint64, copy=False)
    return Opened(position, rest[: form.inner_bytes], share)


def _signed(content: bytes, info: bytes, roster: Roster, what: str) -> tuple[int, bytes]:
    """The position of the silo that `content` begins with, which has signed all of it, and the rest."""
    place, signature, rest = content[:_POSITION], content[_POSITION:_OWNER], content[_OWNER:]
    position = int.from_bytes(place, "little")
    if position >= len(roster.identities):
        raise Refused(f"{what} by no silo of the roster")
    if not is_signed(roster.identities[position], info + place + rest, signature):
        raise Refused(f"{what} that the silo which it names has not signed")
    return position, rest


def open_inner(inner: bytes, context: ReportContext, key: EnvelopeKey) -> bytes:
    """The server's part of a report: a message, 8 bytes a number, or what `open_share` reads. Refused if it
    was not sealed to the server for this context.
    """
    content = key.open(inner, context.info("server"))
    if len(content) != context.form.inner_bytes - OVERHEAD:
        raise Refused("an envelope of another size than the round's")
    return content


def open_share(inner: bytes, context: ReportContext, roster: Roster, key: EnvelopeKey) -> tuple[int, Words]:
    """The position of a silo of the roster, and the share that it made for the server, (words,). Refused if
    it was not sealed to the server for this context, or the silo has not signed it.
    """
    position, words = _signed(open_inner(inner, context, key), context.info("share"), roster, "a share")
    return position, np.frombuffer(words, "<u8").astype(np.uint64, copy=False)


def aggregators_noise(form: Form) -> Words:
    """An aggregator's exact discrete Gaussian noise for its sum of shares, (words,).

    Modulo 2^64, before anything is read of the sum: whatever a silo sends, the noise is on it.
    """
    if not any(form.scales):
        return np.zeros(form.words, np.uint64)
    zeros = np.zeros(form.dimension, np.int64)
    return np.concatenate([with_noise(zeros, scale) for scale in form.scales]).view(np.uint64)
