"""A sweep's page: what it says, that it fits, and what it refuses to read."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text
from support.browser import BINARY, assert_fits, chromium
from support.scenarios import BASE, SMALL, invoke, write

import fedsim
from benchmarks.thesis.tables import true_costs
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.report.summary import CombinationRow
from fedsim.report.sweep_page import CLAIMED, errors, true_epsilons, under_the_axis
from fedsim.report.sweep_summary import SHARED, SweepSummary
from fedsim.scenario.model import TuneSection, with_criterion

pytestmark = pytest.mark.usefixtures("drawn")

TRUE = [(shown_down, "epsilon_attainable"), (shown_up, "epsilon_guaranteed")]
HOSTILE = "<script>window.pwned=1</script> $x$ & " + "long " * 12
SWEEP: dict[str, Any] = {
    "grid": {
        "algorithm": [
            {"label": HOSTILE, "name": "noisy_minibatch_sgd", "num_rounds": 3, "clip_norm": 1.0},
            {"label": "local", "name": "local_sgd", "num_rounds": 3, "clip_norm": 1.0, "local_steps": 2},
        ],
        "privacy.epsilon": [0.5, 8],
    },
    "tune": {"grid": {"algorithm.step_size": [0.01, 1.0]}, "repetitions": 1},
}


def sweep_of(folder: Path, tree: dict[str, Any]) -> Path:
    invoke("sweep", write(folder, tree), "--out", folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep_of(tmp_path_factory.mktemp("page"), BASE | {"description": HOSTILE, "sweep": SWEEP})


def test_the_result_comes_first_then_privacy_and_what_is_not_private(swept: Path) -> None:
    page = (swept / "report.html").read_text()
    names = ("results", "privacy", "not-private", "cells", "reproduce")
    results, privacy, uncovered, cells, again = (page.index(f'id="{name}"') for name in names)
    assert results < privacy < uncovered < cells < again
    for text in ("replace one record", "exact Gaussian", "accountant"):
        assert privacy < page.index(text, privacy) < uncovered
    assert uncovered < page.index("the choice of algorithm.step_size") < cells
    assert page[results:privacy].count("<svg") == 2  # for a large screen and a small one
    for text in ("final training loss", "chosen"):
        assert cells < page.index(text, cells) < again
    assert "<script>" not in page
    summary = json.loads((swept / "summary.json").read_text())
    budgets = [one["epsilon_budget"] for one in summary["combinations"] if one["private"]]
    assert [page.count(f"epsilon={budget:g}</th>") > 0 for budget in budgets] == [True] * 4


@pytest.mark.skipif(BINARY is None, reason="chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overflows_and_no_request_leaves(swept: Path, width: int) -> None:
    with chromium() as browser:
        seen = browser.view(swept / "report.html", width)
    assert_fits(seen, width)


def test_the_page_is_made_again_from_the_directory(swept: Path) -> None:
    before = (swept / "report.html").read_text()
    (swept / "report.html").unlink()
    invoke("report", swept)
    assert (swept / "report.html").read_text() == before


def test_runs_that_share_noise_are_said_to_carry_no_guarantee_together(swept: Path, tmp_path: Path) -> None:
    page = (swept / "report.html").read_text()
    costs = page[page.index("Cost of one run") : page.index("What was not private")]
    assert "these runs share noise, and carry no guarantee together" in " ".join(costs.split())
    assert SHARED in json.loads((swept / "summary.json").read_text())["privacy"]["not_private"]
    assert SHARED in page
    assert f"Not private: {SHARED}." in invoke("compare", swept, "--out", tmp_path / "compared")


def test_runs_that_add_up_are_not_said_to_share(tmp_path: Path) -> None:
    tree = BASE | {"privacy": {"epsilon": 1, "calibration": "sigma", "noise_multiplier": 40}}
    out = sweep_of(tmp_path, tree | {"sweep": {"grid": {"privacy.epsilon": [1, 2]}}})
    assert "share noise" not in (out / "report.html").read_text()
    assert "share noise" not in invoke("compare", out, "--out", tmp_path / "compared")


def test_where_epsilon_is_claimed_the_true_one_comes_first_and_stands_beside_it(tmp_path: Path) -> None:
    drawn = {"sampler": "with_replacement", "fraction": 0.5}
    stated = {"calibration": "theorem", "theorem": "experiments", "allow_violations": True}
    sweep = {
        "grid": {
            "algorithm": [BASE["algorithm"] | {"label": "MB", "batch": drawn}],
            "privacy.claimed_epsilon": [1, 12],
        }
    }
    tree = BASE | {"privacy": {"epsilon": "unlimited", "claimed_epsilon": 3, **stated}, "sweep": sweep}
    output = invoke("sweep", write(tmp_path, tree), "--out", tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    found = [row for row in summary["combinations"] if row["private"]]
    assert [row["epsilon_claimed"] for row in found] == [1, 12]
    for row in found:
        assert row["epsilon_attainable"] < row["epsilon_guaranteed"]
    assert found[1]["epsilon_attainable"] > 12
    least, most = (", ".join(f(row[key]) for row in found) for f, key in TRUE)
    said = f"MB: claimed epsilon 1, 12; true epsilon at least {least}, at most {most}"
    assert output.index(said) < output.index("Test error: mean")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index(said) < page.index("epsilon is unlimited") < page.index('id="results"')
    assert "claimed epsilon (not the true one)" in page  # the axis
    assert f"true for MB: {', '.join(shown_up(row['epsilon_guaranteed'], 3) for row in found)}" in page
    assert (tmp_path / "out" / "error_vs_claimed_epsilon.svg").exists()
    assert "budget epsilon" not in page


# A sweep by another metric than the error: what it tunes, reports, draws and keeps; and its baselines.

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


def test_the_page_names_that_metric_and_shows_the_highest(sweep: fedsim.Sweep, folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "ROC AUC, on test records. Baselines are not private." in page
    assert "est error" not in page
    assert "Roc" not in page
    best = max(row.auc for row in sweep.summary.combinations if row.private)
    assert f"<dt>Highest ROC AUC, private</dt><dd><strong>{best:.4f}</strong>" in page


def test_a_loss_that_is_the_log_loss_has_one_column(sweep: fedsim.Sweep) -> None:
    assert {"loss", "log loss"} & {*errors(sweep.summary).columns} == {"log loss"}
    changed = [row.model_copy(update={"log_loss": 9.0}) for row in sweep.summary.combinations]
    other = errors(sweep.summary.model_copy(update={"combinations": changed}))
    assert {"loss", "log loss"} <= {*other.columns}


def test_baselines_are_fitted_once_for_the_same_records(
    sweep: fedsim.Sweep, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group,) = sweep.summary.baselines
    assert group.combinations == [0, 1, 2]
    assert [one.name for one in group.baselines] == ["majority", "silo_alone_on_all", "silo_alone", "pooled"]
    assert group.baselines[0].auc == 0.5
    said = " ".join(text.get_text() for text in sweep.plot().findobj(Text))
    assert "all silos pooled" in said
    assert "majority class" in said
    monkeypatch.setattr("fedsim.simulation.sweeps.run.baselines", lambda *_: pytest.fail("they are kept"))
    again = fedsim.sweep(SMALL, CHANGES, trials=1, out=folder)
    assert again.summary.baselines == sweep.summary.baselines


def test_other_records_or_another_problem_have_baselines_of_their_own() -> None:
    grid = {"problem.regulariser.l2": [0.0, 1.0], "algorithm.step_size": [0.1, 0.2]}
    changes = {"sweep.grid": grid, "privacy": {"mechanism": "none"}}
    found = fedsim.sweep(SMALL, changes, trials=1).summary
    assert [group.combinations for group in found.baselines] == [[0, 1], [2, 3]]
    assert [group.varied for group in found.baselines] == [{"problem.regulariser.l2": v} for v in (0.0, 1.0)]
    assert "all silos pooled, l2=1" in [label for label, _ in found.levels()]
    assert (found.privacy.unit, found.privacy.guarantee[:6]) == ("none", "none: ")


@pytest.mark.parametrize(
    ("metric", "private", "meant"),
    [
        (None, None, "final_train_loss"),
        ("error", None, "final_train_loss"),
        ("auc", None, "final_metric"),
        ("auc", {"fraction": 0.2}, "private_error"),
        ("auc", {"fraction": 0.2, "metric": "error"}, "private_error"),
        ("auc", {"fraction": 0.2, "metric": "auc"}, "private_metric"),
    ],
)
def test_the_criterion_that_is_meant(metric: str | None, private: Any, meant: str) -> None:
    tune = TuneSection(grid={"algorithm.step_size": [1, 2]}, private=private)
    assert with_criterion(tune, metric).criterion == meant
    assert (
        with_criterion(tune.model_copy(update={"criterion": "final_metric"}), None).criterion
        == "final_metric"
    )


# What a sweep says of a claim that nothing bounds: never that it costs nothing.


def row(claim: float, cost: float | None) -> CombinationRow:
    return CombinationRow.model_construct(
        varied={"algorithm": "MB", CLAIMED: claim},
        private=True,
        trials=2,
        epsilon_claimed=claim,
        epsilon_guaranteed=cost,
        epsilon_attainable=None,
    )


def test_without_a_bound_it_is_infinite_everywhere() -> None:
    rows = [row(1, 2.00001), row(12, None)]
    sweep = SweepSummary.model_construct(combinations=rows, varied=["algorithm", CLAIMED])
    assert true_epsilons(sweep) == ["MB: claimed epsilon 1, 12; true epsilon at most 2.001, inf"]
    assert under_the_axis(sweep) == ["true for MB: 2.01, inf"]
    assert true_costs(sweep, ["algorithm"]).splitlines()[-1].replace(" ", "") == "|MB|2.001|inf|"
