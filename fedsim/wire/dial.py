"""The way to a daemon on the same machine: a Unix socket, or loopback TCP and a token."""

from __future__ import annotations

import re
import socket
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedsim.common.errors import InputError, Refused
from fedsim.wire import frames as wire
from fedsim.wire.frames import send

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32
MAX_PATH = 107
"""Bytes of a Unix socket's path on Linux."""


def dial_socket(path: Path, seconds: float) -> socket.socket:
    """A connection to the daemon at `path`; `seconds` bounds this and every later step on it.

    Raises:
        OSError: nobody listens there, or not to us.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    return _connected(connection, str(path), seconds)


def dial_port(port: int, token: bytes, seconds: float) -> socket.socket:
    """A connection to the daemon at a port of this machine, which closes it if the token is not its own.

    Raises:
        OSError: nobody listens there.
    """
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = _connected(connection, (LOOPBACK, port), seconds)
    send(connection, token)
    return connection


def _connected(connection: socket.socket, address: str | tuple[str, int], seconds: float) -> socket.socket:
    try:
        connection.settimeout(seconds)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def read_token(path: Path) -> bytes:
    """The 32 bytes that a client must send first, from a file of 64 hexadecimal digits.

    Raises:
        InputError: it is not there, anyone may read it, its group may write it, or it holds something else.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError("token", str(path), f"a file that can be read ({type(error).__name__})") from None
    if mode & (stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP):
        raise InputError("token", f"{path}, mode {stat.S_IMODE(mode):o}", "a file of mode 600 or 640")
    if not re.fullmatch("[0-9a-f]{64}", text):  # what it holds is nobody's to see
        raise InputError("token", str(path), "a file of 64 hexadecimal digits, as of `openssl rand -hex 32`")
    return bytes.fromhex(text)


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
