"""Frames in a file that is only added to: each is there once `append` returns, whatever ends the process.

    length of the payload, 8 bytes | CRC-32 of those, 4 bytes | SHA-256 of the payload, 16 bytes | payload

The payload is a frame's body, compressed. A last record that was cut short is dropped when the file is
opened.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
from fedsim.wire import frames as wire
from fedsim.wire.frames import Frame

_HEADER = struct.Struct(">QI16s")
_LENGTH = struct.Struct(">Q")
OVERHEAD = 512
"""Bytes of a record beside its arrays, about."""


class Log:
    """A file of frames: read from the front, added to at the end, by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open what `create` made; the next frame to be read is the first.

        Raises:
            InputError: it is not there, is damaged before its end, or another process has it.
        """
        try:
            self._file: BinaryIO = path.open("r+b")
        except OSError as error:
            raise InputError("checkpoint", str(path), f"cannot be opened ({error.strerror})") from None
        try:
            _lock(self._file, path)
            self._end = _valid(self._file, path)
            self._file.truncate(self._end)
            self._file.seek(0)
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def create(cls, path: Path, first: Frame) -> Self:
        """A new file with its first frame.

        Raises:
            OSError: it cannot be written.
        """
        with whole_file(path) as draft:
            draft.write_bytes(_record(first))
        _sync_folder(path.parent)
        made = cls(path)
        made.next()
        return made

    def next(self) -> Frame | None:
        """The next frame; None at the end."""
        if self._file.tell() >= self._end:
            return None
        length, _, _ = _HEADER.unpack(self._file.read(_HEADER.size))
        return wire.decode(zlib.decompress(self._file.read(length)))

    def append(self, frame: Frame) -> None:
        """Add a frame for good.

        Raises:
            OSError: it cannot be written; the file is as it was.
        """
        record = _record(frame)
        self._file.seek(self._end)
        try:
            self._file.write(record)
            self._file.flush()
            os.fsync(self._file.fileno())
        except BaseException:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += len(record)

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()


def _record(frame: Frame) -> bytes:
    packer = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)  # noise has no repetitions to look for
    payload = packer.compress(wire.encode(frame)) + packer.flush()
    length = _LENGTH.pack(len(payload))
    return _HEADER.pack(len(payload), zlib.crc32(length), _digest(payload)) + payload


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()[:16]


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError("checkpoint", str(path), "another process is at this run") from None


def _valid(file: BinaryIO, path: Path) -> int:
    """Bytes of whole records.

    Raises:
        InputError: something other than the last record is damaged.
    """
    size, end = os.fstat(file.fileno()).st_size, 0
    while end < size:
        file.seek(end)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            break
        length, check, digest = _HEADER.unpack(header)
        following = end + _HEADER.size + length
        if check != zlib.crc32(_LENGTH.pack(length)):
            following = 0
        elif following > size:
            break
        elif _digest(file.read(length)) == digest:
            end = following
            continue
        if following != size and any(_rest(file, end)):  # a file may be longer than what was written of it
            raise InputError("checkpoint", str(path), f"is damaged at byte {end} of {size}")
        break
    return end


def _rest(file: BinaryIO, start: int) -> bytes:
    file.seek(start)
    return file.read()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
