"""A channel over the daemons' own sockets, for silos that are processes of this machine."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress

from fedsim.common.errors import Refused
from fedsim.wire.dial import Address, dial
from fedsim.wire.frames import receive, send
from server.federation import KNOCK, NO_FRAMES, Frames

MAX_REPLY = 1 << 30  # bytes; memory grows with what is sent, not with what is announced
_PAUSE, _LONGEST_PAUSE = 0.01, 0.5  # seconds between two attempts


class Sockets(AbstractContextManager["Sockets"]):
    """A `Channel`: one lasting connection and one thread a silo; a reply has at most `limit` bytes."""

    def __init__(self, addresses: Mapping[str, Address], limit: int = MAX_REPLY) -> None:
        self._lines = {name: _Line(address, limit) for name, address in addresses.items()}
        self._pool = ThreadPoolExecutor(max(1, len(self._lines)), "silo")

    def exchange(self, frames: Frames, deadline: float, knocks: Frames = NO_FRAMES) -> Frames:
        """See `Channel`. A connection on which a reply is late is closed: no later one can take its place."""
        start = time.monotonic()
        until, every = start + deadline, {**frames, **knocks}
        lines = {name: self._lines[name] for name in every}
        for line in lines.values():
            line.open()
        futures = {name: self._pool.submit(line.ask, every[name], until) for name, line in lines.items()}
        try:
            wait([futures[name] for name in frames], until - time.monotonic())
            wait([futures[name] for name in knocks], max(0.0, start + KNOCK - time.monotonic()))
        finally:
            for line in lines.values():
                line.give_up()
        replies = {name: future.result() for name, future in futures.items()}
        return {name: reply for name, reply in replies.items() if reply is not None}

    def close(self) -> None:
        """End all connections."""
        for line in self._lines.values():
            line.close()
        self._pool.shutdown()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Line:
    """One silo's connection, made when it is needed and made anew when it broke."""

    def __init__(self, address: Address, limit: int) -> None:
        self._address, self._limit = address, limit
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()  # of `_waiting`, and of closing what another thread waits on
        self._waiting, self._over = False, threading.Event()

    def open(self) -> None:
        """From here on `ask` may try."""
        self._waiting = True
        self._over.clear()

    def ask(self, frame: bytes, until: float) -> bytes | None:
        """The reply; None where there is none before `until` or before `give_up`."""
        pause = _PAUSE
        while self._waiting and (left := until - time.monotonic()) > 0:
            try:
                connection = self._ready() or self._dialled(left)
                connection.settimeout(left)
                send(connection, frame)
                if (reply := receive(connection, self._limit)) is None:
                    raise ConnectionError("the daemon closed the connection")
            except OSError:
                self.close()
                self._over.wait(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)
            except Refused:  # too long a reply, of which nothing has been read
                self.close()
                break
            else:
                with self._lock:
                    waiting, self._waiting = self._waiting, False
                return reply if waiting else None
        return None

    def give_up(self) -> None:
        """Wake `ask` up where it still waits; the connection is of no use then."""
        with self._lock:
            if self._waiting:
                self._waiting = False
                self._over.set()
                if self._connection is not None:
                    with suppress(OSError):
                        self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _ready(self) -> socket.socket | None:
        """The connection, if nothing waits on it: its end, or a reply that was not asked for."""
        if self._connection is not None:
            waiting = select.poll()
            waiting.register(self._connection, select.POLLIN)
            if waiting.poll(0):
                self.close()
        return self._connection

    def _dialled(self, seconds: float) -> socket.socket:
        connection = dial(self._address, seconds)
        with self._lock:
            self._connection = connection
            if not self._waiting:
                raise TimeoutError
        return connection
