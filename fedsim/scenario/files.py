"""The files that a scenario names: where they are seen from a folder, and what is in them."""

from __future__ import annotations

from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.data.dataset import Dataset
from fedsim.data.fetch import content, obtain
from fedsim.scenario.model import Scenario

FIELD = "scenario.files"


def digests(data: Dataset, attendance: Path | None) -> dict[str, str]:
    """SHA-256 of what is in every file that records or rounds depend on, by the field that names it.

    Args:
        data: the data set.
        attendance: the file that says who takes part, if there is one.

    Raises:
        InputError: one cannot be read.
    """
    return {field: content(path, f"scenario.{field}") for field, path in _named(data, attendance).items()}


def digests_of(scenario: Scenario) -> dict[str, str]:
    """As `digests`, of a scenario."""
    return digests(scenario.data, _attendance(scenario))


def check_unchanged(scenario: Scenario) -> None:
    """Check that the files are those that the scenario says it was run with, if it says so.

    Raises:
        InputError: one has other contents, or is not named any more.
    """
    if not scenario.files:
        return
    obtain(scenario.data.wanted)
    named = _named(scenario.data, _attendance(scenario))
    for field, before in scenario.files.items():
        path = named.get(field)
        if path is None or content(path, f"scenario.{field}") != before:
            what = "no file is named there" if path is None else f"{path.name} has other contents"
            hint = f"of the file that this scenario was run with, and {what} now"
            raise InputError(f"{FIELD}.{field}", before, f"{hint}; files=null runs it all the same")


def _named(data: Dataset, attendance: Path | None) -> dict[str, Path]:
    found = {f"data.{field}": path for field, path in data.files.items()}
    return found if attendance is None else {**found, "participation.path": attendance}


def _attendance(scenario: Scenario) -> Path | None:
    return getattr(scenario.participation, "path", None)
