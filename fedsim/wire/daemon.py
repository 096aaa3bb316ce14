"""A daemon: frames in, frames out, for a bounded number of clients on one listening socket.

What a client can take of the machine is bounded: connections, bytes of a frame, time for a frame to come or
to be taken away, answers under way at once. When every connection is taken, one that has not sent the whole
length of a frame, or not the whole frame `begin` seconds later, is closed for the newcomer: silent and slow
clients keep no other client out. A client that fails loses its connection only; it may send the same request
again, here as everywhere (`fedsim.wire.messages`).
"""

from __future__ import annotations

import hmac
import logging
import math
import selectors
import socket
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from fedsim.common.errors import Refused
from fedsim.wire.connections import TOKEN_BYTES
from fedsim.wire.frames import announced, awaited, head_of, opened, reader, receive, send

log = logging.getLogger("fedsim.wire.daemon")


class Answers(Protocol):
    """The party that answers, for any number of threads."""

    def answer(self, frame: bytes) -> bytes:
        """The frame that answers a frame; whatever is wrong with that one is a refusal in this one."""


@dataclass(frozen=True)
class Bounds:
    """What clients may take of the machine; at most `clients * frame_bytes` bytes of requests are held."""

    frame_bytes: int  # of one frame
    clients: int = 16  # connections at once
    answers: int = 2  # requests that are being answered at once
    idle: float = 3600.0  # seconds that a client may leave between two requests
    begin: float = 5.0  # seconds for a frame's length, then for the frame if others wait for the place
    transfer: float = 60.0  # seconds for a frame to come, and for one to be taken
    drain: float = 15.0  # seconds for requests in hand when the daemon stops


@dataclass(eq=False)
class _Client:
    connection: socket.socket
    spare_since: float = math.inf
    """From when on its place may be given to a newcomer; infinity while a whole request is in hand."""


class Daemon:
    """Serves one party on one listening socket until it is stopped."""

    def __init__(self, party: Answers, listener: socket.socket, bounds: Bounds, token: bytes = b"") -> None:
        """With a `token`, a client must send it as its first frame."""
        self._party, self._listener, self._bounds, self._token = party, listener, bounds, token
        self._seats = threading.BoundedSemaphore(bounds.clients)
        self._answering = threading.BoundedSemaphore(bounds.answers)
        self._threads: dict[_Client, threading.Thread] = {}
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._answered: Counter[str] = Counter()
        self.wake, self._woken = socket.socketpair()
        self.wake.setblocking(False)  # as `signal.set_wakeup_fd` wants it

    def run(self) -> bool:
        """Serve until `stop`; then finish what is in hand. False if that took too long and still goes on."""
        with self.wake, self._woken, selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            while not self._stopping.is_set():
                if any(key.fileobj is self._listener for key, _ in ready.select()):
                    self._admit()
            self._listener.close()
            with self._lock:
                threads = dict(self._threads)
            for client in threads:
                _hang_up(client)
            until = time.monotonic() + self._bounds.drain
            for thread in threads.values():
                thread.join(max(0.0, until - time.monotonic()))
            return not any(thread.is_alive() for thread in threads.values())

    def stop(self) -> None:
        """End `run`; may be called by a signal handler."""
        if not self._stopping.is_set():
            self._stopping.set()
            self.wake.send(b"!")

    @property
    def answered(self) -> dict[str, int]:
        """The number of answers so far, by the kind of message."""
        with self._lock:
            return dict(self._answered)

    def _admit(self) -> None:
        if not self._seats.acquire(blocking=False):
            self._make_room()
            if not self._seats.acquire(timeout=1):
                return  # all have requests in hand; the newcomer waits in the backlog
        try:
            connection, _ = self._listener.accept()
            self._start(_Client(connection))
        except (OSError, RuntimeError) as error:  # no file handles or threads left, or it has gone
            self._seats.release()
            log.warning("a client could not be let in: %s", error)
            self._stopping.wait(0.1)

    def _start(self, client: _Client) -> None:
        thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
        with self._lock:
            self._threads[client] = thread
        try:
            thread.start()
        except RuntimeError:
            self._forget(client)
            raise

    def _make_room(self) -> None:
        with self._lock:
            clients = [(client.spare_since, client) for client in self._threads]
        since, first = min(clients, key=lambda each: each[0], default=(math.inf, None))
        if first is not None and since <= time.monotonic():
            _hang_up(first)

    def _serve(self, client: _Client) -> None:
        try:
            self._welcome(client)
            while not self._stopping.is_set() and self._exchange(client):
                pass
        except Refused as error:
            log.warning("refused, and hung up: %s", error)
        except OSError as error:  # its own affair, and only its own
            log.info("a client was lost: %s", error)
        except Exception as error:  # its text may be made of records
            log.error("%s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
        finally:
            self._forget(client)
            self._seats.release()

    def _forget(self, client: _Client) -> None:
        with self._lock:
            del self._threads[client]
            client.connection.close()

    def _welcome(self, client: _Client) -> None:
        if self._token:
            client.spare_since = 0.0  # before everybody's: the first to go when a place is needed
            told = receive(client.connection, TOKEN_BYTES, self._bounds.begin) or b""
            if not hmac.compare_digest(told, self._token):
                raise Refused("a client without this daemon's token")

    def _exchange(self, client: _Client) -> bool:
        """One request and its answer; False when the client has gone."""
        bounds = self._bounds
        client.spare_since = time.monotonic()
        client.connection.settimeout(bounds.idle)
        if not client.connection.recv(1, socket.MSG_PEEK):
            return False
        length = announced(reader(client.connection, bounds.begin), bounds.frame_bytes)
        if length is None:
            return False
        client.spare_since = time.monotonic() + bounds.begin
        request = awaited(reader(client.connection, bounds.transfer), length)
        client.spare_since = math.inf
        with self._answering:
            answer = self._party.answer(request)
        kind = _note(answer)
        with self._lock:
            self._answered[kind] += 1
        client.connection.settimeout(bounds.transfer)  # for all of it
        send(client.connection, answer)
        return True


def _hang_up(client: _Client) -> None:
    """Let its thread read the end of the stream; an answer in hand can still be sent."""
    with suppress(OSError):  # it has gone
        client.connection.shutdown(socket.SHUT_RD)


def _note(answer: bytes) -> str:
    """Write a line of the log, made of what leaves anyway; the kind of message."""
    kind, head = head_of(opened(answer)[0])
    if kind == "refusal":
        log.warning("refused: %s", ascii(head.get("reason"))[:500])
    else:
        log.info("%s %s", kind, " ".join(f"{key}={head[key]}" for key in ("run", "round") if key in head))
    return kind
