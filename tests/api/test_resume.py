"""A run that was cut short goes on with the trials it had not finished, and comes to what it would have."""

import os
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.full_disk import full_disk
from support.refusals import ANY, refused

import fedsim
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.api.run import load_run
from fedsim.common.errors import InputError
from fedsim.common.store import Store
from fedsim.report import page
from fedsim.report.record import (
    ENDED,
    TABLES,
    Begun,
    Finished,
    LedgerRow,
    Measurement,
    Record,
    SiloMeasurement,
    SiloSpend,
    SiloStatement,
)
from fedsim.report.resume import opened
from fedsim.simulation import trial

SMALL: dict[str, Any] = {"trials": 3, "num_rounds": 4, "runtime": "inprocess", "baselines": False}
KINDS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "some silos a round, and the training objective": {
        "participation": {"name": "uniform", "num_silos": 3},
        "report.excess_risk": True,
        "problem.regulariser.l2": 0.1,
    },
    "sums over silos": {"privacy.mechanism": "summed_gaussian", "privacy.honest_fraction": 1.0},
    "no privacy": {"privacy": {"mechanism": "none"}},
}


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page takes longer than these runs, and is tested elsewhere."""
    monkeypatch.setattr(page, "render", lambda *_: "")


def simulate(out: Path | None, changes: dict[str, Any] | None = None, **more: Any) -> fedsim.Run:
    more.setdefault("progress", False)
    return fedsim.simulate("breast_cancer", {**SMALL, **(changes or {})}, out=out, **more)


def finished_in(out: Path) -> int:
    """The number of finished trials in a directory that no process works in."""
    return len(Record.read(out / "record.sqlite").rows(Finished))


def stop_in(trial: int) -> Callable[[Measurement], None]:
    """Ctrl-C in the middle of a trial."""

    def observe(measurement: Measurement) -> None:
        if (measurement.trial, measurement.round) == (trial, 2):
            raise KeyboardInterrupt

    return observe


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def measured(run: fedsim.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics]


def check_equal(one: fedsim.Run, other: fedsim.Run) -> None:
    assert measured(one) == measured(other)
    for kind in (SiloMeasurement, LedgerRow, SiloSpend):
        assert one.results.rows(kind) == other.results.rows(kind)
    assert np.array_equal(one.model, other.model)
    assert np.array_equal(one.nonprivate_baseline, other.nonprivate_baseline)
    trees = [run.summary.tree() for run in (one, other)]
    for tree in trees:
        del tree["wall_seconds"]
    assert trees[0] == trees[1]


@pytest.mark.parametrize(
    "kind", [kind if not KINDS[kind] else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_resumed_run_equals_one_that_was_never_stopped(kind: str, tmp_path: Path) -> None:
    out, began = tmp_path / "run", list[int]()
    stopped = simulate(out, KINDS[kind], progress=stop_in(1))
    assert stopped.interrupted
    assert finished_in(out) == 1
    assert stopped.summary.trials.finished == 1
    assert stopped.model.shape == (1, stopped.summary.dimension)
    assert load_run(out).interrupted
    resumed = simulate(out, KINDS[kind], resume=True, progress=lambda m: began.append(m.trial))
    assert sorted(set(began)) == [0, 1, 2]  # what was kept is shown too
    check_equal(resumed, simulate(None, KINDS[kind]))
    check_equal(load_run(out), simulate(None, KINDS[kind]))
    assert not list(out.glob("trial-*"))


def test_objects_are_resumed_where_they_are_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = rng.normal(size=(60, 2)), rng.integers(0, 2, 60), np.repeat(list("abcde"), 12)
    step = {"num_rounds": 4, "clip_norm": 1.0}
    out = tmp_path / "run"
    given: dict[str, Any] = {
        "data": fedsim.Arrays(*records),
        "algorithm": NoisyMinibatchSGD(**step, step_size=1.0),
    }
    given["nonce"] = "0" * 32
    simulate(out, **given, progress=stop_in(1))
    for other in (
        {"data": fedsim.Arrays(records[0] + 1, *records[1:])},
        {"algorithm": NoisyMinibatchSGD(**step, step_size=2.0)},
    ):
        with refused("--resume", ANY, "another scenario, or other data"):
            simulate(out, **given | other, resume=True)
    check_equal(simulate(out, **given, resume=True), simulate(None, **given))


def test_a_finished_trial_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(tmp_path / "run", progress=stop_in(2))
    ran, real = list[int](), trial.trial_of
    monkeypatch.setattr(trial, "trial_of", lambda *given: (ran.append(given[1]), real(*given))[1])
    simulate(tmp_path / "run", resume=True)
    assert ran == [2]


KEPT = ("record.sqlite", "scenario.yaml", "trial-0.safetensors", "trial-1.safetensors")


def killed(out: Path) -> None:
    """Let an interrupted run be as kill -9 leaves it: without results."""
    with Record.open(out / "record.sqlite", pytest.fail) as record:
        record.append(ENDED, [])
    for file in out.iterdir():
        if file.is_file() and file.name not in KEPT:
            file.unlink()


def test_a_killed_run_goes_on_too(tmp_path: Path) -> None:
    """Nothing but kept trials is there, as after kill -9; a half-written one does not count."""
    out = tmp_path / "run"
    simulate(out, progress=stop_in(2))
    killed(out)
    (out / ".writing-0123456789abcdef.safetensors").write_bytes(b"half")
    (out / ".writing-0123456789abcdef").mkdir()
    with refused("RUN", ANY, "has not ended; `fedsim simulate --resume`"):
        load_run(out)
    check_equal(simulate(out, resume=True), simulate(None))
    assert not list(out.glob(".writing-*"))


def test_another_scenario_is_refused(tmp_path: Path) -> None:
    simulate(tmp_path / "run", progress=stop_in(1))
    for change in ({"privacy.epsilon": 2.0}, {"seed": 7}, {"report.evaluate_every": 2}):
        with refused("--resume", ANY, "another scenario"):
            simulate(tmp_path / "run", change, resume=True)
    assert finished_in(tmp_path / "run") == 1


def test_other_data_in_the_same_file_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "t.npz"
    rng = np.random.default_rng(0)

    def write() -> None:
        np.savez(table, features=rng.normal(size=(60, 2)), target=rng.integers(0, 2, 60))

    write()
    changes = {"data": {"name": "npz", "path": str(table)}, "partition": {"name": "iid", "num_partitions": 5}}
    simulate(tmp_path / "run", changes, progress=stop_in(1))
    write()
    with refused("--resume", ANY, "other data"):
        simulate(tmp_path / "run", changes, resume=True)


def test_another_version_of_the_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(tmp_path / "run", progress=stop_in(1))
    monkeypatch.setattr("fedsim.api.simulate.code_version", lambda: {"source": "0" * 64})
    with refused("--resume", ANY, "another version of the code"):
        simulate(tmp_path / "run", resume=True)


def cut_models(folder: Path) -> str:
    file = folder / "trial-0.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    return file.name


def change_entry(folder: Path) -> str:
    """Another number in the text, as a bit that flipped on the disk."""
    with closing(sqlite3.connect(folder / "record.sqlite", isolation_level=None)) as log:
        log.execute("UPDATE entries SET payload = replace(payload, '1', '2') WHERE kind = 'rows trial 0'")
    return "trial 0"


def rename_field(folder: Path) -> str:
    """Statements as another version would have written them."""
    with Record.open(folder / "record.sqlite", pytest.fail) as record:
        rows = [row for table in TABLES.values() for row in record.rows(table, "trial 0")]
        for row in rows:
            if isinstance(row, SiloStatement):
                row.fields["epsilon_paid"] = row.fields.pop("epsilon_spent")
        record.append("trial 0", rows)
    return "trial-0.safetensors"


@pytest.mark.parametrize("damage", [cut_models, change_entry, rename_field])
def test_a_damaged_trial_is_named_and_run_again(damage: Callable[[Path], str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    simulate(out, progress=stop_in(2))
    name = damage(out)
    with pytest.warns(UserWarning, match=f"{name}.* is damaged"):
        resumed = simulate(out, resume=True)
    check_equal(resumed, simulate(None))


def test_trials_of_an_unknown_run_are_refused_and_stay(tmp_path: Path) -> None:
    """What a run was begun with tells whether its trials are of this one."""
    out = tmp_path / "run"
    simulate(out, progress=stop_in(1))
    with closing(sqlite3.connect(out / "record.sqlite", isolation_level=None)) as log:
        log.execute("UPDATE entries SET payload = '{}'")
    with pytest.raises(InputError) as refused, pytest.warns(UserWarning, match="damaged"):
        simulate(out, resume=True)
    assert (refused.value.field, refused.value.value) == ("--resume", str(out))
    assert (out / "trial-0.safetensors").exists()


def test_two_runs_are_not_at_work_in_one_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def meddle(measurement: Measurement) -> None:
        for resume in (False, True):
            with pytest.raises(InputError, match=r"another run is at work|holds another run"):
                simulate(out, resume=resume)

    assert not simulate(
        out, {"trials": 1, "num_rounds": 1, "report.nonprivate_baseline": False}, progress=meddle
    ).failure
    with refused("--resume", ANY, "complete; nothing is left"):
        simulate(out, resume=True)
    with refused("--resume", ANY, "no run that can go on"):
        simulate(tmp_path / "none", resume=True)
    with refused("resume", True, "needs out"):
        simulate(None, resume=True)


def test_a_disk_that_fills_during_a_run_costs_the_trial_at_hand(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with full_disk(1_000_000) as refuse, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = simulate(out, progress=lambda m: refuse(100) if m.trial == 1 else None)
    (warning,) = said
    assert str(warning.message) == run.failure == f"{out}: cannot be written (File too large)"
    assert run.interrupted
    assert len(run.model) == 2  # the second is whole in memory
    assert finished_in(out) == 1
    assert sorted(file.name for file in out.iterdir()) == [*KEPT[:3]]  # no half of a directory
    check_equal(simulate(out, resume=True), simulate(None))


def test_a_disk_too_full_for_the_results_keeps_every_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "render", lambda *_: "x" * 10**6)
    out = tmp_path / "run"
    with full_disk(500_000), pytest.warns(UserWarning, match=r"cannot be written \(File too large\)"):
        run = simulate(out)
    assert len(run.model) == 3
    assert finished_in(out) == 3
    assert sorted(file.name for file in out.iterdir()) == [*KEPT, "trial-2.safetensors"]
    check_equal(simulate(out, resume=True), run)
    assert (out / "report.html").exists()


def test_what_nothing_was_kept_of_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "trial_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def killed_at(write: int, out: Path) -> bool:
    """Run in another process, which dies before its write of this number; False where it had fewer."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    count = iter(range(write))

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def once(*given: Any, **more: Any) -> Any:
            if next(count, None) is None:
                os._exit(9)
            return real(*given, **more)

        return once

    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((Store, "append"), (os, "replace"), (os, "unlink"), (Path, "write_text")):
            patch.setattr(place, name, deadly(getattr(place, name)))
        simulate(out, FEW)
    os._exit(0)


FEW = {"trials": 2, "num_rounds": 1, "report.nonprivate_baseline": False}


@pytest.mark.slow
def test_a_run_goes_on_after_a_kill_at_any_write(tmp_path: Path) -> None:
    expected, began, ended = simulate(None, FEW), 0, 0
    for write in count(1):
        out = tmp_path / str(write)
        if not killed_at(write, out):
            break
        try:
            simulate(out, FEW, resume=True)
        except InputError as refusal:
            told = str(refusal)
            began += "no run that can go on" in told
            ended += "is complete" in told
            assert told.startswith(f"--resume: '{out}'")
        if (out / "summary.json").exists():
            check_equal(load_run(out), expected)
    assert began <= 1  # before its scenario was there
    assert 1 <= ended <= 2  # while the trials' files were removed
    assert write > 12


@pytest.mark.parametrize("old", ["unfinished", "cells.sqlite"])
def test_what_an_earlier_version_began_is_refused_and_stays(old: str, tmp_path: Path) -> None:
    (tmp_path / old).mkdir()
    with refused("--resume", str(tmp_path), f"is of an earlier version of fedsim ({old})"):
        simulate(tmp_path, resume=True)
    with refused("--out", str(tmp_path), f"is of an earlier version of fedsim ({old})"):
        fedsim.sweep("breast_cancer", {"sweep.grid": {"privacy.epsilon": [1, 2]}}, out=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [old]


def test_models_of_a_trial_that_no_entry_tells_of_do_not_stay(tmp_path):
    """As on a disk that had room for a trial's models and not for its entry."""
    out = tmp_path / "deep" / "run"
    with opened(out, Begun("simulation"), pytest.fail, False, "seed: 1\n"):
        (out / "trial-0.safetensors").write_bytes(b"a model")
    assert list(tmp_path.iterdir()) == []
