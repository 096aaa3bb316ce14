"""Outlines and records of data sets, kept for the cells that come next."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from fedsim.data.federation import Federation
from fedsim.data.outline import Outline, outline
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.trial import read

T = TypeVar("T")


class _Kept(Generic[T]):
    """The last few things made, by key."""

    def __init__(self, most: int) -> None:
        self._most, self._things = most, dict[str, T]()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The thing of this key, made if it is not there."""
        if key not in self._things:
            while len(self._things) >= self._most:  # before making another: both may not fit into memory
                del self._things[next(iter(self._things))]
            self._things[key] = make()
        return self._things[key]


_SECTIONS = ("data", "partition", "seed")
_OUTLINES: _Kept[Outline] = _Kept(64)
_RECORDS: _Kept[Federation] = _Kept(8)  # batches come sorted by their data, so that few are enough


def data_key(scenario: Mapping[str, Any]) -> str:
    """What the records of a scenario (as mappings) depend on, as a text."""
    return json.dumps([scenario[section] for section in _SECTIONS], sort_keys=True)


def resolved_of(scenario: Scenario) -> Resolved:
    """The scenario resolved, with what its theorem chooses.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    known = _OUTLINES.get(_key(scenario), lambda: outline(scenario.data, scenario.partition, scenario.seed))
    return resolve(scenario, known)


def records_of(resolved: Resolved, trial: int) -> Federation:
    """All silos' records in one trial."""
    return _RECORDS.get(f"{trial} {_key(resolved.scenario)}", lambda: read(resolved, trial))


def _key(scenario: Scenario) -> str:
    return data_key(scenario.model_dump(mode="json", include=set(_SECTIONS)))
