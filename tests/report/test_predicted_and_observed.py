"""Mean predicted probability and observed share stand beside each other; a sentence says if they differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.scenarios import SMALL, changed, invoke, write
from support.used_models import clinic, clinic_tree, simulated

import fedsim
from fedsim.data.federation import load
from fedsim.report.outcome import Outcome
from fedsim.report.sections.evaluation import EVALUATION, Estimated
from fedsim.report.sections.predictions import CALIBRATION, Calibrated
from fedsim.report.summary import Summary


def of_tests(run: fedsim.Run, trial: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the run's own model, (n, classes), and classes of all silos' test records."""
    assert isinstance(run.source, Outcome)
    resolved = run.source.resolved
    data = load(resolved.scenario.data, resolved.scenario.partition, resolved.scenario.seed, trial)
    features, target = (
        np.concatenate([getattr(silo.test, part) for silo in data.silos]) for part in ("features", "target")
    )
    scores = resolved.problem.scores(torch.as_tensor(features), torch.as_tensor(run.model[trial]))
    probabilities = resolved.problem.probabilities(scores)
    assert probabilities is not None
    return probabilities.numpy(), target.astype(int)


def test_the_means_are_those_of_all_test_records(tmp_path: Path) -> None:
    clinic(tmp_path, 200)
    run = simulated(clinic_tree(tmp_path) | {"trials": 3})
    own, without = run.summary.calibration
    assert (own.variant, own.label, without.variant) == ("private", "ill", "nonprivate")
    trials = [of_tests(run, trial) for trial in range(3)]
    means = np.array([(p[:, 1].mean(), y.mean()) for p, y in trials])
    assert (own.predicted, own.observed) == pytest.approx(means.mean(0))
    gaps = means[:, 0] - means[:, 1]
    assert own.gap_interval90 == pytest.approx((gaps.min(), gaps.max()))
    assert without.observed == pytest.approx(own.observed)


def test_of_more_classes_it_is_the_predicted_one(tmp_path: Path) -> None:
    tree = changed(SMALL, {"data.link": "softmax", "problem": "softmax_regression", "data.rows": 300})
    run = simulated(tree)
    p, y = of_tests(run, 0)
    q, z = of_tests(run, 1)
    own, _ = run.summary.calibration
    assert own.label is None
    assert own.predicted == pytest.approx((p.max(1).mean() + q.max(1).mean()) / 2)
    assert own.observed == pytest.approx(((p.argmax(1) == y).mean() + (q.argmax(1) == z).mean()) / 2)


RARE: dict[str, Any] = {"algorithm": {"name": "noisy_minibatch_sgd", "step_size": 0.1, "clip_norm": 1.0}}


def test_terminal_and_page_have_them(tmp_path: Path) -> None:
    frame = clinic(tmp_path, 200)
    frame["outcome"] = np.where(
        np.arange(len(frame)) % 10 == 0, "ill", "well"
    )  # a model of few steps says .5
    frame.to_csv(tmp_path / "clinic.csv", index=False)
    tree = clinic_tree(tmp_path) | {"algorithm": RARE["algorithm"] | {"num_rounds": 2}}
    run = tmp_path / "run"
    shown = invoke("simulate", write(tmp_path, tree), "--out", run)
    own, without = fedsim.load_run(run).summary.calibration
    assert "probability of ill" in shown
    assert f"{own.predicted:.3f}" in shown
    assert f"{without.predicted:.3f}" in shown
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "mean predicted probability of ill" in page
    assert f"<td>{own.predicted:.3f}</td><td>{own.observed:.3f}</td>" in page
    means = f"of ill {own.predicted:.3f} on average, and the observed share is {own.observed:.3f}"
    for text in (" ".join(shown.split()).lower(), page.lower()):
        assert f"predicted probabilities are too high, {means}: do not read one as a risk" in text


@pytest.mark.parametrize(
    ("gaps", "word"),
    [
        ((-0.08, -0.02), "too low"),
        ((-0.08, -0.01), None),  # not beyond the trials' spread by a tenth of .152
        ((-0.08, 0.02), None),
        ((0.016, 0.09), "too high"),
        ((0.0, 0.0), None),
    ],
)
def test_a_sentence_says_so_only_beyond_the_trials_spread(
    gaps: tuple[float, float], word: str | None, small_run: Path
) -> None:
    run = fedsim.load_run(small_run).summary
    own = Calibrated(variant="private", label="dead", predicted=0.091, observed=0.152, gap_interval90=gaps)
    lines = CALIBRATION.lines([own], run)
    assert [word in line for line in lines] == ([True] if word else [])


@pytest.mark.parametrize(
    ("predicted", "error", "binning", "told"),
    [
        (0.09, 0.005, 0.005, True),
        (0.09, 0.02, 0.005, False),
        (0.09, 0.005, 0.05, False),
        (0.15, 0.0, 0.0, False),
    ],
    ids=["clear", "within the noise", "within the bins", "alike"],
)
def test_so_does_a_deployed_runs_evaluation(
    predicted: float, error: float, binning: float, told: bool, small_run: Path
) -> None:
    run: Summary = fedsim.load_run(small_run).summary
    values = {"mean_predicted_probability": (predicted, binning), "observed_share": (0.152, 0.0)}
    part = [
        Estimated(
            metric=name,
            weighing="records",
            value=value,
            standard_error=error,
            binning=bins,
            too_few=False,
            exact=None,
        )
        for name, (value, bins) in values.items()
    ]
    *lines, last = EVALUATION.lines(part, run)
    assert len(lines) == 2 - (not told)
    assert ("probabilities are too low, of class 1 0.090 on average" in last) is told
