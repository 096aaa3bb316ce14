"""A silo's report of a round: one envelope for the shuffler, and in it one for the server.

    inner = sealed to the server:   its share, or the whole message
    outer = sealed to the shuffler: position in the roster, 4 bytes | Ed25519 signature, 64 bytes | inner |
                                    the shuffler's share

Both envelopes and the signature are bound to an `Occasion`: run, round, roster, and what the numbers are. So
a report of another round, or one that was told another amount of noise, is not a report of this one: it does
not open. All reports of an occasion have one size. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsim.common.errors import InputError, Refused
from fedsim.protocol.envelopes import OVERHEAD, EnvelopeKey, seal
from fedsim.protocol.roster import Roster
from fedsim.protocol.shares import Counts, Words, split

Transport = Literal["shares", "messages"]
Numbers = npt.NDArray[np.float64]
MAX_QUERIES, MAX_DIMENSION = 1000, 2**31 - 1

_TAG = b"fedsim report 1"
_WORD, _POSITION, _SIGNATURE = 8, 4, 64
_PLACE = struct.Struct(">8s32sQ32s32s")
_FORM = struct.Struct(">8sII")


@dataclass(frozen=True)
class Form:
    """What a report's numbers are.

    Args:
        transport: as two additive shares of integers, or as whole messages of floating-point numbers.
        dimension: d, of one query's answer.
        scales: one a query: the standard deviation of the discrete Gaussian noise, in steps, that the server
            and the shuffler each add to the sum; 0 where silos add their own.

    Raises:
        InputError: names the field.
    """

    transport: Transport
    dimension: int
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
            raise InputError("scales", self.scales, "0 for messages, which nobody adds up")

    @property
    def words(self) -> int:
        """Numbers in a message or a share: d for each query."""
        return self.dimension * len(self.scales)

    @property
    def inner_bytes(self) -> int:
        """Bytes of the server's envelope."""
        return OVERHEAD + _WORD * self.words

    @property
    def report_bytes(self) -> int:
        """Bytes of a report; every report of this form has as many."""
        share = _WORD * self.words if self.transport == "shares" else 0
        return OVERHEAD + _POSITION + _SIGNATURE + self.inner_bytes + share

    @cached_property
    def digest(self) -> bytes:
        """SHA-256, 32 bytes."""
        head = _FORM.pack(self.transport.encode(), self.dimension, len(self.scales))
        return hashlib.sha256(head + np.asarray(self.scales, ">f8").tobytes()).digest()


@dataclass(frozen=True)
class Occasion:
    """What a report is for.

    Args:
        run: the session, the server's name for the run and the same for all silos; 64 hexadecimal digits.
        round: its index.
        roster: digest of the roster, 64 hexadecimal digits.
        form: of the numbers.
    """

    run: str
    round: int
    roster: str
    form: Form

    def info(self, role: Literal["server", "shuffler", "silo"]) -> bytes:
        """What an envelope for the server or the shuffler, or a silo's signature, is bound to."""
        run, roster = bytes.fromhex(self.run), bytes.fromhex(self.roster)
        return _TAG + _PLACE.pack(role.encode(), run, self.round, roster, self.form.digest)


class Opened(NamedTuple):
    """A report as the shuffler has it: whose it is, the server's envelope, and its own share (words,)."""

    position: int
    inner: bytes
    share: Words


def seal_report(
    numbers: Counts | Numbers,
    occasion: Occasion,
    roster: Roster,
    position: int,
    sign: Callable[[bytes], bytes],
) -> bytes:
    """A silo's report.

    Args:
        numbers: (queries, d); int64 to be shared, or float64 to be sent whole.
        occasion: of the round, which names this roster.
        roster: the one that the silo has pinned.
        position: the silo's, in `roster.names`.
        sign: with its identity.

    Raises:
        InputError: `numbers` are of another shape or type than the occasion's, or that of another roster.
    """
    form = occasion.form
    _check_sealable(numbers, occasion, roster)
    if form.transport == "shares":
        for_server, own = split(numbers.astype(np.int64, copy=False).ravel())
        share = own.astype("<u8").tobytes()
        content = for_server.astype("<u8").tobytes()
    else:
        share, content = b"", numbers.astype("<f8").tobytes()
    inner = seal(content, roster.server, occasion.info("server"))
    place = position.to_bytes(_POSITION, "little")
    signature = sign(_signed(occasion, place, inner, share))
    return seal(place + signature + inner + share, roster.shuffler.key, occasion.info("shuffler"))


def open_report(report: bytes, occasion: Occasion, roster: Roster, key: EnvelopeKey) -> Opened:
    """A report by a silo of the roster, for this occasion; `key` is the shuffler's.

    Raises:
        Refused: it is anything else. The reason holds nothing of what is in it.
    """
    form = occasion.form
    if len(report) != form.report_bytes:
        raise Refused("a report of another size than the round's")
    content = key.open(report, occasion.info("shuffler"))
    place, rest = content[:_POSITION], content[_POSITION:]
    signature, rest = rest[:_SIGNATURE], rest[_SIGNATURE:]
    inner, share = rest[: form.inner_bytes], rest[form.inner_bytes :]
    position = int.from_bytes(place, "little")
    if position >= len(roster.identities):
        raise Refused("a report by nobody in the roster")
    if not _is_signed(roster.identities[position], _signed(occasion, place, inner, share), signature):
        raise Refused("a report that the silo which it names has not signed")
    return Opened(position, inner, np.frombuffer(share, "<u8").astype(np.uint64, copy=False))


def open_inner(inner: bytes, occasion: Occasion, key: EnvelopeKey) -> bytes:
    """The server's part of a report: 8 bytes a number; `key` is the server's.

    Raises:
        Refused: it was not sealed to the server for this occasion.
    """
    content = key.open(inner, occasion.info("server"))
    if len(content) != _WORD * occasion.form.words:
        raise Refused("an envelope of another size than the round's")
    return content


def _check_sealable(numbers: Counts | Numbers, occasion: Occasion, roster: Roster) -> None:
    form = occasion.form
    wanted = np.int64 if form.transport == "shares" else np.float64
    shape = len(form.scales), form.dimension
    if numbers.shape != shape or numbers.dtype != wanted:
        raise InputError("numbers", f"{numbers.dtype}{numbers.shape}", f"{wanted.__name__}{shape}")
    if occasion.roster != roster.digest:
        raise InputError("roster", occasion.roster, f"{roster.digest}, the roster that is pinned")


def _signed(occasion: Occasion, place: bytes, inner: bytes, share: bytes) -> bytes:
    """What a silo's signature covers; each part's length follows from the occasion."""
    return occasion.info("silo") + place + inner + share


def _is_signed(identity: bytes, body: bytes, signature: bytes) -> bool:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from fedsim.common.signatures import is_signed

    return is_signed(Ed25519PublicKey.from_public_bytes(identity), body, signature)
