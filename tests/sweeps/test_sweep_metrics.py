"""A sweep by another metric than the error: what it tunes, reports, draws and keeps; and its baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text
from support.report_runs import SMALL

import fedsim
from fedsim.report.sweep_page import errors
from fedsim.scenario.model import TuneSection, with_criterion

CHANGES: dict[str, Any] = {
    "report.metric": "auc",
    "sweep.grid": {"privacy.epsilon": [0.5, 2.0]},
    "sweep.tune": {"grid": {"algorithm.step_size": [1e-6, 0.5]}, "repetitions": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("by-auc") / "out"


@pytest.fixture(scope="module")
def sweep(folder: Path) -> fedsim.Sweep:
    return fedsim.sweep(SMALL, CHANGES, trials=1, out=folder)


def test_the_candidate_of_the_largest_auc_is_chosen(sweep: fedsim.Sweep) -> None:
    tuning = sweep.summary.tuning
    assert tuning is not None
    assert tuning.criterion == "final_metric"
    for row in sweep.summary.combinations:
        tried = [c for c in tuning.candidates if (c.varied, c.private) == (row.varied, row.private)]
        best = max(tried, key=lambda candidate: candidate.final_metric or 0)
        assert best.selected
        assert row.chosen == best.candidate


def test_every_metric_of_what_is_reported_is_kept(sweep: fedsim.Sweep, folder: Path) -> None:
    assert all(0 < cell["auc"] <= 1 and 0 < cell["brier"] < 1 for cell in sweep.cells)
    assert sweep.plot().axes[0].get_ylabel() == "ROC AUC"
    assert (folder / "auc_vs_epsilon.png").exists()
    assert errors(sweep.summary).columns[2] == "ROC AUC"
    compared = fedsim.compare([folder]).errors
    assert compared["auc"][:3] == [row.auc for row in sweep.summary.combinations]
    assert fedsim.compare([folder], metric="error").errors["error"][0] == sweep.summary.combinations[0].error
    with pytest.raises(fedsim.InputError, match="has no R"):
        fedsim.compare([folder], metric="r2")
    with pytest.raises(fedsim.InputError, match="did you mean 'auc'"):
        fedsim.compare([folder], metric="acu")


def test_baselines_are_fitted_once_for_the_same_records(
    sweep: fedsim.Sweep, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group,) = sweep.summary.baselines
    assert group.combinations == [0, 1, 2]
    assert [one.name for one in group.baselines] == ["majority", "silo_alone", "pooled"]
    assert group.baselines[0].auc == 0.5
    said = " ".join(text.get_text() for text in sweep.plot().findobj(Text))  # type: ignore[attr-defined]
    assert "all silos pooled" in said
    assert "majority class" in said
    monkeypatch.setattr("fedsim.sweeps.run.baselines", lambda *_: pytest.fail("they are kept"))
    again = fedsim.sweep(SMALL, CHANGES, trials=1, out=folder)
    assert again.summary.baselines == sweep.summary.baselines


def test_other_records_or_another_problem_have_baselines_of_their_own() -> None:
    grid = {"problem.regulariser.l2": [0.0, 1.0], "algorithm.step_size": [0.1, 0.2]}
    changes = {"sweep.grid": grid, "privacy": {"mechanism": "none"}}
    found = fedsim.sweep(SMALL, changes, trials=1).summary
    assert [group.combinations for group in found.baselines] == [[0, 1], [2, 3]]
    assert [group.varied for group in found.baselines] == [{"problem.regulariser.l2": v} for v in (0.0, 1.0)]
    assert "all silos pooled, l2=1" in [label for label, _ in found.levels()]


@pytest.mark.parametrize(
    ("metric", "private", "meant"),
    [
        (None, None, "final_train_loss"),
        ("error", None, "final_train_loss"),
        ("auc", None, "final_metric"),
        ("auc", {"fraction": 0.2}, "private_error"),
    ],
)
def test_the_criterion_that_is_meant(metric: str | None, private: Any, meant: str) -> None:
    tune = TuneSection(grid={"algorithm.step_size": [1, 2]}, private=private)
    assert with_criterion(tune, metric).criterion == meant
    assert (
        with_criterion(tune.model_copy(update={"criterion": "final_metric"}), None).criterion
        == "final_metric"
    )
