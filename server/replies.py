"""What a server accepts as a silo's reply: signed by the silo, of the right kind, with usable numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from pydantic import ValidationError

from fedsim.common.errors import Refused
from fedsim.common.identity import is_signed
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Arrays
from fedsim.wire.frames import Frame, decode, opened
from fedsim.wire.messages import Message, Refusal

Kind = TypeVar("Kind", bound=Message)
_MOST_TEXT = 300


class WrongReply(Exception):
    """Why a reply does not count, in public words.

    `final`: the silo itself said so, so that there is no use in asking it for the same again now, and where
    its `kind` is Lost ever. Otherwise something else may have answered in its place. `later`: the silo itself
    asks for time.
    """

    def __init__(self, reason: str, final: bool, later: bool = False, kind: type[Refused] = Refused) -> None:
        super().__init__(reason)
        self.reason, self.final, self.later, self.kind = reason, final, later, kind


@dataclass(frozen=True)
class Form:
    """What a message must look like: the arrays of each round, and type.

    An entry above the silos' limit would have them refuse the next broadcast, so none of a message is.
    """

    arrays: Sequence[Arrays]
    dtype: torch.dtype

    def check(self, frame: Frame, round_index: int) -> None:
        """Raise `WrongReply` for arrays that are not as they should be."""
        sizes = dict(self.arrays[round_index])
        if frame.arrays.keys() != sizes.keys():
            raise WrongReply("its message has other arrays than the algorithm's", final=True)
        for name, value in frame.arrays.items():
            if value.shape != (sizes[name],) or value.dtype != self.dtype:
                raise WrongReply("an array of its message has another shape or type", final=True)
            if not float(value.abs().max()) <= LIMITS.max_point:  # NaN compares false
                why = f"its message has an entry that is not finite or above {LIMITS.max_point:g}"
                raise WrongReply(why, final=True)


@dataclass(frozen=True)
class Reports:
    """As `Form`, with secure aggregation: one sealed report, of so many bytes in each round."""

    sizes: Sequence[int]

    def check(self, frame: Frame, round_index: int) -> None:
        """Raise `WrongReply` for anything but a report of the round's size."""
        if set(frame.arrays) != {"report"} or frame.arrays["report"].dtype != torch.uint8:
            raise WrongReply("its message has other arrays than a sealed report", final=True)
        if frame.arrays["report"].shape != (self.sizes[round_index],):
            raise WrongReply("its report has another size than the round's", final=True)


def read(data: bytes, identity: bytes, kind: type[Kind]) -> tuple[Kind, Frame]:
    """A silo's reply; WrongReply if it is of another kind, or not signed by this Ed25519 key (32 bytes)."""
    try:
        body, signature = opened(data)
        if not is_signed(identity, body, signature):
            raise WrongReply("its reply is not signed by its identity", final=False)
        frame = decode(body)
    except Refused as error:
        raise WrongReply(f"its reply cannot be read: {error}", final=False) from None
    if frame.kind == Refusal.kind:
        refusal = _head(frame, Refusal)
        if refusal.again:
            raise WrongReply(shown(refusal.reason), final=False, later=True)
        raise WrongReply(f"refused: {shown(refusal.reason)}", final=True, kind=refusal.error)
    return _head(frame, kind), frame


def _head(frame: Frame, kind: type[Kind]) -> Kind:
    if frame.kind != kind.kind:
        raise WrongReply(f"it answered with another kind of message than {kind.kind}", final=False)
    try:
        return kind.model_validate(dict(frame.head))
    except ValidationError:
        raise WrongReply(f"its {kind.kind} is malformed", final=True) from None


def shown(text: str) -> str:
    """A silo's words for a terminal and a page: printable, on one line, not without end."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= _MOST_TEXT else plain[: _MOST_TEXT - 3] + "..."
