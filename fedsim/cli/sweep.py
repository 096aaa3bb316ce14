"""`fedsim sweep`: run every combination, keep every finished cell, draw the figure."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedsim.cli.simulate import INTERRUPTED, LOST, slug
from fedsim.cli.sweep_progress import progress
from fedsim.cli.tables import shown, sweep_table
from fedsim.common.errors import InputError
from fedsim.scenario.load import load_tree
from fedsim.scenario.resolve import resolve
from fedsim.simulation.lost import WorkerLost
from fedsim.sweep.cache import Cache
from fedsim.sweep.candidates import Selection
from fedsim.sweep.cells import outline_of
from fedsim.sweep.combinations import Combination, base_and_section, combinations
from fedsim.sweep.directory import CELLS, FAILED, claimed, write, write_failure
from fedsim.sweep.engine import Engine, tuning_places
from fedsim.sweep.keys import key_of
from fedsim.sweep.naming import title
from fedsim.sweep.pool import Local, Workers
from fedsim.sweep.private import note, selections, where_fraction_is_given
from fedsim.sweep.summary import Sweep, summarise


def run(path: Path, overrides: Sequence[str], out: Path | None, workers: int | None) -> int:
    """Sweep a scenario; the exit code: 0, or 1 if a cell failed.

    Raises:
        InputError: bad scenario, data or directory.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console, start = Console(), time.perf_counter()
    tree = load_tree(path, overrides)
    found = combinations(tree)
    _check_data(found)
    chosen_by = selections(found, base_and_section(tree)[1].tune)
    scenario = found[0].candidates[0].scenario
    directory = out or Path("runs") / slug(scenario.name)
    with claimed(directory) as place:
        try:
            sweep = _execute(console, tree, found, chosen_by, place, workers, start)
        except (KeyboardInterrupt, WorkerLost) as error:
            lost = isinstance(error, WorkerLost)
            if lost:
                console.print(f"failed: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            kept = len(list((place / CELLS).glob("*.json")))
            again = f"the same command with --out {directory} goes on from there"
            console.print(
                f"Interrupted: {kept} finished cells are kept; {again}.", highlight=False, soft_wrap=True
            )
            return LOST if lost else INTERRUPTED
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # saving takes a moment
        files = write(sweep, tree, place)
        _report(console, sweep, place, files)
    return 1 if sweep.results.failures else 0


def _check_data(found: Sequence[Combination]) -> None:
    """What the data's outline shows to be wrong is said before anything runs."""
    for combination in found:
        for candidate in combination.candidates:
            scenario = candidate.scenario
            try:
                shape = outline_of(scenario)
            except InputError as error:
                raise where_fraction_is_given(error) from None
            try:
                resolve(scenario, shape)
            except InputError as error:
                setting = title(combination.varied | candidate.chosen, combination.private)
                raise InputError(error.field, error.value, f"{error.expected} (in {setting})") from None


def _execute(
    console: Console,
    tree: dict[str, Any],
    found: Sequence[Combination],
    chosen_by: dict[int, Selection],
    place: Path,
    workers: int | None,
    start: float,
) -> Sweep:
    scenario, (_, section) = found[0].candidates[0].scenario, base_and_section(tree)
    cache = Cache(
        place / CELLS, lambda text: console.print(f"warning: {text}", highlight=False, soft_wrap=True)
    )
    total = len(tuning_places(found, section.tune)) + len(found) * scenario.trials
    here = workers == 0 or (workers is None and scenario.runtime.name == "inprocess")
    with (
        progress(console, found, total) as observe,
        Local() if here else Workers(workers, scenario.runtime.address) as runner,
    ):
        results = Engine(found, section.tune, scenario.trials, cache, runner, observe, chosen_by).run()
    seconds = time.perf_counter() - start
    return Sweep(scenario.name, scenario.trials, found, section.tune, results, seconds, chosen_by)


def _report(console: Console, sweep: Sweep, place: Path, files: Sequence[str]) -> None:
    summary = summarise(sweep)
    console.print(sweep_table(summary))
    for where, cell, failure in sweep.results.failures:
        combination = sweep.combinations[where.combination]
        name = title(combination.varied | combination.candidates[where.candidate].chosen, combination.private)
        file = write_failure(cell, failure, name, key_of(cell), place)
        text = f"{failure.kind}: {name}, trial {cell.trial}: {failure.message}; see {FAILED}/{file.name}"
        console.print(text, style="red", highlight=False, soft_wrap=True)
    runs = summary["runs"]
    counts = f"{runs['made']} cells run, {runs['from_cache']} from the cache, {runs['failed']} failed"
    if sweep.tune and sweep.tune.private:
        console.print(f"Privacy: {note(sweep.tune)}; summary.json says at what cost.", highlight=False)
    elif sweep.tune:
        console.print(f"Not private: {summary['privacy']['not_private'][0]}.", highlight=False)
    console.print(f"{counts}, in {sweep.wall_seconds:.1f} s", highlight=False)
    console.print(f"Wrote {shown(place)}/ ({', '.join(files)})", soft_wrap=True, highlight=False)
