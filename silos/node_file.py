"""What a node remembers between its processes: its number at the SuperLink.

A SuperLink refuses a key whose node is online, and takes a node that was killed for online for a minute. A
new process that knows the number can say first that the old one is gone. The file is locked while a process
lives, so that two processes with one key do not put each other out.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fedsim.common.errors import InputError


class NodeFile:
    """The number of a node, in a file that one process holds at a time.

    A folder that cannot be written remembers nothing.

    Raises:
        InputError: another process holds it.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            self._handle = None
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError("--key", str(path), "a node that no other process runs") from None

    def read(self) -> int | None:
        """The number; None where there is none."""
        if self._handle is None:
            return None
        text = os.pread(self._handle, 32, 0).decode("ascii", "replace")
        return int(text) if text.isdecimal() and text.isascii() else None

    def write(self, node: int) -> None:
        """Remember the number."""
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, str(node).encode(), 0)
