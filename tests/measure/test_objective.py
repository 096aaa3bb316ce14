"""Excess risk and the gradient mapping of the training objective, against solvers that are not ours."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from support.helpers import silos_of
from support.scenarios import BASE, invoke, refusal, write

from fedsim.algorithms.multi_stage_accelerated_minibatch_sgd import MultiStageAcceleratedMinibatchSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.api.run import load_run
from fedsim.measure.objective import TrainingObjective, eta_of
from fedsim.problems.composite import Composite
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.minimise import NoOptimumError, constrained
from fedsim.problems.regularisers import Box, GroupLasso, L2Ball, Ridge
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import read

SIZES, WEIGHTS, D = (30, 40, 50), (0.6, 0.3, 0.1), 3
GROUPS = GroupLasso(0.05, ((0, 1),))
COMPOSITES = {
    "none": Composite(),
    "l2": Composite(l2=0.3),
    "l1": Composite(l1=0.1),
    "l1 and l2": Composite(l1=0.05, l2=0.1),
    "ball": Composite(constraint=L2Ball(0.2)),
    "box": Composite(constraint=Box(-0.1, 0.15)),
    "l1 in a box": Composite(l1=0.05, constraint=Box(-0.1, 0.15)),
    "group lasso": Composite(group_lasso=GROUPS),
    "ridge in a ball": Composite(ridge=Ridge(0.4, 1.0), constraint=L2Ball(0.5)),
}
KINDS: dict[str, GeneralisedLinear] = {
    "linear": LinearRegression(D),
    "logistic": LogisticRegression(D),
    "softmax": SoftmaxRegression(D, 3),
}


def _data(problem: GeneralisedLinear) -> list[tuple[np.ndarray, np.ndarray]]:
    return silos_of(problem, SIZES, seed=4)


def _value(problem: GeneralisedLinear, data: list[tuple[np.ndarray, np.ndarray]], w: np.ndarray) -> float:
    """F by definition, in NumPy."""
    total = 0.0
    for p, (x, y) in zip(WEIGHTS, data, strict=True):
        if isinstance(problem, LinearRegression):
            losses = (x @ w - y) ** 2 / 2
        elif isinstance(problem, LogisticRegression):
            losses = np.logaddexp(0, x @ w) - y * (x @ w)
        else:
            scores = x @ w.reshape(D, 3)
            losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y.astype(int)]
        total += p * losses.mean()
    c = problem.composite
    ridge, lasso = (part.weight if part else 0.0 for part in (c.ridge, c.group_lasso))
    public = c.l1 * np.abs(w).sum() + c.l2 / 2 * w @ w + ridge / 2 * ((w - 1) ** 2).sum()
    return float(total + public + lasso * np.sqrt(2) * np.hypot(w[0], w[1]))


def _inside(problem: GeneralisedLinear, w: np.ndarray) -> bool:
    return bool(torch.allclose(problem.project(torch.from_numpy(w)), torch.from_numpy(w), atol=1e-9))


def _pairs(data: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COMPOSITES)
def test_no_point_of_the_set_is_below_the_minimiser(kind, name):
    """F is convex: where nothing near is lower, nothing is."""
    base = KINDS[kind]
    problem = type(base)(D, base.num_outputs, COMPOSITES[name])
    data = _data(problem)
    w = constrained(problem, _pairs(data), WEIGHTS).numpy()
    assert _inside(problem, w)
    least, rng = _value(problem, data, w), np.random.default_rng(0)
    for scale in (1e-3, 1e-2, 0.1, 1):
        for _ in range(100):
            other = problem.project(torch.from_numpy(w + scale * rng.normal(size=w.shape))).numpy()
            assert _value(problem, data, other) >= least - 1e-13

    # And it is a fixed point of the proximal gradient step, which of a convex function only minimisers are.
    def smooth_part(v):
        losses = [problem.losses(problem.scores(x, v), y).mean() for x, y in _pairs(data)]
        return sum(p * loss for p, loss in zip(WEIGHTS, losses, strict=True))

    point = torch.from_numpy(w)
    after = problem.prox(point - torch.func.grad(smooth_part)(point), 1.0)
    assert float((after - point).norm()) < 1e-9


def test_records_that_can_be_separated_have_a_minimiser_in_a_ball_and_none_without():
    x = torch.tensor([[1.0, 1.0], [2.0, 1.0], [-1.0, 1.0], [-3.0, 1.0]], dtype=torch.float64)
    pairs = [(x, torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64))]
    with pytest.raises(NoOptimumError, match="separable"):
        constrained(LogisticRegression(2), pairs, [1.0])
    inside = constrained(LogisticRegression(2, 1, Composite(constraint=L2Ball(2.0))), pairs, [1.0])
    assert float(inside.norm()) == pytest.approx(2.0)


GOOD = BASE | {
    "data": {"name": "synthetic", "rows": 400, "features": 3},
    "problem": {
        "name": "logistic_regression",
        "silo_weights": [4, 1, 1],
        "regulariser": {"l1": 0.02, "l2": 0.01},
    },
    "algorithm": {"name": "prox_sgd", "num_rounds": 300, "step_size": 1.0, "clip_norm": 1.0},
    "privacy": {"epsilon": 2.0},
}


def _simulate(tmp_path: Path, **changes: Any) -> tuple[Path, str]:
    changes["report"] = {"baselines": False} | changes.get("report", {})
    output = invoke("simulate", write(tmp_path, GOOD | changes), "--out", tmp_path / "run")
    return tmp_path / "run", " ".join(output.split())


def _objective(**changes: Any) -> TrainingObjective:
    resolved = resolve(parse(GOOD | changes))
    return TrainingObjective(resolved, read(resolved, 0).silos)


def test_the_measured_numbers_are_those_of_the_definition():
    resolved = resolve(parse(GOOD))
    silos = read(resolved, 0).silos
    found = TrainingObjective(resolved, silos)
    w, p = np.array([0.3, -0.2, 0.5, 0.1]), (4 / 6, 1 / 6, 1 / 6)
    d = len(w)

    def value(v):
        losses = [
            np.logaddexp(0, s.train.features @ v) - s.train.target * (s.train.features @ v) for s in silos
        ]
        return float(sum(q * loss.mean() for q, loss in zip(p, losses, strict=True)) + 0.005 * v @ v)

    def split(uv):
        return value(uv[:d] - uv[d:]) + 0.02 * uv.sum()  # l1 of u - v, for u, v >= 0

    slope = sum(
        q
        * s.train.features.T
        @ (1 / (1 + np.exp(-s.train.features @ w)) - s.train.target)
        / len(s.train.target)
        for q, s in zip(p, silos, strict=True)
    )
    after = w - slope  # eta is the algorithm's step size, 1
    after = np.sign(after) * np.maximum(np.abs(after) - 0.02, 0) / 1.01
    risk = found(torch.from_numpy(w))
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxfun": 10**5}
    best = optimize.minimize(
        split, np.zeros(2 * d), method="L-BFGS-B", bounds=[(0, None)] * 2 * d, options=options
    )
    assert risk.excess == pytest.approx(value(w) + 0.02 * abs(w).sum() - best.fun, abs=1e-9)
    assert risk.gradient_mapping_sq == pytest.approx(((w - after) ** 2).sum())
    assert found.least == pytest.approx(best.fun, abs=1e-9)
    other = _objective(problem=GOOD["problem"] | {"silo_weights": "equal"})(torch.from_numpy(w))
    assert abs((other.excess or 0) - (risk.excess or 0)) > 1e-5  # p_i are used


def test_a_run_measures_both_variants_every_round_and_says_so(drawn, tmp_path):
    run, said = _simulate(tmp_path)
    rows = load_run(run).metrics.to_pylist()
    assert len(rows) == 2 * 2 * 301
    last = {(r["trial"], r["variant"]): r for r in rows if r["round"] == 300}
    for trial in (0, 1):  # without noise the optimum is reached, so it is the right one
        assert abs(last[trial, "nonprivate"]["excess_risk"]) < 1e-10
        assert last[trial, "nonprivate"]["gradient_mapping_sq"] < 1e-10
        assert 1e-5 < last[trial, "private"]["excess_risk"] < 1
    assert all(r["excess_risk"] > -1e-13 for r in rows)
    summary = json.loads((run / "summary.json").read_text())
    metrics = summary["metrics"]
    assert metrics["excess_risk"] == pytest.approx(
        np.mean([last[t, "private"]["excess_risk"] for t in (0, 1)])
    )
    assert summary["objective"]["note"] == "simulation only, not private"
    assert any(note.startswith("excess risk") for note in summary["privacy"]["not_private"])
    page = (run / "report.html").read_text()
    for stem in ("excess-risk", "gradient-mapping"):
        assert (run / "figures" / f"{stem}-against-rounds.png").stat().st_size > 5_000
    for text in (f"xcess risk F(w) - F(w*): {metrics['excess_risk']:.3g}", "at eta = 1:"):
        assert text in said
        assert text in page
    assert "Excess risk of the training objective" in page


DIGITS = {"name": "digits", "task": "parity"}
ASKED: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "synthetic, by default": ({}, True, True),
    "synthetic, not asked for": ({"report": {"excess_risk": False}}, False, False),
    "other data, by default": ({"data": DIGITS, "problem": "logistic_regression"}, False, False),
    "other data, asked for": (
        {"data": DIGITS, "problem": {"name": "logistic_regression", "regulariser": {"l2": 0.1}}}
        | {"report": {"excess_risk": True}},
        True,
        True,
    ),
    "a kink": ({"problem": "hinge_loss"}, False, False),
    "a smoothed kink": ({"problem": {"name": "hinge_loss", "smoothing": {"beta": 1.0}}}, False, True),
    "a network": (
        {"problem": {"name": "neural_network", "model": {"name": "mlp", "hidden": [3]}}},
        False,
        True,
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_it_is_measured_where_it_exists_and_is_asked_for(case, tmp_path):
    changes, excess, mapping = ASKED[case]
    few = {"algorithm": GOOD["algorithm"] | {"num_rounds": 2}, "trials": 1}
    run, said = _simulate(tmp_path, **few | changes)
    rows = load_run(run).metrics.to_pylist()
    assert {row["excess_risk"] is not None for row in rows} == {excess}
    assert {row["gradient_mapping_sq"] is not None for row in rows} == {mapping}
    asked = "not asked" not in case and "other data, by default" not in case
    assert ("excess risk: not measured" in said) is (asked and not excess)
    assert ("xcess risk of the training objective" in (run / "report.html").read_text()) is excess


def test_the_slope_of_a_network_is_that_of_all_its_records_at_once():
    model = {"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}
    found = _objective(problem=model)
    problem, w = found._problem, found._problem.start(1).double()
    inner = torch.func.grad(
        lambda v: found._share @ problem.losses(problem.slope_scores(found._features, v), found._target)
    )(w)
    assert found(w).gradient_mapping_sq == pytest.approx(float(inner.square().sum()))
    assert found(w).excess is None


def test_eta_is_the_step_or_half_the_inverse_smoothness():
    assert eta_of(NoisyMinibatchSGD(num_rounds=1, step_size=0.3, clip_norm=1.0)) == 0.3
    assert eta_of(MultiStageAcceleratedMinibatchSGD(40, 4.0, 1.0, 1.0, 1.0, 0.0)) == 1 / 8


def test_a_model_that_is_not_finite_has_no_excess():
    risk = _objective()(torch.full((4,), torch.nan))
    assert risk == (None, None)


STATED = {"L": 1.0, "beta": 1.0, "mu": 0.01, "D": 6.0, "Delta": 0.7}


def test_bounds_are_drawn_over_a_run_and_printed(tmp_path, drawn):
    """Lower bounds are for silos alike: of equal size and weight."""
    alike = {"data": GOOD["data"] | {"rows": 390}, "problem": GOOD["problem"] | {"silo_weights": "equal"}}
    few = {"algorithm": GOOD["algorithm"] | {"num_rounds": 5}, "assumptions": STATED}
    run, _ = _simulate(tmp_path, **few, **alike)
    said = invoke("bounds", "--run", run)
    assert "Theorem 40" in said
    assert "excess risk F(w) - F(w*)" in said
    for stem in ("bounds-excess-risk", "bounds-gradient-mapping"):
        assert (run / "figures" / f"{stem}.png").stat().st_size > 10_000
    shown = (run / "figures" / "bounds-excess-risk.svg").read_text()
    for text in ("prox-SGD, Theorem 40", "Theorem 133 (empirical)", "private", "1e"):
        assert text in shown
    assert "Theorem 35" not in shown  # a lower bound on another risk than the measured one
    tree = json.loads(invoke("bounds", "--run", run, "--json"))
    assert (
        tree["measured"]["excess_risk"]
        == json.loads((run / "summary.json").read_text())["metrics"]["excess_risk"]
    )
    assert len(tree["figures"]) == 2


def test_bounds_of_sums_over_silos_are_those_of_every_trust(tmp_path, drawn):
    alike = {"data": GOOD["data"] | {"rows": 390}, "problem": "logistic_regression"}
    few = {"algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 0.5, "clip_norm": 1.0}}
    sums = {"mechanism": "summed_gaussian", "epsilon": 2.0, "delta": 1e-5, "honest_fraction": 1.0}
    run, _ = _simulate(tmp_path, **few, **alike, privacy=sums, assumptions=STATED | {"mu": None})
    said = invoke("bounds", "--run", run)
    assert "of which one keeps to the protocol" in said
    shown = (run / "figures" / "bounds-excess-risk.svg").read_text()
    for text in ("SDP, shuffled MB-SGD, Theorem 38", "ISRL, noisy MB-SGD, Theorem 34",
                 "ISRL, Theorem 133 (empirical)", "central, Theorems 123, 134"):  # fmt: skip
        assert text in shown
    tree = json.loads(invoke("bounds", "--run", run, "--json"))
    convex = [each for each in tree["bounds"] if each["functions"] == "convex"]
    values = {(each["trust"], each["source"]): each["value"] for each in convex}
    at_most, own = (values["SDP", "shuffled MB-SGD, Theorem 38"], values["ISRL", "noisy MB-SGD, Theorem 34"])
    n, N, d = (tree["setting"][symbol] for symbol in ("n", "N", "d"))
    # (L D = 6): the private terms differ by sqrt N, and the others not at all.
    private = 6 * (d * math.log(1e5)) ** 0.5 / (2 * n)
    assert own - at_most == pytest.approx(private * (N**-0.5 - 1 / N))


def test_bounds_over_a_run_that_cannot_be_drawn_say_why(tmp_path):
    few = {"algorithm": GOOD["algorithm"] | {"num_rounds": 2}, "trials": 1}
    for name, changes, reason in (
        ("unmeasured", {"report": {"excess_risk": False}, "assumptions": STATED}, "report.excess_risk=true"),
        ("kinked", {"problem": "hinge_loss", "assumptions": STATED}, "HingeLoss is not one of the smooth"),
    ):
        (tmp_path / name).mkdir()
        run, _ = _simulate(tmp_path / name, **few | changes)
        assert reason in refusal("bounds", "--run", run)
    for arguments in ([], [str(tmp_path / "scenario.yaml"), "--run", str(tmp_path)]):
        assert "--run" in invoke("bounds", *arguments, code=2)


def test_the_envelope_states_the_smoothness_that_theorems_ask_for():
    smoothed = {"problem": {"name": "hinge_loss", "smoothing": {"beta": 2.0}}}
    assert resolve(parse(GOOD | smoothed)).scenario.assumptions.beta == 2.0
    looser = resolve(parse(GOOD | smoothed | {"assumptions": {"beta": 2.5}}))
    assert looser.scenario.assumptions.beta == 2.5  # of an objective with a public term, say
    with pytest.raises(Exception, match=r"assumptions\.beta: 1\.5.*at least problem\.smoothing\.beta = 2"):
        resolve(parse(GOOD | smoothed | {"assumptions": {"beta": 1.5}}))
