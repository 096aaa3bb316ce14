"""A daemon: frames in, frames out, for a bounded number of clients on one listening socket.

One thread waits for all clients at once. A request takes a place, and the time of a thread, when it is whole;
until then it costs a connection, of which there are many, and the bytes that have come. When there are too
many of either, the client that has been slow for the longest is closed. So silent and slow ones keep no other
waiting. A client that fails loses its connection only; it may send the same request again, here as everywhere
(`fedsim.wire.messages`).
"""

from __future__ import annotations

import hmac
import logging
import math
import queue
import select
import socket
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from fedsim.common.errors import Refused
from fedsim.wire.connections import TOKEN_BYTES
from fedsim.wire.frames import CUT, LENGTH, framed, head_of, length_of, opened

_PIECE = 1 << 20  # bytes of a frame that are taken at once
_TEND = 3600.0  # seconds

log = logging.getLogger("fedsim.wire.daemon")


class Answers(Protocol):
    """The party that answers, for any number of threads."""

    def answer(self, frame: bytes) -> bytes:
        """The frame that answers a frame; whatever is wrong with that one is a refusal in this one."""

    def tend(self) -> bool:
        """Do what is due, after an answer and in idle hours; False once only a new process can answer."""


@dataclass(frozen=True)
class Bounds:
    """What clients may take of the machine; at most `requests * frame_bytes` bytes of requests are held."""

    frame_bytes: int  # of one frame
    requests: int = (
        16  # in hand at once: whole, and the answer not taken; while there are so many, none is read
    )
    connections: int = 256  # at once; more than requests
    answers: int = 2  # requests that are being answered at once
    idle: float = 3600.0  # seconds that a client may leave between two requests
    begin: float = 5.0  # seconds for a frame's length; to take an answer, where that holds up others
    transfer: float = 60.0  # seconds for a frame to come, and for one to be taken
    drain: float = 15.0  # seconds for requests in hand when the daemon stops


class _Client:
    """One connection, and what has come of its next frame."""

    def __init__(self, connection: socket.socket, known: bool) -> None:
        connection.setblocking(False)
        self.connection, self.known, self.served = connection, known, False  # its token came; an answer went
        self.come, self.length = bytearray(), -1  # of the frame, or of its length while that is -1
        self.since = time.monotonic()  # it came, a frame began, its length came, an answer began or ended

    @property
    def begun(self) -> bool:
        return self.length >= 0 or bool(self.come)

    @property
    def wants(self) -> int:
        return min((LENGTH.size if self.length < 0 else self.length) - len(self.come), _PIECE)

    def read(self, limit: int) -> bytes | None:
        """Take what has come: the frame, of `limit` bytes at most, once it is whole; EOFError at the end."""
        part = self.connection.recv(self.wants)
        if not part:
            raise ConnectionError(CUT) if self.begun else EOFError
        if not self.begun:
            self.since = time.monotonic()
        self.come += part
        if self.length < 0 and len(self.come) == LENGTH.size:
            self.length, self.since = length_of(self.come, limit), time.monotonic()
            self.come.clear()
        if len(self.come) != self.length:
            return None
        frame = bytes(self.come)
        self.come, self.length = bytearray(), -1
        return frame


class Daemon:
    """Serves one party on one listening socket until it is stopped, or has `failed`: only a new process can
    answer.
    """

    def __init__(self, party: Answers, listener: socket.socket, bounds: Bounds, token: bytes = b"") -> None:
        """With a `token`, a client must send it as its first frame."""
        self._party, self._listener, self._bounds, self._token = party, listener, bounds, token
        self._sending = set[_Client]()  # a request, or nothing yet
        self._asking = dict[_Client, int]()  # bytes of its request
        self._taking = dict[_Client, memoryview]()  # the rest of its answer
        self._asked = queue.SimpleQueue[tuple[_Client, bytes] | None]()
        self._made = deque[tuple[_Client, str, bytes]]()
        self._stopping = self.failed = False
        self._answered: Counter[str] = Counter()
        self.wake, self._woken = socket.socketpair()
        self.wake.setblocking(False)  # as `signal.set_wakeup_fd` wants it

    def run(self) -> bool:
        """Serve until `stop`; then finish what is in hand. False if that took too long and still goes on."""
        self._listener.setblocking(False)
        with self.wake, self._woken:
            for _ in range(self._bounds.answers):
                threading.Thread(target=self._work, daemon=True).start()
            while not self._stopping:
                self._turn([self._listener])
            self._listener.close()
            self._drop([*self._sending])
            until = time.monotonic() + self._bounds.drain
            while self._in_hand and time.monotonic() < until:
                self._turn([], until)
            for _ in range(self._bounds.answers):
                self._asked.put(None)
            finished = not self._in_hand
            self._drop([*self._asking, *self._taking])
        return finished

    def stop(self) -> None:
        """End `run`; may be called by a signal handler."""
        self._stopping = True
        self._wake()

    @property
    def answered(self) -> dict[str, int]:
        """The number of answers so far, by the kind of message."""
        return dict(self._answered)

    @property
    def _in_hand(self) -> int:
        return len(self._asking) + len(self._taking)

    @property
    def _full(self) -> bool:
        return self._in_hand >= self._bounds.requests

    def _turn(self, listeners: list[socket.socket], until: float = math.inf) -> None:
        """Wait for clients, answers, a newcomer or the time, and see to all that have come."""
        able = dict.fromkeys(self._taking, select.POLLOUT)
        able |= {client: select.POLLIN for client in self._sending if not (client.known and self._full)}
        for client in self._sending - able.keys():  # their time stands still, since they are not read
            client.since = time.monotonic()
        waits = select.poll()
        for client, event in able.items():
            waits.register(client.connection, event)
        for other in (self._woken, *listeners):
            waits.register(other, select.POLLIN)
        left = min([until, *map(self._until, able)]) - time.monotonic()
        ready = dict(waits.poll(None if math.isinf(left) else max(0, math.ceil(1000 * left))))
        if self._woken.fileno() in ready:
            self._woken.recv(1 << 12)
        for client in able:
            if client.connection.fileno() in ready:  # which one that had to make room has no more
                self._step(client)
        while self._made:
            self._give(*self._made.popleft())
        now, left_over = time.monotonic(), able.keys() & (self._sending | self._taking.keys())
        self._drop([each for each in left_over if self._until(each) <= now], "it took too long")
        if any(listener.fileno() in ready for listener in listeners):
            self._admit()

    def _until(self, client: _Client) -> float:
        """When the time for what it sends or takes is over."""
        bounds = self._bounds
        if client in self._taking:
            return client.since + (bounds.begin if self._full and self._sending else bounds.transfer)
        if client.length >= 0:
            return client.since + bounds.transfer
        return client.since + (bounds.idle if client.known and not client.begun else bounds.begin)

    def _admit(self) -> None:
        if self._in_hand + len(self._sending) >= self._bounds.connections:
            self._make_room(self._sending)
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # no file handles left, or it has gone
            log.warning("a client could not be let in: %s", error)
            if not self._make_room(self._sending):
                time.sleep(0.1)
        else:
            self._sending.add(_Client(connection, known=not self._token))

    def _make_room(self, among: Iterable[_Client]) -> bool:
        """Close one: a stranger, else a silent or slow one, else an idle one; the one that was so longest."""
        ranked = sorted(among, key=lambda each: (each.known, each.served and not each.begun, each.since))
        self._drop(ranked[:1], "others needed its place")
        return bool(ranked)

    def _drop(self, clients: Iterable[_Client], reason: object = "") -> None:
        for client in clients:
            if reason:  # it had not come to an end
                log.info("a client was lost: %s", reason)
            self._sending.discard(client)
            self._taking.pop(client, None)
            self._asking.pop(client, None)
            client.connection.close()

    def _step(self, client: _Client) -> None:
        try:
            self._write(client) if client in self._taking else self._read(client)
        except BlockingIOError:
            pass
        except EOFError:
            self._drop([client])
        except Refused as error:
            log.warning("refused, and hung up: %s", error)
            self._drop([client])
        except (OSError, MemoryError) as error:  # its own affair, and only its own
            self._drop([client], error)

    def _read(self, client: _Client) -> None:
        if not client.known:
            told = client.read(TOKEN_BYTES)
            client.known = told is not None and hmac.compare_digest(told, self._token)
            if told is not None and not client.known:
                raise Refused("a client without this daemon's token")
        elif not self._full:
            slow = {each for each in self._sending if each.come} - {client}
            most = self._bounds.requests * self._bounds.frame_bytes - client.wants
            while slow and sum(self._asking.values()) + sum(len(each.come) for each in self._sending) > most:
                self._make_room(slow)
                slow &= self._sending
            if (request := client.read(self._bounds.frame_bytes)) is not None:
                self._sending.discard(client)
                self._asking[client] = len(request)
                self._asked.put((client, request))

    def _write(self, client: _Client) -> None:
        sent = client.connection.send(self._taking[client])
        self._taking[client] = self._taking[client][sent:]
        if not self._taking[client]:
            del self._taking[client]
            self._sending.add(client)
            client.served, client.since = True, time.monotonic()
            if self._stopping:
                self._drop([client])

    def _give(self, client: _Client, kind: str, answer: bytes) -> None:
        del self._asking[client]
        if not kind:
            client.connection.close()
            return
        self._answered[kind] += 1
        try:
            self._taking[client], client.since = memoryview(framed(answer)), time.monotonic()
        except MemoryError as error:
            self._drop([client], error)
        else:
            self._step(client)

    def _work(self) -> None:
        """Answer one request after the other; one that breaks the party has an answer of no kind."""
        while (asked := self._next()) is not None:
            client, request = asked
            try:
                answer = self._party.answer(request)
                kind = _note(answer)
            except Exception as error:  # its text may be made of records
                log.error("%s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
                kind, answer = "", b""
            self._made.append((client, kind, answer))
            del asked, request, answer  # which may be large, and the next may take hours to come
            self._wake()

    def _next(self) -> tuple[_Client, bytes] | None:
        while True:
            if not self._stopping and not self._party.tend():
                log.error("ends itself, since a write failed: the next start checks all that is stored")
                self.failed = True
                self.stop()
            with suppress(queue.Empty):
                return self._asked.get(timeout=_TEND)

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake, or has ended
            self.wake.send(b"!")


def _note(answer: bytes) -> str:
    """Write a line of the log, made of what leaves anyway; the kind of message."""
    kind, head = head_of(opened(answer)[0])
    if kind == "refusal":
        log.warning("refused: %s", ascii(head.get("reason"))[:500])
    else:
        log.info("%s %s", kind, " ".join(f"{key}={head[key]}" for key in ("run", "round") if key in head))
    return kind
