"""The way to a daemon on the same machine: a Unix socket, or loopback TCP and a token."""

from __future__ import annotations

import re
import socket
import stat
from pathlib import Path

from fedsim.common.errors import InputError
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
