"""Runs a sweep: tuning first, then the reported trials; what the cache has is not run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import NamedTuple, Protocol

from fedsim.scenario.resolve import LIMITS
from fedsim.scenario.sweep import TuneSection
from fedsim.sweeps.cache import Cache
from fedsim.sweeps.candidates import Selection, trials_of
from fedsim.sweeps.cells import Cell, CellResult, Failure, run_id
from fedsim.sweeps.combinations import Combination
from fedsim.sweeps.groups import batches
from fedsim.sweeps.keys import cell_of, key_of
from silos.parts import Parts

Outcome = CellResult | Failure


class Runner(Protocol):
    """Runs batches of cells somewhere."""

    def run(self, batches: Sequence[Sequence[Cell]]) -> Iterator[tuple[Cell, Outcome]]:
        """What becomes of each cell, in any order."""
        ...


class Place(NamedTuple):
    """What a cell is for: a trial of a candidate of a combination."""

    combination: int
    candidate: int
    trial: int


class Event(NamedTuple):
    """A cell is done, or was found in the cache."""

    place: Place
    cell: Cell
    outcome: Outcome
    cached: bool


class Row(NamedTuple):
    """A reported trial."""

    place: Place
    key: str
    result: CellResult
    cached: bool


@dataclass
class SweepResults:
    """Filled as a sweep goes on.

    Args:
        criterion: for each (combination, candidate) the values over repetitions, None for a failed run.
        chosen: for each combination the position of its candidate; None if every one failed.
        rows: the reported trials that succeeded.
        failures: cells that came to nothing.
    """

    criterion: dict[tuple[int, int], list[float | None]] = field(default_factory=dict)
    chosen: dict[int, int | None] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    failures: list[tuple[Place, Cell, Failure]] = field(default_factory=list)
    cached: int = 0
    ran: int = 0


class Engine:
    """One sweep's way through its cells."""

    def __init__(
        self,
        combinations: Sequence[Combination],
        tune: TuneSection | None,
        trials: int,
        cache: Cache,
        runner: Runner,
        observe: Callable[[Event], None],
        selections: Mapping[int, Selection] | None = None,
    ) -> None:
        """`trials`: how many of each combination are reported; `selections`: how each is tuned privately."""
        self._combinations, self._tune, self._trials = combinations, tune, trials
        self._selections = selections or {}
        self._untuned: dict[int, Parts] = {}  # with nothing to choose, there is a reported run all the same
        self._cache, self._runner, self._observe = cache, runner, observe
        self.results = SweepResults()

    def run(self) -> SweepResults:
        """Choose, then run what was chosen."""
        places = tuning_places(self._combinations, self._tune)
        self._choose(self._outcomes(places, self._tuning_cell))
        reported = [
            Place(number, chosen, trial)
            for number, chosen in self.results.chosen.items()
            if chosen is not None
            for trial in reported_trials(self._tune, self._trials)
        ]
        for place, (key, outcome, cached) in self._outcomes(reported, self._granted_cell).items():
            if isinstance(outcome, CellResult):
                self.results.rows.append(Row(place, key, outcome, cached))
        self.results.rows.sort(key=lambda row: row.place)
        return self.results

    @property
    def _criterion(self) -> str:
        return self._tune.criterion if self._tune else ""

    def _choose(self, outcomes: Mapping[Place, tuple[str, Outcome, bool]]) -> None:
        found = self.results.criterion
        for place, (_, outcome, _) in sorted(outcomes.items()):
            value = measure(self._criterion, outcome) if isinstance(outcome, CellResult) else None
            found.setdefault((place.combination, place.candidate), []).append(value)
        for number, combination in enumerate(self._combinations):
            values = [found.get((number, c), []) for c in range(len(combination.candidates))]
            self.results.chosen[number] = best(values) if len(values) > 1 else 0

    def _outcomes(
        self, places: Sequence[Place], cell_at: Callable[[Place], Cell]
    ) -> dict[Place, tuple[str, Outcome, bool]]:
        """Every place's key, outcome and whether it was cached; equal cells are run once."""
        found: dict[Place, tuple[str, Outcome, bool]] = {}
        wanted: dict[str, list[Place]] = {}
        cells: dict[str, Cell] = {}
        for place in places:
            cell = cell_at(place)
            key = key_of(cell)
            wanted.setdefault(key, []).append(place)
            cells[key] = cell
        for key, cell in cells.items():
            if (known := self._cache.get(key)) is not None:
                self._done(found, wanted[key], key, cell, known, True)
        missing = [cells[key] for key in cells if wanted[key][0] not in found]
        for cell, outcome in self._runner.run(batches(missing)):
            key = key_of(cell)
            if isinstance(outcome, CellResult):
                self._cache.put(key, cell, outcome)
            self._done(found, wanted[key], key, cell, outcome, False)
        return found

    def _reported_cell(self, place: Place, train_loss: bool = False) -> Cell:
        scenario = self._combinations[place.combination].candidates[place.candidate].scenario
        return cell_of(scenario, place.trial, train_loss)

    def _granted_cell(self, place: Place) -> Cell:
        """A reported cell, with leave to use the rest of the records where some were put aside."""
        cell, selection = self._reported_cell(place), self._selections.get(place.combination)
        if cell.scenario["data"].get("reserve") is None:
            return cell
        untuned = self._untuned.setdefault(place.combination, Parts((), (), LIMITS))
        parts = selection.parts if selection else untuned
        return cell._replace(grant=parts.reported(run_id(cell)))

    def _tuning_cell(self, place: Place) -> Cell:
        selection = self._selections.get(place.combination)
        if selection is None:
            return self._reported_cell(place, self._criterion == "final_train_loss")
        cell = cell_of(selection.scenarios[place.candidate], place.trial, False)
        return cell._replace(grant=selection.parts.candidate(run_id(cell)), selection=selection.digest)

    def _done(
        self,
        found: dict[Place, tuple[str, Outcome, bool]],
        places: Sequence[Place],
        key: str,
        cell: Cell,
        outcome: Outcome,
        cached: bool,
    ) -> None:
        self.results.cached += cached
        self.results.ran += not cached
        if isinstance(outcome, Failure):
            self.results.failures.append((places[0], cell, outcome))
        for place in places:
            found[place] = (key, outcome, cached)
            self._observe(Event(place, cell, outcome, cached))


def tuning_places(combinations: Sequence[Combination], tune: TuneSection | None) -> list[Place]:
    """Every run that tuning needs; a combination with one candidate has nothing to choose."""
    return [
        Place(number, candidate, trial)
        for number, combination in enumerate(combinations)
        if tune and len(combination.candidates) > 1
        for candidate in range(len(combination.candidates))
        for trial in tuning_trials(tune, candidate)
    ]


def tuning_trials(tune: TuneSection, candidate: int) -> range:
    """The trials that score a candidate: the same for all, or where noise must be its own, its own."""
    return trials_of(candidate, tune.repetitions) if tune.private else range(tune.repetitions)


def reported_trials(tune: TuneSection | None, trials: int) -> range:
    """Trials after those of tuning: no split that chose is reported, and no noise is drawn twice."""
    first = 0
    if tune:
        last = prod(map(len, tune.grid.values())) - 1
        first = tuning_trials(tune, last).stop
    return range(first, first + trials)


def measure(criterion: str, result: CellResult) -> float | None:
    """The criterion's value; None where it is not finite."""
    name = "test_error" if criterion == "private_error" else criterion.removeprefix("final_")
    value = getattr(result, name)
    return value if value is not None and isfinite(value) else None


def mean(values: Sequence[float | None]) -> float | None:
    """None if there is no value, or one is missing: a candidate that failed once is not compared."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present and len(present) == len(values) else None


def best(criterion: Sequence[Sequence[float | None]]) -> int | None:
    """The candidate of least mean, the first of equals; None if none has one."""
    means = [(value, place) for place, values in enumerate(criterion) if (value := mean(values)) is not None]
    return min(means)[1] if means else None
