"""The way from a silo's Flower side to its daemon: a local socket that frames go through."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedsim.common.errors import InputError, Refused
from fedsim.protocol import wire
from fedsim.protocol.dial import dial_port, dial_socket, read_token

Dial = Callable[[], socket.socket]


PATIENCE = 3600.0
"""Seconds for one answer: a round of many queries takes its time."""


def dialler(socket: Path | None, port: int | None, token: Path | None) -> Dial:
    """How to reach a daemon: by its Unix socket, or by its port on this machine and the file of its token.

    Raises:
        InputError: neither or both are given, or the token cannot be read.
    """
    if socket is not None and port is None and token is None:
        return partial(dial_socket, socket, PATIENCE)
    if socket is None and port is not None and token is not None:
        return partial(dial_port, port, read_token(token), PATIENCE)
    raise InputError("--socket", str(socket), "the daemon's socket, or --port and --token")


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
            except (OSError, Refused):
                self.close()  # the daemon was started anew since; the same frame gets the same reply
        try:
            self._connection = self._dial()
            return self._exchange(frame)
        except (OSError, Refused) as error:  # refused: a reply that is too long
            self.close()
            raise DaemonAway(str(error)) from error

    def _exchange(self, frame: bytes) -> bytes:
        assert self._connection is not None
        wire.send(self._connection, frame)
        reply = wire.receive(self._connection, self._limit)
        if reply is None:
            raise ConnectionError("the daemon closed the connection")
        return reply

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
