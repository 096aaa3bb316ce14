"""The way to a daemon on the same machine: a Unix socket, or loopback TCP and a token."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.wire.frames import send

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32
MAX_PATH = 107  # bytes of a Unix socket's path on Linux


Address = Path | tuple[int, bytes]  # a Unix socket, or a port of this machine and the token that opens it


def dial(address: Address, seconds: float) -> socket.socket:
    """A connection to a daemon; `seconds` bounds this and every later step on it.

    The daemon at a port closes it if the token is another. OSError if none listens, or this user may not
    connect.
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


_BACKLOG = 16


class AtSocket(Section):
    """A Unix socket."""

    socket: Path = Field(description="its path")

    @property
    def address(self) -> Address:
        """The socket's path, which clients dial."""
        return self.socket


class AtPort(Section):
    """A port of this machine's loopback interface."""

    port: int = Field(ge=1, le=65535, description="of 127.0.0.1")
    token: Path = Field(description="a file with the secret that clients send first")

    @property
    def address(self) -> Address:
        """Port and token, which clients dial with; InputError if the token's file is not as it must be."""
        return self.port, read_token(self.token)


def listening(listen: AtSocket | AtPort) -> AbstractContextManager[socket.socket]:
    """`at_socket` or `at_port`."""
    return at_socket(listen.socket) if isinstance(listen, AtSocket) else at_port(listen.port)


def token_of(listen: AtSocket | AtPort) -> bytes:
    """What clients must send first; nothing where the socket's mode decides. InputError if the token's file
    is not as it must be.
    """
    return read_token(listen.token) if isinstance(listen, AtPort) else b""


@contextmanager
def at_socket(path: Path) -> Iterator[socket.socket]:
    """Listen at `path`, mode 0660; a socket that a dead daemon left there is replaced, nothing else is.
    InputError if the folder is not there or anyone may write to it, or the path is taken.
    """
    _check_folder(path)
    _clear(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))  # under the process's umask: not for others yet
        os.chmod(path, 0o660)
        mine = path.stat().st_ino
        listener.listen(_BACKLOG)
        try:
            yield listener
        finally:
            if path.exists() and path.stat().st_ino == mine:
                path.unlink()


@contextmanager
def at_port(port: int) -> Iterator[socket.socket]:
    """Listen at a port of 127.0.0.1 and of no other interface; InputError if it is taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise InputError("listen.port", port, f"a free port ({error.strerror})") from None
        listener.listen(_BACKLOG)
        yield listener


def _check_folder(path: Path) -> None:
    """A user who may write to the folder may put another daemon's socket there."""
    if len(os.fsencode(path)) > MAX_PATH:
        raise InputError("listen.socket", str(path), f"a path of at most {MAX_PATH} bytes")
    try:
        found = path.parent.stat()
    except OSError as error:
        raise InputError("listen.socket", str(path), f"a folder that is there ({error.strerror})") from None
    sticky = found.st_mode & stat.S_ISVTX
    if found.st_uid not in (0, os.geteuid()) or (found.st_mode & stat.S_IWOTH and not sticky):
        raise InputError("listen.socket", str(path), "a folder of this user's that others may not write to")


def _clear(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InputError("listen.socket", str(path), "a path where nothing else is")
    try:
        dial(path, seconds=1).close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError("listen.socket", str(path), f"a socket of this user's ({error})") from None
    else:
        raise InputError("listen.socket", str(path), "a socket where no other daemon listens")
