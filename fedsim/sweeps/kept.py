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
    """The last things made, by key: so many, or more as long as they weigh no more than `room`."""

    def __init__(self, most: int, room: int = 0, weight: Callable[[T], int] = lambda thing: 1) -> None:
        self._most, self._room, self._weight = most, room, weight
        self._things, self._weights = dict[str, T](), dict[str, int]()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The thing of this key, made if it is not there."""
        if key not in self._things:
            while self._full():  # before making another: both may not fit into memory
                oldest = next(iter(self._things))
                del self._things[oldest], self._weights[oldest]
            self._things[key] = make()
            self._weights[key] = self._weight(self._things[key])
        return self._things[key]

    def _full(self) -> bool:
        held = self._weights.values()
        return len(held) >= self._most and sum(held) + max(held) > self._room


_SECTIONS = ("data", "partition", "seed")
_OUTLINES: _Kept[Outline] = _Kept(64)
_RECORDS: _Kept[Federation] = _Kept(8, 2**29, lambda data: data.nbytes)
"""Batches come sorted by their data, so that few are enough; but preparing images takes seconds a trial."""


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
    known = _OUTLINES.get(
        data_key(_sections(scenario)), lambda: outline(scenario.data, scenario.partition, scenario.seed)
    )
    return resolve(scenario, known)


def records_of(resolved: Resolved, trial: int) -> Federation:
    """All silos' records in one trial."""
    key = records_key(_sections(resolved.scenario), trial)
    return _RECORDS.get(key, lambda: read(resolved, trial))


def _sections(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(mode="json", include=set(_SECTIONS))
