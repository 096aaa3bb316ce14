"""The files that a scenario names: where they are seen from a folder, and what is in them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.scenario.model import Scenario
from fedsim.scenario.participation import TracedSilos

FIELD = "scenario.files"


def named(scenario: Scenario) -> dict[str, Path]:
    """Every file that its records or rounds depend on, by the field that names it."""
    found = {f"data.{field}": path for field, path in scenario.data.files.items()}
    if isinstance(scenario.participation, TracedSilos):
        found["participation.path"] = scenario.participation.path
    return found


def digests(scenario: Scenario) -> dict[str, str]:
    """SHA-256 of their contents, 64 hexadecimal digits.

    Raises:
        InputError: one cannot be read.
    """
    return {field: _digest(field, path) for field, path in named(scenario).items()}


def check_unchanged(scenario: Scenario) -> None:
    """Check that the files are those that the scenario says it was run with, if it says so.

    Raises:
        InputError: one has other contents, or is not named any more.
    """
    for field, before in (scenario.files or {}).items():
        path = named(scenario).get(field)
        if path is None or _digest(field, path) != before:
            what = "no file is named there" if path is None else f"{path.name} has other contents"
            expected = f"of the file that this scenario was run with, and {what} now"
            raise InputError(f"{FIELD}.{field}", before, f"{expected}; files=null runs it all the same")


def _digest(field: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"scenario.{field}", str(path), f"cannot be read ({error.strerror})") from None
