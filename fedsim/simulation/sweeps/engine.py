"""Runs a sweep: tuning first, then the reported trials; what its record has is not run again."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple, TypeVar

from fedsim.common.serialise import canonical
from fedsim.protocol.limits import LIMITS
from fedsim.report.outcome import mean, value
from fedsim.report.record import CellResult, CellSource, Record
from fedsim.scenario.metric import METRICS
from fedsim.simulation.failures import Failure
from fedsim.simulation.selection import Parts
from fedsim.simulation.sweeps.cell import Cell, CellOutcome, cell_of, data_key, key_of
from fedsim.simulation.sweeps.job import Job, Place
from fedsim.simulation.sweeps.pool import Runner

T = TypeVar("T")


class Event(NamedTuple):
    """A cell is done, now or by an earlier call."""

    place: Place
    key: str
    cell: Cell
    outcome: CellOutcome
    cached: bool

    @property
    def result(self) -> CellResult:
        """The outcome of a cell that did not fail."""
        assert isinstance(self.outcome, CellResult)
        return self.outcome

    @property
    def failure(self) -> Failure:
        """Why a cell failed."""
        assert isinstance(self.outcome, Failure)
        return self.outcome


@dataclass
class SweepResults:
    """Filled as a sweep goes on."""

    scores: dict[Place, float | None] = field(default_factory=dict)  # by tuning run; None: failed
    chosen: dict[int, int | None] = field(default_factory=dict)  # candidates; None: all failed
    rows: list[Event] = field(default_factory=list)  # reported trials, in order of place
    # cells that came to nothing, each at the first place that it was for
    failures: list[Event] = field(default_factory=list)
    # candidates' cells that diverged, where every combination has another candidate to choose
    diverged: list[Event] = field(default_factory=list)
    cached: int = 0  # how many cells the record had
    ran: int = 0  # how many were run

    @property
    def criterion(self) -> dict[tuple[int, int], list[float | None]]:
        """For each (combination, candidate) the scores over repetitions."""
        result: dict[tuple[int, int], list[float | None]] = {}
        for place, score in sorted(self.scores.items()):
            result.setdefault((place.combination, place.candidate), []).append(score)
        return result


class Engine:
    """One sweep's way through its cells."""

    def __init__(self, job: Job, record: Record) -> None:
        self._job, self._record = job, record
        self._criterion = (job.tune.criterion or "") if job.tune else ""
        self._metric = job.scenario.report.metric
        self._untuned: dict[int, Parts] = {}  # of combinations with nothing to choose
        self.results = SweepResults()

    def run(self, runner: Runner, observe: Callable[[Event], None]) -> SweepResults:
        """Choose candidates, then run the chosen ones; `observe` gets each cell once for each of its places.
        If it is interrupted, `results` has what was done.
        """
        for event in self._events(runner, self._job.tuning_places(), self._tuning_cell):
            self.results.scores[event.place] = measure(self._criterion, self._metric, event.outcome)
            observe(event)
        self._choose()
        chosen = [(number, at) for number, at in self.results.chosen.items() if at is not None]
        places = [Place(*each, trial) for each in chosen for trial in self._job.reported_trials]
        for event in self._events(runner, places, self._granted_cell):
            if isinstance(event.outcome, CellResult):
                insort(self.results.rows, event, key=lambda row: row.place)
            observe(event)
        return self.results

    def _choose(self) -> None:
        """A candidate that diverges is no failure of a sweep that has others to choose."""
        scores, tune = self.results.criterion, self._job.tune
        by = tune.private.metric if tune and tune.private else self._metric
        higher = self._criterion.endswith("_metric") and METRICS[by].higher
        for number, combination in enumerate(self._job.combinations):
            values = [scores.get((number, c), []) for c in range(len(combination.candidates))]
            self.results.chosen[number] = best(values, higher) if len(values) > 1 else 0
        if None not in self.results.chosen.values():
            failed = self.results.failures
            self.results.diverged = [each for each in failed if each.failure.kind == "diverged"]
            self.results.failures = [each for each in failed if each.failure.kind != "diverged"]

    def _events(
        self, runner: Runner, places: Sequence[Place], cell_at: Callable[[Place], Cell]
    ) -> Iterator[Event]:
        """Every place's cell; equal cells are run once."""
        wanted: dict[str, list[Place]] = {}
        cells: dict[str, Cell] = {}
        for place in places:
            cell = cell_at(place)
            key = key_of(cell)
            wanted.setdefault(key, []).append(place)
            cells[key] = cell
        missing = dict.fromkeys(self._record.missing(cells))
        for key in (key for key in cells if key not in missing):
            (known,) = self._record.rows(CellResult, key)
            self.results.cached += 1
            yield from (Event(place, key, cells[key], known, True) for place in wanted[key])
        for cell, outcome in runner.run(batches(cells[key] for key in missing)):
            key = key_of(cell)
            events = [Event(place, key, cell, outcome, False) for place in wanted[key]]
            self.results.ran += 1
            if isinstance(outcome, Failure):
                self.results.failures.append(events[0])
            else:
                self._record.append(key, [CellSource(cell.trial, dict(cell.scenario)), outcome])
            yield from events

    def _reported_cell(self, place: Place, train_loss: bool = False) -> Cell:
        return cell_of(self._job.candidate(place).scenario, place.trial, train_loss)

    def _granted_cell(self, place: Place) -> Cell:
        """A reported cell, with leave to use the rest of the records where some were put aside."""
        cell, selection = self._reported_cell(place), self._job.selections.get(place.combination)
        if cell.scenario["data"].get("reserve") is None:
            return cell
        untuned = self._untuned.setdefault(place.combination, Parts((), [], LIMITS))
        return cell._replace(grant=(selection.parts if selection else untuned).reported(cell.run_id))

    def _tuning_cell(self, place: Place) -> Cell:
        selection = self._job.selections.get(place.combination)
        if selection is None:
            return self._reported_cell(place, self._criterion == "final_train_loss")
        cell = cell_of(selection.scenarios[place.candidate], place.trial, False)
        return cell._replace(grant=selection.parts.candidate(cell.run_id), selection=selection.digest)


_READ = {"private_error": "error", "private_metric": "error", "final_train_loss": "train_loss"}


def measure(criterion: str, metric: str, outcome: CellOutcome) -> float | None:
    """The criterion's value; None where it is not finite, or the run failed."""
    if not isinstance(outcome, CellResult):
        return None
    number = value(outcome, _READ.get(criterion, metric))
    return number if number is not None and isfinite(number) else None


def best(criterion: Sequence[Sequence[float | None]], higher: bool = False) -> int | None:
    """The candidate of least mean, or with `higher` of largest, the first of equals; None if none has one.

    >>> best([[3.0, 3.0], [0.0, None], [2.0, 2.0]])
    2
    >>> best([[3.0], [4.0], [4.0]], higher=True)
    1
    """
    sign = -1 if higher else 1
    means = [(sign * score, at) for at, values in enumerate(criterion) if (score := mean(values)) is not None]
    return min(means)[1] if means else None


TOGETHER = 64  # most cells in a batch: where folding saves no more. An interruption loses the batches at work

_TRIALS = 8  # most trials in a batch: each brings its own records


def batches(cells: Iterable[Cell], most: int = TOGETHER) -> list[list[Cell]]:
    """Cells that fold together, as every setting in every trial, the others alone; by their data."""
    alike: dict[str, list[Cell]] = defaultdict(list)
    alone = []
    for cell in sorted(cells, key=lambda cell: (data_key(cell.scenario), cell.trial)):
        if (key := cell.fold_key) is None:
            alone.append([cell])
        else:
            alike[f"{key} {cell.train_loss}"].append(cell)
    return [batch for group in alike.values() for batch in _grids(group, most)] + alone


def _grids(cells: list[Cell], most: int) -> list[list[Cell]]:
    """Cut into batches that are products: trials with the same settings together."""
    by_trial: dict[int, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        by_trial[cell.trial][canonical(cell.scenario)] = cell
    same: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for trial, held in by_trial.items():
        same[tuple(sorted(held))].append(trial)
    result: list[list[Cell]] = []
    for settings, trials in same.items():
        for some in _pieces(settings, most):
            parts = _pieces(trials, max(1, min(_TRIALS, most // len(some))))
            result += [[by_trial[trial][setting] for setting in some for trial in few] for few in parts]
    return result


def _pieces(items: Sequence[T], most: int) -> list[Sequence[T]]:
    return [items[k : k + most] for k in range(0, len(items), most)]
