"""The health check of a daemon, which is run every few seconds: it loads neither pydantic nor torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedsim.common.errors import InputError, Refused
from fedsim.wire.dial import Address, dial, read_token
from fedsim.wire.frames import MAX_HEAD, head_of, opened, receive, sealed, send

_WITHIN = 5.0  # seconds
HELLO = b"@" + bytes(7) + rb'{"__metadata__":{"message":"[\"hello\", {\"head\": \"\"}]"}}    '
"""The body of `fedsim.wire.messages.Hello`, in the bytes of safetensors."""


def asked(arguments: Sequence[str]) -> Address | None:
    """Where the daemon of the file listens, for `--config FILE --health` alone and a file that says where;
    None for all else, which the whole command line reads and explains.
    """
    if len(arguments) != 3 or arguments[0] != "--config" or arguments[2] != "--health":
        return None
    file = Path(arguments[1])
    try:
        listen = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["listen"]
        if set(listen) == {"socket"}:
            return file.parent / str(listen["socket"])
        return int(listen["port"]), read_token(file.parent / listen["token"])
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError, InputError):
        return None


def answered(address: Address, body: bytes, seconds: float) -> tuple[str, Mapping[str, Any]]:
    """Kind and head of a daemon's answer to the body of a message; each step has so many seconds. OSError if
    none answers, Refused if it is no frame.
    """
    with dial(address, seconds) as connection:
        send(connection, sealed(body))
        return head_of(opened(receive(connection, MAX_HEAD) or b"")[0])


def check(address: Address, kind: str, name: str) -> int:
    """The exit code of a health check: 0 where the daemon says who it is in a message of this kind.

    Otherwise 1. The reason, or its notices, on stderr, in lines that begin with `name`.
    """
    try:
        found, head = answered(address, HELLO, _WITHIN)
    except (OSError, Refused) as error:
        found, lines = "", [str(error)]
    else:
        lines = [*head.get("notices", ())] if found == kind else [str(head.get("reason"))]
    for line in lines:
        print(f"{name}: {line}", file=sys.stderr)
    return 0 if found == kind else 1
