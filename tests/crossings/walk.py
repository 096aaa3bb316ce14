"""What becomes of a crossing: it works, it is refused in words, or it has faults."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from fedsim.common.errors import InputError, Refused


def state(call: Callable[[], Any]) -> tuple[str, Any]:
    """("works", result), ("refused", words), or ("fails", what was raised and where)."""
    try:
        return "works", call()
    except (InputError, Refused) as error:
        named = isinstance(error, Refused) or error.field
        return "refused" if named and len(str(error).splitlines()) == 1 else "fails", str(error)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:160]
        return "fails", f"{type(error).__name__}: {said} [{os.path.basename(at.filename)}:{at.lineno}]"


def judge(
    walk: str, faults_of: Callable[[dict[str, str]], list[str]], crossings: Iterable[dict[str, str]]
) -> None:
    """Walk crossings. Fails with a line for each fault: the crossing, and what is wrong."""
    found = [f"{walk} {json.dumps(own)}: {fault}" for own in crossings for fault in faults_of(own)]
    assert not found, "\n".join(found)


def protected(crossing: dict[str, str], said: str, where: str) -> list[str]:
    """A fault unless what is said there names what the crossing's guarantee is about."""
    of = "person" if crossing.get("unit", "record") != "record" else "record"
    of = "label" if crossing.get("algorithm") == "label_regression" else of
    of = "group" if crossing.get("mechanism") == "attribute" else of
    return [] if of in said else [f"{where} does not say {of}: {said[:100]}"]
