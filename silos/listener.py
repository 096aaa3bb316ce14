"""Where a daemon listens: a Unix socket that owner and group may use, or a port of the loopback interface."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.protocol.dial import LOOPBACK, MAX_PATH, dial_socket

_BACKLOG = 16


@contextmanager
def at_socket(path: Path) -> Iterator[socket.socket]:
    """Listen at `path`, mode 0660; a socket that a dead daemon left there is replaced, nothing else is.

    Raises:
        InputError: the folder is not there or anyone may write to it, or the path is taken.
    """
    _check_folder(path)
    _clear(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))  # under the process's umask: nobody else yet
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
    """Listen at a port of 127.0.0.1 and of no other interface.

    Raises:
        InputError: it is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise InputError("listen.port", port, f"a free port ({error.strerror})") from None
        listener.listen(_BACKLOG)
        yield listener


def _check_folder(path: Path) -> None:
    """Whoever may write to the folder may put another daemon's socket there."""
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
        dial_socket(path, seconds=1).close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError("listen.socket", str(path), f"a socket of this user's ({error})") from None
    else:
        raise InputError("listen.socket", str(path), "a socket where no other daemon listens")
