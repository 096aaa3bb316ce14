"""A sweep without the command line: in memory, watched, interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.sweep_helpers import BASE

from fedsim.report.sweep_summary import read_sweep
from fedsim.simulation.failures import WorkerLost
from fedsim.sweeps.engine import Event
from fedsim.sweeps.job import Job, job_of
from fedsim.sweeps.run import Watch, run

TUNE = {"grid": {"algorithm.step_size": [0.01, 1.0]}, "repetitions": 2}
TREE: dict[str, Any] = BASE | {"sweep": {"grid": {"privacy.epsilon": [0.5, 8]}, "tune": TUNE}}
TUNING, ALL = 12, 18


def ended_after(cells: int, error: BaseException) -> Watch:
    @contextmanager
    def watch(job: Job) -> Iterator[Callable[[Event], None]]:
        seen: list[Event] = []

        def observe(event: Event) -> None:
            seen.append(event)
            if len(seen) == cells:
                raise error

        yield observe

    return watch


def test_without_a_directory_nothing_is_written_and_the_results_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    job = job_of(TREE)
    kept, written = run(job), run(job, tmp_path / "out")
    assert list((tmp_path / "here").iterdir()) == []
    assert kept.files == ()
    assert read_sweep(tmp_path / "out") == written.summary
    rows = [[row.model_dump(exclude={"seconds_per_run"}) for row in one.summary.combinations]
            for one in (kept, written)]  # fmt: skip
    assert rows[0] == rows[1]
    assert kept.summary.privacy == written.summary.privacy
    assert kept.summary.status == "finished"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), WorkerLost("Ray was ended")], ids=str)
@pytest.mark.parametrize("cells", [5, TUNING + 3])
def test_an_interrupt_returns_what_there_is_and_the_same_call_goes_on(
    cells: int, error: BaseException, tmp_path: Path
) -> None:
    sweep = run(job_of(TREE), tmp_path / "out", watch=ended_after(cells, error))
    assert sweep.interrupted
    assert sweep.lost == str(error)
    assert sweep.summary.status == "interrupted"
    assert len(sweep.results.scores) == min(cells, TUNING)
    assert (
        len(sweep.results.rows) == max(0, cells - TUNING) == sum(r.trials for r in sweep.summary.combinations)
    )
    assert not (tmp_path / "out" / "summary.json").exists()
    again = run(job_of(TREE), tmp_path / "out")
    assert cells <= again.results.cached <= ALL
    assert again.results.cached + again.results.ran == ALL
    assert again.summary.combinations == read_sweep(tmp_path / "out").combinations
