"""Runs a sweep and writes what came of it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from fedsim.common.durable import atomic_file, to_disk
from fedsim.common.files import RECORD, atomic_files
from fedsim.common.process import undisturbed
from fedsim.common.serialise import canonical, to_yaml
from fedsim.measure.baselines import baselines
from fedsim.privacy.registry import NONE
from fedsim.report.arrow import cells_table
from fedsim.report.page import listing, write_page
from fedsim.report.record import ENDED, BaselineMeasurement, Begun, CellResult, Ended, Record, ReportedCell
from fedsim.report.resume import opened
from fedsim.report.run_directory import SECRET
from fedsim.report.summarise import baselines_of
from fedsim.report.summary import FILE
from fedsim.report.sweep_page import errors, figure_of, true_epsilons
from fedsim.report.sweep_summary import BaselineGroup, SweepSummary
from fedsim.report.tables import Table, figure_html, lines_html
from fedsim.scenario.load import parse, relative
from fedsim.scenario.model import Scenario
from fedsim.simulation.failures import Failure, WorkerLost
from fedsim.simulation.sweeps.cell import Cell, baselines_key, cell_of, records_of, resolved_of
from fedsim.simulation.sweeps.engine import Engine, Event, SweepResults
from fedsim.simulation.sweeps.job import Job
from fedsim.simulation.sweeps.pool import Local, Runner, Workers
from fedsim.simulation.sweeps.run_cells import evaluator_of
from fedsim.simulation.sweeps.summarise import summarise

Watch = Callable[[Job], AbstractContextManager[Callable[[Event], None]]]
"""Opened when the cells begin; it gets every cell until they end."""


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """The result of `fedsim.sweep`; `results` has the failed cells with reasons."""

    job: Job  # what was asked for
    results: SweepResults  # what was measured
    summary: SweepSummary  # what it comes to
    interrupted: bool = False  # whether cells are missing: it was interrupted, or its workers were lost
    lost: str = ""  # why workers were lost
    kept: int = 0  # how many finished cells its record has
    files: tuple[str, ...] = ()  # names of what is in its directory, once all is written

    @property
    def combinations(self) -> Table:
        """One row per combination: varied and chosen fields, mean test error, cost."""
        rows = [
            row["varied"]
            | {f"chosen {field}": value for field, value in (row["chosen"] or {}).items()}
            | {key: value for key, value in row.items() if key not in ("varied", "chosen")}
            for row in (row.tree() for row in self.summary.combinations)
        ]
        return Table(pa.Table.from_pylist(rows))

    @property
    def cells(self) -> Table:
        """One row per combination and reported trial."""
        results = [row.result for row in self.results.rows]
        return Table(cells_table(list(zip(reported(self.job, self.results), results, strict=True))))

    def plot(self) -> Figure:
        """Test error against what was varied, one line per algorithm."""
        return figure_of(self.summary)

    @property
    def notes(self) -> list[str]:
        """A line on what tuning cost, or that it was not private."""
        if self.job.tuning_note:
            return [f"Privacy: {self.job.tuning_note}; summary.json says at what cost."]
        return [f"Not private: {self.summary.privacy.not_private[0]}."] if self.summary.tuning else []

    def _line(self) -> str:
        summary, failed = self.summary, len(self.results.failures)
        rest = f", {failed} cells failed" if failed else ""
        return f"{summary.scenario}: {len(summary.combinations)} combinations, {summary.status}{rest}"

    def __repr__(self) -> str:
        return f"Sweep({self._line()})"

    def _repr_html_(self) -> str:
        named = [(self.job.title(event.place), event.failure) for event in self.results.failures]
        failed = [f"{why.kind}: {title}: {why.message}" for title, why in named]
        lines = [*true_epsilons(self.summary), self._line(), *self.notes, *failed]
        return figure_html(self.plot) + lines_html(lines) + errors(self.summary).html


def run(
    job: Job,
    out: Path | None = None,
    workers: int | None = None,
    watch: Watch = lambda job: nullcontext(lambda event: None),
    warn: Callable[[str], None] = warnings.warn,
) -> Sweep:
    """Run every cell that is not in the record, and write the results once all are done.

    An interrupt (KeyboardInterrupt, or the loss of Ray's workers) returns what there is. Then only finished
    cells are written; the same call continues from them. InputError: the directory cannot be used, or the
    cluster does not answer.

    Args:
        out: the sweep's directory, new or of an earlier run of it; None: nothing is written.
        workers: Ray workers; None: one per CPU, or none if the scenario's runtime is in-process; 0: none.
        watch: gets every cell.
        warn: called with a line about each damaged entry of the record.
    """
    start, runtime = time.perf_counter(), job.scenario.runtime
    here = workers == 0 or (workers is None and runtime.name == "inprocess")
    begun = Begun("sweep")
    with opened(out, begun, warn, None, durable=False) if out else nullcontext(Record()) as record:
        engine = Engine(job, record)
        interrupted, lost = False, ""
        compared: list[BaselineGroup] = []
        try:
            runners = nullcontext(Local()) if here else Workers(workers, runtime.address)
            with watch(job) as observe, runners as runner:
                engine.run(runner, observe)
                compared = measured(job, engine.results, record, runner)
        except (KeyboardInterrupt, WorkerLost) as error:
            interrupted, lost = True, str(error)
        with undisturbed():
            kept = len(record.rows(CellResult))
            summary = summarise(job, engine.results, compared, time.perf_counter() - start, interrupted)
            if out and not interrupted:
                write(job, engine.results, summary, out.resolve())
                record.append(ENDED, [Ended(summary.status), *reported(job, engine.results)])
                to_disk(out.resolve() / RECORD)
    files = tuple(listing(out)) if out and not interrupted else ()
    return Sweep(job, engine.results, summary, interrupted, lost, kept, files)


FAILED = "failed"


def write(job: Job, results: SweepResults, summary: SweepSummary, directory: Path) -> None:
    """Write or replace the results."""
    scenario = SECRET + to_yaml(relative(job.tree, directory))
    with atomic_files(directory) as draft:
        (draft / "scenario.yaml").write_text(scenario, encoding="utf-8")
        (draft / FILE).write_text(summary.json_text() + "\n", encoding="utf-8")
    for old in (directory / FAILED).glob("*.yaml"):
        old.unlink()
    for event in results.failures:
        write_failure(event, job.title(event.place), directory)
    write_page(directory)


def write_failure(event: Event, title: str, directory: Path) -> None:
    """Write a scenario that `fedsim simulate` runs to see the failure again."""
    cell, failure, path = event.cell, event.failure, failure_file(event, directory)
    tree = {**cell.scenario, "name": f"failed: {title}", "trials": cell.trial + 1}
    path.parent.mkdir(exist_ok=True)
    head = f"# Trial {cell.trial} failed ({failure.kind}).\n# " + "\n# ".join(failure.message.splitlines())
    if not cell.repeated_by_simulate:
        other = "In the sweep its noise had another key: simulate draws noise of its own, and may not fail."
        head += f"\n# {other}"
    seed = "" if cell.scenario["privacy"].get("mechanism") == NONE.name else SECRET
    text = f"{head}\n# fedsim simulate {path.name}\n{seed}{to_yaml(relative(tree, path.parent))}"
    with atomic_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def failure_file(event: Event, directory: Path) -> Path:
    """The file of a failed cell's scenario in a sweep's directory."""
    return directory / FAILED / f"{event.key[:16]}.yaml"


def reported(job: Job, results: SweepResults) -> list[ReportedCell]:
    """Every reported trial, in the order of combinations."""
    rows = []
    for row in results.rows:
        combination = job.combinations[row.place.combination]
        varied = {field: combination.varied.get(field) for field in job.varied}
        chosen = {field: job.candidate(row.place).chosen.get(field) for field in job.tuned}
        rows.append(ReportedCell(varied, chosen, combination.private, row.place.trial, row.cached, row.key))
    return rows


def measured(job: Job, results: SweepResults, record: Record, runner: Runner) -> list[BaselineGroup]:
    """Baselines of every reported combination, computed once for equal records and problems."""
    if not job.scenario.report.baselines:
        return []
    alike: dict[str, list[int]] = {}
    chosen: dict[int, Scenario] = {}
    came = {row.place.combination for row in results.rows}  # where all failed, the records may be at fault
    for number, at in results.chosen.items():
        if at is not None and number in came:
            chosen[number] = job.combinations[number].candidates[at].scenario
            alike.setdefault(canonical(_depends_on(chosen[number])), []).append(number)
    result = []
    for numbers in alike.values():
        rows = _rows(chosen[numbers[0]], job.reported_trials, record, runner)
        varied = [job.combinations[number].varied for number in numbers]
        common = {f: v for f, v in varied[0].items() if all(f in each and each[f] == v for each in varied)}
        result.append(BaselineGroup(varied=common, combinations=numbers, baselines=baselines_of(rows)))
    return result


def _depends_on(scenario: Scenario) -> Mapping[str, Any]:
    """The scenario's fields that decide its baselines, as a cell has them."""
    tree = cell_of(scenario, 0, False).scenario
    other = ("silo_weights", "fairness", "public", "start")
    problem = {k: value for k, value in tree["problem"].items() if k not in other}
    kept = {key: tree[key] for key in ("data", "partition", "seed", "runtime", "report")}
    return {**kept, "problem": problem, "unit": tree["privacy"].get("unit"), "public": tree.get("public")}


def _rows(
    scenario: Scenario, trials: Sequence[int], record: Record, runner: Runner
) -> list[BaselineMeasurement]:
    depends_on, every = _depends_on(scenario), [cell_of(scenario, trial, False) for trial in trials]
    cells = {baselines_key(cell, depends_on): cell for cell in every}
    keys = {cell.trial: key for key, cell in cells.items()}
    for cell, rows in runner.run([[cells[key]] for key in record.missing(cells)], of_trial):
        if isinstance(rows, Failure):
            raise WorkerLost(rows.message)
        record.append(keys[cell.trial], rows)
    return [row for key in cells for row in record.rows(BaselineMeasurement, key)]


def of_trial(batch: Sequence[Cell]) -> list[list[BaselineMeasurement]]:
    """The baselines of a cell's trial."""
    (cell,) = batch
    resolved = resolved_of(parse(cell.scenario))
    data = records_of(resolved, cell.trial)
    return [baselines(resolved, data.silos, evaluator_of(resolved, data, cell.trial))]
