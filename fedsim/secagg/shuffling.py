"""What a server asks of a shuffler and what it gets, as frames and as values; and how the server reads it.

    Hello   -> ShufflerGreeting            who are you, which rosters do you know, where does your chain stand
    Shuffle -> Shuffled            a round's reports in; the shuffler's sum and the server's envelopes out

Their frames have arrays of bytes and of words.

A mark says where a shuffler's chain of notes stands, as it has signed it; a server relays it to the silos.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from fedsim.common.errors import Busy, InputError, Refused
from fedsim.common.head_file import Head
from fedsim.common.identity import Identity, is_signed, public_key
from fedsim.secagg.envelopes import EnvelopeKey
from fedsim.secagg.reports import Form, ReportContext, Words, add, open_inner, open_share, total
from fedsim.secagg.roster import Roster
from fedsim.wire.frames import Frame, decode_words, opened
from fedsim.wire.messages import Hex32, Mark, Message, Refusal

if TYPE_CHECKING:
    from fedsim.secagg.reports import Counts, Numbers


class ShufflerGreeting(Message, kind="standing"):
    """A shuffler's public keys, and the digests of the rosters that its operator has pinned."""

    key: Hex32
    identity: Hex32
    rosters: tuple[Hex32, ...]
    version: str
    mark: Mark


class Shuffle(Message):
    """All reports of a round, as the rows of an array of bytes, `reports`; see `fedsim.secagg.reports`.

    `start` is that of the mark which silos were shown.
    """

    run: Hex32
    round: int = Field(ge=0, lt=2**31)
    roster: Hex32
    start: Hex32
    transport: Literal["shares", "messages"]
    dimension: int
    scales: Annotated[tuple[float, ...], Field(fail_fast=True)]


class Shuffled(Message):
    """The head of a `Release`; arrays are `inner`, envelopes as rows, and `sum`, where there are shares."""

    run: Hex32
    round: int
    roster: Hex32
    request: Hex32
    mark: Mark
    silos: tuple[Annotated[int, Field(ge=0)], ...]


Bytes = npt.NDArray[np.uint8]
Said = TypeVar("Said", Shuffled, ShufflerGreeting)
_MALFORMED = "a shuffler's request is malformed"


@dataclass(frozen=True)
class Request:
    """All reports of a context, in an order that the server may choose."""

    context: ReportContext
    reports: tuple[bytes, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything in it, reports in their order; 64 hexadecimal digits."""
        made = hashlib.sha256(self.context.info("shuffler"))
        for report in self.reports:
            made.update(len(report).to_bytes(8) + report)
        return made.hexdigest()

    def body(self) -> bytes:
        """Its frame's body; reports must be of the size that the form says, and at least one."""
        told = {"start": self.context.start, **asdict(self.context.form)}
        return Shuffle(**_place(self.context), **told).body({"reports": _rows(self.reports)})

    @classmethod
    def read(cls, body: bytes) -> Self:
        """A frame's request. Refused if it is malformed, or its reports are not of its form's size."""
        frame = decode_words(body)
        if frame.kind != Shuffle.kind:
            raise Refused("another kind of message than a shuffler's request")
        try:
            head = Shuffle.model_validate(dict(frame.head))
            form = Form(head.transport, head.dimension, head.scales)
        except (ValidationError, InputError):
            raise Refused(_MALFORMED) from None
        if set(frame.arrays) != {"reports"} or frame.arrays["reports"].dtype != np.uint8:
            raise Refused(_MALFORMED)
        reports = _unrows(frame.arrays["reports"], form.report_bytes)
        return cls(ReportContext(head.run, head.round, head.roster, form, head.start), reports)


@dataclass(frozen=True)
class Release:
    """What a shuffler makes of a request, once."""

    context: ReportContext
    request: str  # digest of the request
    silos: tuple[int, ...]  # positions in the roster of the silos whose reports counted, ascending
    inner: tuple[bytes, ...]  # as many envelopes for the server, in an order drawn at random
    sum: Words  # the shuffler's sum of shares modulo 2^64, (words,), with its noise; empty for messages
    mark: Mark  # of the shuffler's chain, which ends with this release

    def body(self) -> bytes:
        """Its frame's body."""
        told = {"request": self.request, "silos": self.silos, "mark": self.mark}
        head = Shuffled(**_place(self.context), **told)
        arrays: dict[str, npt.NDArray[Any]] = {"inner": _rows(self.inner)}
        if self.sum.size:
            arrays["sum"] = self.sum
        return head.body(arrays)

    @classmethod
    def read(cls, data: bytes, request: Request, identity: bytes) -> Self:
        """A shuffler's reply to a request. Refused if it is a refusal, answers something else, or is not
        signed by the identity in the roster, an Ed25519 public key of 32 bytes.
        """
        head, frame = _said(data, identity, Shuffled)
        context = request.context
        asked = context.run, context.round, context.roster, request.digest
        if (head.run, head.round, head.roster, head.request) != asked:
            raise Busy("the shuffler answered another request")
        form, arrays = context.form, frame.arrays
        expected: dict[str, tuple[str, tuple[int, ...]]] = {
            "inner": ("uint8", (len(head.silos), form.inner_bytes)),
            **({"sum": ("uint64", (form.words,))} if form.transport == "shares" else {}),
        }
        if {name: (value.dtype.name, value.shape) for name, value in arrays.items()} != expected:
            raise Refused("a shuffler's reply has arrays of other shapes than the round's")
        inner, summed = _unrows(arrays["inner"], form.inner_bytes), arrays.get("sum", np.empty(0, np.uint64))
        return cls(context, request.digest, head.silos, inner, summed, head.mark)


def greeting(data: bytes, identity: bytes) -> Mark:
    """The mark in a shuffler's reply to a `Hello`; see `Release.read`."""
    return _said(data, identity, ShufflerGreeting)[0].mark


def totals(release: Release, roster: Roster, key: EnvelopeKey, noise: Words) -> Counts:
    """The sum over `release.silos`, (queries, d), int64 modulo 2^64, of a release of shares.

    Its sum holds the shuffler's noise where aggregators add some; the server, whose `key` opens envelopes,
    adds its own `noise`, (words,) (`fedsim.secagg.reports.aggregators_noise`). Refused if a silo's envelope
    for the server does not open, so that its share is lost, and the sum; or the shares are not one of each
    silo that the shuffler says it has counted.
    """
    form = release.context.form
    shares = dict(open_share(each, release.context, roster, key) for each in release.inner)
    if sorted(shares) != list(release.silos) or len(shares) < len(release.inner):
        raise Refused("the shuffler's shares are not one of each silo that it says it has counted")
    return total(add(list(shares.values())) + noise, release.sum).reshape(len(form.scales), form.dimension)


def messages(release: Release, key: EnvelopeKey) -> Numbers:
    """Whole messages in the order of their release, (messages, queries, d); their numbers may be anything.

    One that does not open is left out.
    """
    form, found = release.context.form, []
    for each in release.inner:
        try:
            found.append(np.frombuffer(open_inner(each, release.context, key), "<f8"))
        except Refused:  # the fault of its silo, which is not known
            continue
    return np.array(found, np.float64).reshape(len(found), len(form.scales), form.dimension)


def _place(context: ReportContext) -> dict[str, Any]:
    return {"run": context.run, "round": context.round, "roster": context.roster}


def _rows(pieces: Sequence[bytes]) -> Bytes:
    return np.frombuffer(b"".join(pieces), np.uint8).reshape(len(pieces), -1)


def _unrows(rows: Bytes, size: int) -> tuple[bytes, ...]:
    if rows.ndim != 2 or rows.shape[1] != size:
        raise Refused("reports of another size than the round's")
    return tuple(row.tobytes() for row in rows)


def _said(data: bytes, identity: bytes, kind: type[Said]) -> tuple[Said, Frame]:
    body, signature = opened(data)
    if not is_signed(identity, body, signature):
        raise Busy("a shuffler's reply is not signed by the identity in the roster")
    frame = decode_words(body)
    if frame.kind == Refusal.kind:
        with suppress(ValidationError):
            refusal = Refusal.model_validate(dict(frame.head))
            raise refusal.error(f"the shuffler refused: {refusal.reason}")
    with suppress(ValidationError):
        if frame.kind == kind.kind:
            return kind.model_validate(dict(frame.head)), frame
    raise Busy("a shuffler's reply is malformed, or of another kind")


_PURPOSE = b"fedsim mark of a shuffler\n"  # no frame's body begins so


def marked(identity: Identity, newest: Head, start: str) -> Mark:
    """Where a shuffler's chain ends (`newest`), and with which entry's hash its process began (`start`)."""
    told = {"number": newest.seq, "head": newest.hash.hex(), "start": start}
    return Mark.model_validate({**told, "signature": identity.sign(_body(told)).hex()})


def check_marked(mark: Mark, identity: str) -> None:
    """Refuse a mark that the shuffler of this public key, hexadecimal, has not signed."""
    body, signature = _body(mark.model_dump(exclude={"signature"})), bytes.fromhex(mark.signature)
    if not is_signed(public_key(identity), body, signature):
        raise Refused("the shuffler's mark is not signed by the roster's shuffler")


def check_follows(mark: Mark, of_run: Mark | None, of_shuffler: Mark | None) -> None:
    """Refuse a mark of a shuffler whose notes were set back, by the newest that the run was shown, and that
    any run was shown of the shuffler: another run's may be ahead while one process lasts.
    """
    for known in (of_run, of_shuffler):
        if known is None:
            continue
        late = known is not of_run and mark.start == known.start
        other = mark.number == known.number and mark.head != known.head
        if other or (mark.number < known.number and not late):
            raise Refused(
                f"the shuffler's notes were set back: they end with entry {mark.number}, or with another "
                f"one, and this silo was shown entry {known.number}; it answers no round through them"
            )


def _body(told: dict[str, object]) -> bytes:
    return _PURPOSE + json.dumps(told, sort_keys=True).encode()
