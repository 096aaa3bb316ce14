"""Trackers: TensorBoard, MLflow, and what other distributions bring; off unless a scenario names them.

A distribution registers a factory in the entry point group `fedsim.trackers`, as this one does; it is called
as `factory(simulation=...)`. Numbers made of records (errors, losses, whatever is per silo) reach a tracker
only in simulation: a deployed run cannot compute them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, cast

from fedsim.common.errors import InputError, suggest
from fedsim.common.plugins import entry_points
from fedsim.report.outcome import Outcome, value
from fedsim.report.record import Measurement, SiloMeasurement
from fedsim.report.run_directory import shown
from fedsim.report.summary import MEASURED
from fedsim.scenario.load import relative
from fedsim.scenario.resolve import Resolved

GROUP = "fedsim.trackers"


class Tracker(Protocol):
    """Follows one run; called from one thread, in this order."""

    def start(self, run: Mapping[str, Any]) -> None:
        """The run's name, number of silos and scenario without its seed (it removes noise); plain values."""

    def log(self, round_index: int, values: Mapping[str, float]) -> None:
        """Numbers after so many rounds, as {"trial-0/private/error": 0.1, ...}."""

    def finish(self) -> None:
        """Called last: nothing more comes."""


class Trackers:
    """A scenario's trackers. One that fails is reported and dropped, and the run goes on."""

    def __init__(self, own: Mapping[str, Tracker], simulation: bool, complain: Callable[[str], None]) -> None:
        self._trackers, self._simulation, self._complain = dict(own), simulation, complain

    def start(self, resolved: Resolved) -> None:
        """Pass on the run's name and scenario, before anything is measured."""
        scenario = resolved.scenario
        run = {
            "name": scenario.name,
            "silos": len(resolved.names),
            "scenario": shown(relative(scenario.model_dump(mode="json"), Path.cwd())),
        }
        self._each(lambda tracker: tracker.start(run))

    def measured(self, m: Measurement) -> None:
        """Pass on one evaluation of one trial."""
        values: dict[str, float] = {"participants": m.participants, "seconds": m.seconds}
        if self._simulation:
            values |= {name: number for name in MEASURED if (number := value(m, name)) is not None}
        prefix = f"trial-{m.trial}/{m.variant}"
        named = {f"{prefix}/{name}": value for name, value in values.items()}
        self._each(lambda tracker: tracker.log(m.round, named))

    def finish(self, outcome: Outcome) -> None:
        """Pass on final values per silo and the end, after the run directory has been written."""
        rounds = len(outcome.resolved.trace.plan.rounds)
        metric = outcome.resolved.scenario.report.metric
        rows = outcome.results.rows(SiloMeasurement) if self._simulation else []
        for trial, own in groupby(rows, key=lambda row: row.trial):
            values = {
                f"trial-{trial}/{row.variant}/silo/{row.silo}/{metric}": number
                for row in own
                if (number := value(row, metric)) is not None
            }
            self._each(lambda tracker, values=values: tracker.log(rounds, values))  # type: ignore[misc]
        self._each(lambda tracker: tracker.finish())

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except Exception as error:  # someone else's code, perhaps over a network
                del self._trackers[name]
                self._complain(f"tracker {name} failed and is left out: {type(error).__name__}: {error}")


def open_trackers(names: Sequence[str], simulation: bool, complain: Callable[[str], None]) -> Trackers:
    """Build the trackers that are named; InputError if one is not installed, or cannot be made."""
    known = entry_points(GROUP) if names else {}
    built: dict[str, Tracker] = {}
    for name in names:
        if name not in known:
            hint = suggest(name, known) if known else f"none is installed (entry points of {GROUP})"
            raise InputError("scenario.report.trackers", name, hint)
        try:
            built[name] = cast(Callable[..., Tracker], known[name])(simulation=simulation)
        except Exception as error:
            hint = f"cannot be made: {type(error).__name__}: {error}"
            hint = error.hint if isinstance(error, InputError) else hint
            raise InputError("scenario.report.trackers", name, hint) from error
    return Trackers(built, simulation, complain)


def installed(module: str, extra: str) -> Any:
    """Import what an extra brings. InputError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"is not installed ({error}): pip install 'fedsim-isrl[{extra}]'"
        raise InputError("scenario.report.trackers", module, hint) from None
