"""The last entry that a server knows of each silo's ledger, kept from run to run.

A silo that is shown an entry that it does not know has lost some, for example because its disk was restored
from an older snapshot, and refuses.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
from fedsim.wire.messages import Echo

_HEADS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, Echo])


def read_heads(path: Path | None) -> dict[str, str]:
    """What is known; nothing where there is no such file yet.

    Raises:
        InputError: it is damaged.
    """
    if path is None or not path.exists():
        return {}
    try:
        return _HEADS.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        hint = "is damaged; without it, lost ledger entries are noticed within a run only: remove it to go on"
        raise InputError("federation.heads", str(path), hint) from None


def write_heads(path: Path | None, heads: dict[str, str]) -> None:
    """Keep them."""
    if path is not None and heads:
        with whole_file(path) as draft:
            draft.write_text(json.dumps(heads, indent=1, sort_keys=True) + "\n", encoding="utf-8")
