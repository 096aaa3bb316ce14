"""What passes between a server and a daemon: each request, and all that came back, before it goes on."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from support.daemons import PATIENCE, Listener

from fedsim.wire.dial import dial
from fedsim.wire.frames import receive, send

_LENGTH = struct.Struct(">Q")


class Exchange(NamedTuple):
    """A request, and its answer as far as it came."""

    request: bytes
    answer: bytes


class Tap:
    """Listens at a path for clients of the daemon that listens at another.

    Attributes:
        seen: in order, each kept before its answer is passed on; also where no client is there to take it.
    """

    def __init__(self, path: Path, to: Path) -> None:
        self.seen: list[Exchange] = []
        self._to = to
        self._listener = Listener(path, self._serve)

    def close(self) -> None:
        self._listener.stop()

    def _serve(self, client: socket.socket) -> None:
        with dial(self._to, PATIENCE) as daemon:
            came = b"whole"
            while came and (request := receive(client, 1 << 30)) is not None:
                send(daemon, request)
                came = _answer(daemon)
                self.seen.append(Exchange(request, came[_LENGTH.size :]))
                client.sendall(came)


def _answer(daemon: socket.socket) -> bytes:
    """A length and an answer, or what came of them before the daemon died."""
    came = b""
    with suppress(ConnectionError):
        while len(came) < _LENGTH.size or len(came) < _LENGTH.size + _LENGTH.unpack_from(came)[0]:
            part = daemon.recv(1 << 20)
            if not part:
                break
            came += part
    return came


@contextmanager
def tapped(path: Path, to: Path) -> Iterator[Tap]:
    """A tap, closed at the end."""
    made = Tap(path, to)
    try:
        yield made
    finally:
        made.close()
