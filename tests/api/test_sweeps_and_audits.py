"""`fedsim.sweep`, `compare` and `audit`."""

import re
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from matplotlib.figure import Figure
from support.scenarios import SMALL

import fedsim
from fedsim.report.sweep_figure import lines

GRID: dict[str, Any] = {"sweep.grid": {"privacy.epsilon": [0.5, 2.0]}}


@pytest.fixture(scope="module")
def sweep() -> fedsim.Sweep:
    return fedsim.sweep(SMALL, GRID)


def test_a_sweep_has_a_row_for_each_combination_and_trial(sweep: fedsim.Sweep) -> None:
    assert sweep.combinations["privacy.epsilon"] == [0.5, 2.0, None]
    assert len(sweep.cells) == 3 * 2
    assert not sweep.interrupted
    assert "3 combinations, finished" in repr(sweep)
    assert re.match("<img .*epsilon=0.5", sweep._repr_html_())
    assert isinstance(sweep.plot(), Figure)


def test_a_sweep_tells_every_cell() -> None:
    told: list[object] = []
    fedsim.sweep(SMALL, GRID, trials=1, progress=told.append)
    assert len(told) == 3


def test_runs_sweeps_and_directories_are_compared(sweep: fedsim.Sweep, tmp_path: Path) -> None:
    run = fedsim.simulate(SMALL, trials=1, epsilon=1.0)
    run.save(tmp_path / "saved")
    found = fedsim.compare({"mine": run, "grid": sweep, "again": tmp_path / "saved"})
    assert set(found.errors["source"]) == {"mine", "grid", "again"}
    assert found.errors["epsilon"][0] == 1.0
    assert isinstance(found.plot(), Figure)
    found.save(tmp_path / "compared")
    assert (tmp_path / "compared" / "comparison.csv").exists()
    page = (tmp_path / "compared" / "report.html").read_text(encoding="utf-8")
    assert (
        page.index("<svg")
        < page.index("<table>")
        < page.index('id="privacy"')
        < page.index('id="not-private"')
    )
    assert "mine, grid, again" in page
    assert all(each.summary.privacy.guarantee in page for each in (run, sweep))
    assert all(escape(note) in page for note in found.not_private)
    assert re.match("<img .*<table>", found._repr_html_())


@pytest.mark.parametrize(
    ("budgets", "at"), [([1.0, 2.0, 4.0], 4.0), (["public", 1.0, 2.0], 2.0), ("unlimited", None)]
)
def test_a_run_stands_at_the_epsilon_of_a_sweep_of_it_alone(budgets: Any, at: float | None) -> None:
    changes: dict[str, Any] = {"privacy.epsilon": budgets}
    if at is None:
        changes |= {"privacy.calibration": "sigma", "privacy.noise_multiplier": 40.0}
    run = fedsim.simulate(SMALL, changes, trials=1)
    swept = fedsim.sweep(SMALL, changes | {"sweep.grid": {"algorithm.step_size": [1.0]}}, trials=1)
    one, other = (fedsim.compare([each]).points[0].x for each in (run, swept))
    assert one == other == (run.summary.privacy.silos[0].epsilon_guaranteed if at is None else at)


def test_runs_of_one_algorithm_make_one_line() -> None:
    runs = [fedsim.simulate(SMALL, trials=1, epsilon=epsilon) for epsilon in (0.5, 2.0)]
    found = lines(fedsim.compare(runs).points)
    assert [len(points) for points in found if points[0].x is not None] == [2]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([3], "runs: 3: must be a run, a sweep, or the directory of one"),
        ("runs/one", "must be a list of runs"),
        ([], "name at least one run or sweep"),
        (["no-such-directory"], "no such directory"),
    ],
)
def test_what_cannot_be_compared_is_named(runs: Any, words: str) -> None:
    with pytest.raises(fedsim.InputError, match=words):
        fedsim.compare(runs)


@pytest.fixture(scope="module")
def audit() -> fedsim.Audit:
    return fedsim.audit(SMALL, effort=0.01)


def test_an_audit_has_a_row_for_each_silo(audit: fedsim.Audit) -> None:
    assert not audit.broken
    assert audit.verdict == ["no claim is broken by what was tried"]
    assert audit.silos["name"] == ["silo-00", "silo-01", "silo-02"]
    assert all(
        0 <= attained < 2 * claimed
        for attained, claimed in zip(audit.silos["worst_server"], audit.silos["claimed"], strict=True)
    )
    assert "no claim is broken" in repr(audit)
    assert "silo-02" in audit._repr_html_()
    assert isinstance(audit.plot(), Figure)


@pytest.mark.slow
def test_a_run_is_audited_in_memory_and_from_its_directory(audit: fedsim.Audit, tmp_path: Path) -> None:
    run = fedsim.simulate(SMALL, trials=1)
    run.save(tmp_path / "run")
    again = fedsim.audit(fedsim.load_run(tmp_path / "run"), effort=0.01)
    assert again.tree == fedsim.audit(run, effort=0.01).tree
    assert again.silos.to_pylist() == audit.silos.to_pylist()
    again.save(tmp_path / "run")
    assert "What attacks attained" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    with pytest.raises(fedsim.InputError, match="a run has its scenario"):
        fedsim.audit(run, epsilon=2.0)


def test_what_cannot_be_audited_is_named() -> None:
    with pytest.raises(fedsim.InputError, match=r"effort: 0\.0: must be between 0\.001 and 1000"):
        fedsim.audit(SMALL, effort=0.0)
    with pytest.raises(fedsim.InputError, match="is many runs"):
        fedsim.audit(SMALL, GRID)
