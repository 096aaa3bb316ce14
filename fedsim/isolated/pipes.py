"""Frames over two pipes: each is its length, 8 bytes big-endian, and a body of `fedsim.protocol.wire`."""

from __future__ import annotations

import os
import select
import struct
import time

from fedsim.common.errors import Refused
from fedsim.protocol.wire import Frame, decode, encode

_LENGTH = struct.Struct(">Q")
_PIECE = 1 << 20


class Pipes:
    """One end of the connection between a process and its child."""

    def __init__(self, read: int, write: int, patient: bool = False) -> None:
        """Descriptors to read from and to write to; `patient`: without deadlines, as in a child."""
        self._read, self._write = read, write
        if not patient:  # a confined child may not change them
            os.set_blocking(read, False)
            os.set_blocking(write, False)

    def send(self, frame: Frame, seconds: float | None = None) -> None:
        """Write a frame.

        Raises:
            TimeoutError: the other end does not read it in time.
            OSError: the other end is gone.
        """
        body = encode(frame)
        until, rest = _deadline(seconds), memoryview(_LENGTH.pack(len(body)) + body)
        while rest:
            try:
                rest = rest[os.write(self._write, rest) :]
            except BlockingIOError:
                _wait([], [self._write], until)

    def receive(self, limit: int, seconds: float | None = None) -> Frame:
        """Read the next frame, of `limit` bytes at most.

        Raises:
            Refused: it is longer, or malformed.
            TimeoutError: it does not come in time.
            EOFError: the other end is gone.
        """
        until = _deadline(seconds)
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, until))
        if length > limit:
            raise Refused(f"a frame of {length} bytes is over the limit of {limit}")
        return decode(self._exactly(length, until))

    def _exactly(self, length: int, until: float | None) -> bytes:
        """Memory grows with the bytes that came, not with the length that was announced."""
        data = bytearray()
        while missing := length - len(data):
            try:
                piece = os.read(self._read, min(missing, _PIECE))
            except BlockingIOError:
                _wait([self._read], [], until)
                continue
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _wait(read: list[int], write: list[int], until: float | None) -> None:
    left = None if until is None else max(0.0, until - time.monotonic())
    if not any(select.select(read, write, [], left)):
        raise TimeoutError
