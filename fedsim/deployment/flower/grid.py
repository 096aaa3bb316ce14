"""A channel through Flower: a SuperLink in between, silos known by their nodes' keys.

Nothing is asked of Flower but to carry bytes: who takes part is decided here, by pinned public keys and never
by the names that nodes bear; replies are checked by the caller (`server.federation`) against the silo's
signature.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from flwr.app import Array, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid

from fedsim.deployment.node_keys import normal
from fedsim.wire import flower as carried
from server.federation import KNOCK, NO_FRAMES, Frames

POLL = 0.2  # seconds between two looks for replies; each costs a SuperLink 10 ms
_LOOK_AROUND = 2.0  # seconds between two looks at which nodes are there
_AGAIN = 1.0  # seconds before a silo that could not answer is asked again
_PATIENCE = 30.0  # seconds for a reply that has been announced to be there; one silo's must not cost others
_GRACE = 10.0  # seconds that clocks may differ by, before a node takes a message for too old
_log = logging.getLogger("fedsim.server")


@dataclass
class _Silo:
    """One silo in one exchange."""

    name: str
    frame: bytes
    node: int | None = None
    since: str = ""  # when its node came online last: a message to an earlier process of the node may be lost
    due: float = 0.0  # when the frame is to be sent; infinite while a reply is awaited
    asked: set[str] = field(default_factory=set)  # the messages that it may reply to


class OnGrid:
    """A `server.federation.Channel`; `keys` are the public keys of the silos' nodes, PEM as of `node_key`."""

    def __init__(self, grid: Grid, keys: Mapping[str, bytes]) -> None:
        self._grid = grid
        self._names = {key: name for name, key in keys.items()}
        if len(self._names) < len(keys):
            raise ValueError("two silos have the same node's key")

    def online(self) -> dict[str, tuple[int, str]]:
        """The node of every silo that is there, and when it came online."""
        there = [node for node in self._grid.get_nodes() if node.status == "online"]
        keys = {normal(node.public_key): (node.node_id, node.last_activated_at) for node in there}
        return {name: keys[key] for key, name in self._names.items() if key in keys}

    def exchange(self, frames: Frames, deadline: float, knocks: Frames = NO_FRAMES) -> Frames:
        """See `server.federation.Channel`; replies to earlier exchanges are never looked for."""
        start = time.monotonic()
        until = start + deadline
        waiting = {name: _Silo(name, frame) for name, frame in {**frames, **knocks}.items()}
        replies: dict[str, bytes] = {}
        look = 0.0
        # Flower waits 1, 2, 4 .. 10 s, up to forever, for a reply whose parts are still on their way up
        patience = min(_PATIENCE, deadline / 2)
        quicker = partial(pull_objects, initial_backoff=0.05, backoff_cap=0.5, max_time=patience)
        http_grid.__dict__["pull_objects"] = quicker
        while waiting and (now := time.monotonic()) < until:
            if waiting.keys() <= knocks.keys() and now > start + KNOCK:
                break
            if now >= look:
                self._look_around(waiting.values())
                look = now + _LOOK_AROUND
            self._send([s for s in waiting.values() if s.node is not None and s.due <= now], until - now)
            time.sleep(POLL)
            for name, frame in self._collect(waiting):
                replies[name] = frame
                del waiting[name]
        return replies

    def _look_around(self, silos: Iterable[_Silo]) -> None:
        online = self.online()
        for silo in silos:
            node, since = online.get(silo.name, (None, ""))
            if (node, since) != (silo.node, silo.since) and node is not None:
                silo.due = 0.0
            silo.node, silo.since = node, since

    def _send(self, due: Sequence[_Silo], seconds: float) -> None:
        if due:
            ids = self._grid.push_messages([_message(silo, seconds) for silo in due])
            for silo, message_id in zip(due, ids, strict=True):
                silo.due = float("inf")
                if message_id:
                    silo.asked.add(message_id)

    def _collect(self, waiting: Mapping[str, _Silo]) -> list[tuple[str, bytes]]:
        asked = {message_id: silo for silo in waiting.values() for message_id in silo.asked}
        found = {}
        for reply in self._grid.pull_messages(asked) if asked else ():
            silo = asked[reply.metadata.reply_to_message_id]
            silo.asked.discard(reply.metadata.reply_to_message_id)
            frame = _frame(reply)
            if frame is not None:
                found[silo.name] = frame
            elif not silo.asked:
                # of fixed texts: what a node says of its errors is not repeated
                code = reply.error.code if reply.has_error() else carried.UNREADABLE
                why = carried.REASONS.get(code, f"no reply (Flower's code {code})")
                _log.info("silo %s: %s", silo.name, why)
                silo.due = time.monotonic() + _AGAIN
        return list(found.items())


def _message(silo: _Silo, seconds: float) -> Message:
    content = RecordDict({carried.RECORD: carried.record_of(silo.frame)})
    assert silo.node is not None
    return Message(content, dst_node_id=silo.node, message_type=carried.MESSAGE_TYPE, ttl=seconds + _GRACE)


def _frame(reply: Message) -> bytes | None:
    if reply.has_error():
        return None
    try:
        found = reply.content[carried.RECORD][carried.RECORD]
    except KeyError:
        return None
    frame = found.data if isinstance(found, Array) else found
    return frame if isinstance(frame, bytes) else None
