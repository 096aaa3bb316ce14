"""Whether a cluster answers at an address, found out within seconds."""

from __future__ import annotations

import os
import socket
from threading import Thread

from fedsim.common.errors import InputError

SECONDS = 4.0
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of gRPC begins: the preface of HTTP/2 and an empty SETTINGS frame (RFC 9113, 3.4)."""
_SETTINGS, _FRAME_HEAD = 4, 9


def check_reachable(address: str, field: str) -> None:
    """Refuse an address where no Ray cluster answers; a word without a port, such as `auto`, is not one.

    Args:
        address: host:port, perhaps after ray://.
        field: what an error names.

    Raises:
        InputError: it is no address, or nobody listens there, or somebody who does not speak gRPC.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    why = _ailment(host.strip("[]"), port)
    if why is not None:
        hint = f"no Ray cluster answers there ({why}); must be host:port of a running one"
        raise InputError(field, address, hint)


def _ailment(host: str, port: str) -> str | None:
    """Why nobody answers; None where somebody does."""
    said: list[str | None] = []

    def ask() -> None:
        try:
            with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
                said.append(_answer(connection))
        except (OSError, ValueError, OverflowError) as error:
            said.append(str(error))

    # A name that no server knows, or has many addresses, takes longer than one connection's limit.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return said[0] if said else "timed out"


def _answer(connection: socket.socket) -> str | None:
    """Why it is no server of gRPC; with TLS only a client with certificates could tell."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("0", ""):
        return None
    connection.sendall(_HELLO)
    head = b""
    while len(head) < _FRAME_HEAD and (more := connection.recv(_FRAME_HEAD - len(head))):
        head += more
    return None if len(head) == _FRAME_HEAD and head[3] == _SETTINGS else "another service listens there"
