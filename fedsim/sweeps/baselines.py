"""A sweep's baselines: once for each set of records and each problem, and in its record as its cells are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsim.common.serialise import canonical
from fedsim.measure.baselines import baselines
from fedsim.measure.evaluator import Evaluator
from fedsim.measure.metrics import asked_of
from fedsim.report.sweep_summary import BaselineGroup, Labels
from fedsim.results.record import BaselineMeasurement, Record
from fedsim.results.summarise import baselines_of
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.sweeps.cell import Cell, baselines_key, cell_of, records_of, resolved_of
from fedsim.sweeps.engine import Results
from fedsim.sweeps.job import Job
from fedsim.sweeps.pool import Runner


def measured(job: Job, results: Results, record: Record, runner: Runner) -> list[BaselineGroup]:
    """Of every combination that was reported, those with the same records and problem together.

    Args:
        job: what was asked for.
        results: which candidates were chosen.
        record: the sweep's.
        runner: measures trials.
    """
    if not job.scenario.report.baselines:
        return []
    alike: dict[str, list[int]] = {}
    came = {row.place.combination for row in results.rows}  # where all failed, the records may be at fault
    chosen = {
        number: _chosen(job, number, at)
        for number, at in results.chosen.items()
        if at is not None and number in came
    }
    for number, scenario in chosen.items():
        alike.setdefault(canonical(_depends_on(scenario)), []).append(number)
    found = []
    for numbers in alike.values():
        rows = _rows(chosen[numbers[0]], job.reported_trials, record, runner)
        common = _common([job.combinations[number].varied for number in numbers])
        found.append(BaselineGroup(varied=common, combinations=numbers, baselines=baselines_of(rows)))
    return found


def _chosen(job: Job, number: int, candidate: int) -> Scenario:
    return job.combinations[number].candidates[candidate].scenario


def _depends_on(scenario: Scenario) -> Mapping[str, Any]:
    """The scenario's fields that decide its baselines, as a cell has them."""
    tree = cell_of(scenario, 0, False).scenario
    problem = {key: value for key, value in tree["problem"].items() if key != "silo_weights"}
    kept = {key: tree[key] for key in ("data", "partition", "seed", "runtime", "report")}
    return {**kept, "problem": problem}


def _common(varied: Sequence[Labels]) -> Labels:
    return {
        field: value
        for field, value in varied[0].items()
        if all(field in other and other[field] == value for other in varied)
    }


def _rows(
    scenario: Scenario, trials: Sequence[int], record: Record, runner: Runner
) -> list[BaselineMeasurement]:
    cells = {
        baselines_key(cell, _depends_on(scenario)): cell
        for cell in (cell_of(scenario, trial, False) for trial in trials)
    }
    missing = record.missing(cells)
    for key, rows in zip(missing, runner.each(of_trial, [cells[key] for key in missing]), strict=True):
        record.append(key, rows)
    return [row for key in cells for row in record.rows(BaselineMeasurement, key)]


def of_trial(cell: Cell) -> list[BaselineMeasurement]:
    """The baselines of the cell's trial."""
    resolved = resolved_of(parse(cell.scenario))
    data = records_of(resolved, cell.trial)
    asked = asked_of(resolved, data.fitted.preparation)
    tests = Evaluator(resolved.problem, data.silos, resolved.dtype, asked)
    return [BaselineMeasurement(cell.trial, *row) for row in baselines(resolved, data.silos, tests)]
