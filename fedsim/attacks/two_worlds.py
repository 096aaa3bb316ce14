"""Two daemons that differ in one record, asked the same in step: a server's frames, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import TypeVar

from torch import Tensor

from fedsim.common.errors import InputError, Refused
from fedsim.wire.frames import Frame, decode, encode, opened, sealed
from fedsim.wire.messages import (
    Admission,
    Ask,
    Close,
    Closed,
    Greeting,
    Hello,
    Message,
    Offer,
    Refusal,
    Reply,
)
from server.federation import Channel

WORLDS = ("world-0", "world-1")
_M = TypeVar("_M", bound=Message)


class Worlds:
    """Daemons of some worlds, by their names on the channel: each method says the same to all of them.

    Raises, whatever is asked:
        Refused: a daemon refuses, or says something else.
        InputError: a daemon does not answer at all.
    """

    def __init__(self, channel: Channel, names: Sequence[str] = WORLDS, deadline: float = 60.0) -> None:
        self._channel, self._deadline = channel, deadline
        self._heads = dict.fromkeys(names, "")

    def alone(self, name: str) -> Worlds:
        """One of them."""
        return Worlds(self._channel, [name], self._deadline)

    def greet(self) -> list[Greeting]:
        """Who they are."""
        return self._all([Hello()] * len(self._heads), Greeting)[0]

    def offer(self, offer: Offer, session: str | None = None) -> list[Admission]:
        """A run in each world, a new one unless its session is named."""
        named = offer.model_copy(update={"session": session or token_hex(32)})
        return self._all([named] * len(self._heads), Admission)[0]

    def ask(self, runs: Sequence[str], round_index: int, broadcast: Mapping[str, Tensor]) -> list[Frame]:
        """The replies of a round."""
        return self._all([Ask(run=run, round=round_index, head="") for run in runs], Reply, broadcast)[1]

    def close(self, runs: Sequence[str]) -> list[Closed]:
        """The runs are over."""
        return self._all([Close(run=run, head="") for run in runs], Closed)[0]

    def says(self, message: Message, arrays: Mapping[str, Tensor] | None = None) -> bytes:
        """What the first of them says to anything, signature aside."""
        return self._exchange([message], arrays or {})[0]

    def _all(
        self, messages: Sequence[Message], kind: type[_M], arrays: Mapping[str, Tensor] | None = None
    ) -> tuple[list[_M], list[Frame]]:
        frames = [decode(body) for body in self._exchange(messages, arrays or {})]
        for frame in frames:
            if frame.kind == Refusal.kind:
                raise Refused(Refusal.model_validate(frame.head).reason)
            if frame.kind != kind.kind:
                raise Refused(f"a daemon answered with a {frame.kind}, not a {kind.kind}")
        heard = [kind.model_validate(frame.head) for frame in frames]
        for world, frame in zip(self._heads, frames, strict=True):
            self._heads[world] = frame.head["head"]
        return heard, frames

    def _exchange(self, messages: Sequence[Message], arrays: Mapping[str, Tensor]) -> list[bytes]:
        asked = dict(zip(self._heads, messages, strict=False))
        frames = {
            world: sealed(encode(Frame(message.kind, self._head(world, message), arrays)))
            for world, message in asked.items()
        }
        replies = self._channel.exchange(frames, self._deadline)
        for world in asked:
            if world not in replies:
                hint = f"a daemon that answers within {self._deadline:g} s"
                raise InputError("daemon", world, hint)
        return [opened(replies[world])[0] for world in asked]

    def _head(self, world: str, message: Message) -> Mapping[str, object]:
        return message.model_copy(update={"head": self._heads[world]}).model_dump(mode="json")
