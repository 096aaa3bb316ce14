"""A simulated run measures its gaps between groups on held-out records, within the budget."""

from typing import Any

import numpy as np
import pytest
from support.scenarios import BASE, changed

import fedsim
from fedsim.api.given import resolved_of, scenario_of
from fedsim.common.errors import InputError, Refused
from fedsim.report.record import Measurement
from fedsim.report.sections.evaluation import Evaluated
from fedsim.report.texts import remarks
from fedsim.simulation.host import preview_evaluation

GAPS = {"parity_gap", "odds_gap", "opportunity_gap"}
MEANS = ("mean_predicted_probability", "observed_share")
QUIET = {"baselines": False, "nonprivate_baseline": False, "clipping": False, "evaluate_every": 100}
TREE: dict[str, Any] = {**BASE, "report": QUIET, "evaluate": {"by_group": True}, "trials": 1}
TREE = {key: value for key, value in TREE.items() if key not in ("data", "partition")}
EXACT = {"privacy": {"mechanism": "none"}}
SUMMED = {"mechanism": "summed_gaussian", "honest_fraction": 1.0}


def records(silos: int = 5, n: int = 6250, classes: int = 2, missing: float = 0.0) -> fedsim.Arrays:
    """A fifth trains. Two thirds of group a, whose records are more often of the last class."""
    rng = np.random.default_rng(0)
    group = np.where(rng.random(silos * n) < 2 / 3, "a", "b")
    x = rng.uniform(-1, 1, (silos * n, 4))
    x[:, 0] = np.where(group == "a", 0.5, -0.5) * (rng.random(silos * n) < 0.8)
    score = 3 * x[:, 0] + x[:, 1] + rng.logistic(0, 1, silos * n) - 0.5
    y = np.searchsorted(np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]), score)
    known = np.where(rng.random(silos * n) < missing, "", group)
    split = {"ranges": (-1.0, 1.0), "test_fraction": 0.8}
    return fedsim.Arrays(x, y, np.repeat(np.arange(silos), n), group=known, **split)


def simulated(data: fedsim.Arrays, **changes: Any) -> fedsim.Run:
    return fedsim.simulate(TREE | changes, data=data, progress=False)


def test_of_five_silos_at_half_an_epsilon_the_gaps_are_known_to_a_point_and_a_half() -> None:
    run = simulated(records(), privacy={"epsilon": 0.5})
    found = {row.metric: row for row in run.summary.evaluation}
    assert set(found) == GAPS
    low, high = found["parity_gap"].interval
    assert high - low <= 0.03
    for row in found.values():
        assert row.exact == getattr(run.summary.metrics, row.metric)
        assert abs(row.value - row.exact) <= 2.5 * row.standard_error
    lines = [line for line in remarks(run.summary) if line.startswith("evaluation, ")]
    assert lines[0].startswith(
        f"evaluation, parity gap among those held out: {found['parity_gap'].value:.3f}, "
    )
    assert f"{low:.3f} to {high:.3f}" in lines[0]
    for silo in run.summary.privacy.silos:
        assert 0.49 < silo.epsilon_evaluation <= silo.epsilon_guaranteed <= 0.5


def test_errors_are_those_of_the_noise() -> None:
    """Of 40 trials: the estimates are as far from the exact gaps as they state, in sums of all silos too."""
    data = records(n=1000)
    for privacy in ({}, SUMMED):
        run = fedsim.simulate(
            changed(TREE, {"trials": 40, "algorithm.num_rounds": 1})
            | {"privacy": {"epsilon": 1.0, **privacy}},
            data=data,
            progress=False,
        )
        rows = run.source.results.rows(Evaluated)
        exact = {row.trial: row.more for row in run.source.results.rows(Measurement)}
        off = [row.value - exact[row.trial][row.metric] for row in rows if row.metric == "parity_gap"]
        error = np.mean([row.standard_error for row in rows if row.metric == "parity_gap"])
        assert np.sqrt(np.mean(np.square(off))) == pytest.approx(error, rel=0.35)


@pytest.mark.parametrize("threshold", [0.5, 0.48])
def test_without_privacy_they_are_the_gaps_of_held_out_records(threshold: float) -> None:
    run = simulated(records(n=500, missing=0.2), report={**QUIET, "threshold": threshold}, **EXACT)
    for row in run.summary.evaluation:
        assert row.value == pytest.approx(row.exact, abs=1e-12)
        assert row.standard_error == 0
    assert run.summary.evaluation[0].value > 0.03


def test_so_are_those_of_several_classes() -> None:
    run = simulated(records(n=500, classes=3), problem="softmax_regression", **EXACT)
    for row in run.summary.evaluation:
        assert row.value == pytest.approx(row.exact, abs=1e-12)


def test_a_histogram_beside_it_is_paid_from_the_same_budget() -> None:
    asked = [{"by_group": True}, {"by_group": True, "bins": 10}]
    alone, both = (resolved_of(scenario_of(TREE | {"evaluate": e}), None, records(n=200)) for e in asked)
    for one, two in zip(preview_evaluation(alone), preview_evaluation(both), strict=True):
        assert two.noise_multiplier == pytest.approx(np.sqrt(2) * one.noise_multiplier)
        assert two.epsilon_guaranteed <= two.terms.epsilon
        assert (one.releases, two.releases) == (1, 2)
    run = simulated(records(n=500), evaluate=asked[1], **EXACT)
    found = {row.metric: row for row in run.summary.evaluation}
    assert set(found) == GAPS | {"accuracy", "auc", "brier", "calibration_error", *MEANS}
    for name in ("accuracy", "observed_share", *GAPS):
        assert found[name].value == pytest.approx(found[name].exact, abs=1e-12)
    said = found["mean_predicted_probability"]
    assert 0 < abs(said.value - said.exact) <= said.binning <= 0.05


def test_a_gap_of_too_few_records_is_none_and_says_why(tmp_path) -> None:
    run = simulated(records(n=60), privacy={"epsilon": 0.5, "delta": 1e-6})
    run.save(tmp_path / "run")
    assert fedsim.load_run(tmp_path / "run").summary == run.summary
    (parity, *_) = run.summary.evaluation
    assert (parity.value, parity.standard_error, parity.interval) == (None, None, None)
    assert parity.reason.startswith("too few of ")
    line = f"evaluation, parity gap among those held out: {parity.reason}"
    assert any(each.startswith(line) for each in remarks(run.summary))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": BASE["data"], "partition": BASE["partition"]}, r"evaluate\.by_group.*data\.attribute"),
        ({"problem": "linear_regression"}, "evaluate.*a target of classes, not a number"),
        ({"evaluate": {"by_group": True, "share": 0.1}}, "evaluate.share"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_records_are_read(changes, words) -> None:
    data = None if "data" in changes else records(n=50)
    if changes.get("problem") == "linear_regression":
        rng = np.random.default_rng(0)
        data = fedsim.Arrays(
            rng.uniform(-1, 1, (60, 2)), rng.uniform(0, 1, 60), np.arange(60) % 3, group=["a", "b"] * 30
        )
    with pytest.raises((InputError, Refused), match=f"(?s){words}"):
        preview_evaluation(resolved_of(scenario_of(TREE | changes), None, data))


def test_silos_without_held_out_records_are_named() -> None:
    data = records(n=50).model_copy(update={"test_fraction": 0.0})
    with pytest.raises(InputError, match=r"evaluate.*needs 2 held-out records a silo"):
        resolved_of(scenario_of(TREE), None, data)
