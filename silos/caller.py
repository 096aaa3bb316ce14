"""The way from a silo's Flower side to its daemon: a local socket that frames go through."""

from __future__ import annotations

import socket
from collections.abc import Callable

from fedsim.protocol import stream

Dial = Callable[[], socket.socket]


class DaemonAway(Exception):
    """The daemon does not listen, or closed the connection before it answered."""


class Caller:
    """One connection to a daemon, made anew when it broke.

    Args:
        dial: makes a connection, ready for frames.
        limit: bytes of a reply at most.
    """

    def __init__(self, dial: Dial, limit: int) -> None:
        self._dial, self._limit = dial, limit
        self._connection: socket.socket | None = None

    def ask(self, frame: bytes) -> bytes:
        """The daemon's answer; asked twice where an old connection turns out to be dead.

        Raises:
            DaemonAway: there is none.
        """
        if self._connection is not None:
            try:
                return self._exchange(frame)
            except OSError:
                self.close()  # the daemon was started anew since; the same frame gets the same reply
        try:
            self._connection = self._dial()
            return self._exchange(frame)
        except OSError as error:
            self.close()
            raise DaemonAway(str(error)) from error

    def _exchange(self, frame: bytes) -> bytes:
        assert self._connection is not None
        stream.send(self._connection, frame)
        reply = stream.receive(self._connection, self._limit)
        if reply is None:
            raise ConnectionError("the daemon closed the connection")
        return reply

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
