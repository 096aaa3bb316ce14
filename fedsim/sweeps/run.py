"""Runs a sweep and writes what came of it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from fedsim.common.process import undisturbed
from fedsim.report.sweep_summary import BaselineGroup, SweepSummary
from fedsim.results.record import CellResult, Record
from fedsim.simulation.failures import WorkerLost
from fedsim.sweeps.baselines import measured
from fedsim.sweeps.directory import opened, write
from fedsim.sweeps.engine import Engine, Event, Results
from fedsim.sweeps.job import Job
from fedsim.sweeps.pool import Local, Runner, Workers
from fedsim.sweeps.summarise import summarise

Watch = Callable[[Job], AbstractContextManager[Callable[[Event], None]]]
"""Opened when the cells begin; told every cell until they end."""


@dataclass(frozen=True)
class Sweep:
    """A sweep that has ended.

    Args:
        job: what was asked for.
        results: what was measured.
        summary: what it comes to.
        interrupted: whether cells are missing, since it was interrupted or its workers were lost.
        lost: why workers were lost, else empty.
        kept: how many finished cells its record has.
        files: names of what was written into its directory.
    """

    job: Job
    results: Results
    summary: SweepSummary
    interrupted: bool = False
    lost: str = ""
    kept: int = 0
    files: tuple[str, ...] = ()


def run(
    job: Job,
    out: Path | None = None,
    workers: int | None = None,
    watch: Watch = lambda job: nullcontext(lambda event: None),
    warn: Callable[[str], None] = warnings.warn,
) -> Sweep:
    """Run every cell that is not in the record, and write the results once all are done.

    An interrupt (KeyboardInterrupt, or the loss of Ray's workers) returns what there is. Then only finished
    cells are written; the same call continues from them.

    Args:
        job: see `job_of`.
        out: the sweep's directory, new or of an earlier run of it; None: nothing is written.
        workers: Ray workers; None: one per CPU, or none if the scenario's runtime is in-process; 0: none.
        watch: is told every cell.
        warn: is told which entries of the record are damaged.

    Raises:
        InputError: the directory cannot be used, or the cluster does not answer.
    """
    start = time.perf_counter()
    with opened(out, warn) if out else nullcontext(Record()) as record:
        engine = Engine(job, record)
        interrupted, lost = False, ""
        compared: list[BaselineGroup] = []
        try:
            with watch(job) as observe, _runner(job, workers) as runner:
                engine.run(runner, observe)
                compared = measured(job, engine.results, record, runner)
        except (KeyboardInterrupt, WorkerLost) as error:
            interrupted, lost = True, str(error)
        with undisturbed():
            kept = len(record.rows(CellResult))
            seconds = time.perf_counter() - start
            summary = summarise(job, engine.results, compared, seconds, interrupted)
            files = write(job, engine.results, summary, out.resolve()) if out and not interrupted else []
    return Sweep(job, engine.results, summary, interrupted, lost, kept, tuple(files))


def _runner(job: Job, workers: int | None) -> AbstractContextManager[Runner]:
    runtime = job.scenario.runtime
    here = workers == 0 or (workers is None and runtime.name == "inprocess")
    return nullcontext(Local()) if here else Workers(workers, runtime.address)
