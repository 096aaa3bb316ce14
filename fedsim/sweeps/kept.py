"""Outlines and records of data sets, kept for the cells that come next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedsim.data.federation import Federation, outline
from fedsim.data.source import Outline
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.trial import read

_SECTIONS = ("data", "partition", "seed")
_OUTLINES: dict[str, Outline] = {}
_RECORDS: dict[str, Federation] = {}
_MOST_OUTLINES, _MOST, _ROOM = 64, 8, 2**29
"""So many records are kept, or more as long as they take no more bytes than `_ROOM`. Batches come sorted by
their data, so that few are enough; but preparing images takes seconds a trial.
"""


def data_key(scenario: Mapping[str, Any]) -> str:
    """What the records of a scenario (as mappings) depend on, as a text."""
    return json.dumps([scenario[section] for section in _SECTIONS], sort_keys=True)


def records_key(scenario: Mapping[str, Any], trial: int) -> str:
    """What the records of one trial depend on."""
    return f"{trial} {data_key(scenario)}"


def resolved_of(scenario: Scenario) -> Resolved:
    """The scenario resolved, with what its theorem chooses.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    key = data_key(_sections(scenario))
    if key not in _OUTLINES:
        if len(_OUTLINES) == _MOST_OUTLINES:
            del _OUTLINES[next(iter(_OUTLINES))]
        _OUTLINES[key] = outline(scenario.data, scenario.partition, scenario.seed)
    return resolve(scenario, _OUTLINES[key])


def records_of(resolved: Resolved, trial: int) -> Federation:
    """All silos' records in one trial."""
    key = records_key(_sections(resolved.scenario), trial)
    if key not in _RECORDS:
        while _full():  # before reading others: both may not fit into memory
            del _RECORDS[next(iter(_RECORDS))]
        _RECORDS[key] = read(resolved, trial)
    return _RECORDS[key]


def _full() -> bool:
    sizes = [data.nbytes for data in _RECORDS.values()]
    return len(sizes) >= _MOST and sum(sizes) + max(sizes) > _ROOM


def _sections(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(mode="json", include=set(_SECTIONS))
