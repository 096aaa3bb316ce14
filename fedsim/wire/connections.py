"""The way to a daemon on the same machine: a Unix socket, or loopback TCP and a token."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.wire.dial import LOOPBACK, Address, dial, read_token

TOKEN_BYTES = 32
MAX_PATH = 107  # bytes of a Unix socket's path on Linux
_BACKLOG = 128


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


class MetricsAt(Section):
    """Where Prometheus finds a party's metrics."""

    port: int = Field(ge=1, le=65535, description="HTTP, at /metrics")
    address: IPv4Address | IPv6Address = Field(
        IPv4Address(LOOPBACK), description="of this machine, that it listens on; default: 127.0.0.1"
    )


def listening(listen: AtSocket | AtPort) -> AbstractContextManager[socket.socket]:
    """`at_socket` or `at_port`."""
    return at_socket(listen.socket) if isinstance(listen, AtSocket) else at_port(listen.port)


def token_of(listen: AtSocket | AtPort) -> bytes:
    """What clients must send first; nothing where the socket's mode decides. InputError for a wrong file."""
    return read_token(listen.token) if isinstance(listen, AtPort) else b""


@contextmanager
def at_socket(path: Path) -> Iterator[socket.socket]:
    """Listen at `path`, mode 0660; a socket that a dead daemon left there is replaced, nothing else is.
    InputError if the folder is not there or anyone may write to it, or the path is taken.
    """
    if len(os.fsencode(path)) > MAX_PATH:
        raise InputError("listen.socket", str(path), f"a path of at most {MAX_PATH} bytes")
    try:
        found = path.parent.stat()
    except OSError as error:
        raise InputError("listen.socket", str(path), f"a folder that is there ({error.strerror})") from None
    sticky = found.st_mode & stat.S_ISVTX
    # a user who may write to the folder may put another daemon's socket there
    if found.st_uid not in (0, os.geteuid()) or (found.st_mode & stat.S_IWOTH and not sticky):
        raise InputError("listen.socket", str(path), "a folder of this user's that others may not write to")
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
