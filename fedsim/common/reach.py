"""Whether anybody listens at an address, found out within seconds."""

from __future__ import annotations

import socket
from threading import Thread

from fedsim.common.errors import InputError

SECONDS = 4.0


def check_reachable(address: str, field: str, who: str) -> None:
    """Refuse an address where nobody answers; a word without a port, such as `auto`, is not one.

    Args:
        address: host:port, perhaps after ray://.
        field: what an error names.
        who: what should answer there.

    Raises:
        InputError: it is no address, or nobody listens there.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    why = _ailment(host.strip("[]"), port)
    if why is not None:
        expected = f"no {who} answers there ({why}); must be host:port of a running one"
        raise InputError(field, address, expected)


def _ailment(host: str, port: str) -> str | None:
    """Why there is no connection; None where there is one."""
    said: list[str | None] = []

    def connect() -> None:
        try:
            socket.create_connection((host, int(port)), timeout=SECONDS).close()
            said.append(None)
        except (OSError, ValueError, OverflowError) as error:
            said.append(str(error))

    # A name that no server knows, or has many addresses, takes longer than one connection's limit.
    asking = Thread(target=connect, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return said[0] if said else "timed out"
