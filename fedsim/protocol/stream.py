"""Frames on a stream: each is preceded by its length. Whoever only passes frames on needs no more than this."""

from __future__ import annotations

import socket
import struct

from fedsim.common.errors import Refused

_LENGTH = struct.Struct(">Q")


def send(connection: socket.socket, data: bytes) -> None:
    """One frame onto a stream."""
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket, limit: int) -> bytes | None:
    """The next frame of a stream; None at its end.

    Raises:
        Refused: it is longer than `limit` bytes; nothing of it has been read.
        ConnectionError: the stream ended within a frame.
    """
    first = _exactly(connection, _LENGTH.size)
    if first is None:
        return None
    (length,) = _LENGTH.unpack(first)
    if length > limit:
        raise Refused(f"a frame of {length} bytes is over the limit of {limit}")
    data = _exactly(connection, length)
    if data is None:
        raise ConnectionError("the stream ended within a frame")
    return data


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    """So many bytes, taken as they come: memory grows with what was sent, not with what was announced."""
    parts, missing = [], length
    while missing:
        part = connection.recv(min(missing, 1 << 20))
        if not part:
            if missing == length:
                return None
            raise ConnectionError("the stream ended within a frame")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
