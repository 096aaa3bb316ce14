"""The client's side of the way to a daemon: a socket, or a port and its token. Loads in milliseconds."""

from __future__ import annotations

import re
import socket
import stat
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.wire.frames import send

LOOPBACK = "127.0.0.1"
Address = Path | tuple[int, bytes]  # a Unix socket, or a port of this machine and the token that opens it


def dial(address: Address, seconds: float) -> socket.socket:
    """A connection to a daemon; `seconds` bounds this and every later step on it.

    The daemon at a port closes it at another token. OSError if none listens, or this user may not connect.
    """
    if isinstance(address, Path):
        return _connected(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), str(address), seconds)
    port, token = address
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    send(_connected(connection, (LOOPBACK, port), seconds), token)
    return connection


def listens(address: Address, seconds: float) -> bool:
    """Whether a daemon listens there, and this user may connect."""
    try:
        dial(address, seconds).close()
    except OSError:
        return False
    return True


def _connected(connection: socket.socket, address: str | tuple[str, int], seconds: float) -> socket.socket:
    try:
        connection.settimeout(seconds)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def read_token(path: Path) -> bytes:
    """The 32 bytes that a client must send first, from a file of 64 hexadecimal digits. InputError if it is
    not there, anyone may read it, its group may write it, or it holds something else.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError("token", str(path), f"a file that can be read ({type(error).__name__})") from None
    if mode & (stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP):
        raise InputError("token", f"{path}, mode {stat.S_IMODE(mode):o}", "a file of mode 600 or 640")
    if not re.fullmatch("[0-9a-f]{64}", text):  # its content must not be shown
        raise InputError("token", str(path), "a file of 64 hexadecimal digits, as of `openssl rand -hex 32`")
    return bytes.fromhex(text)
