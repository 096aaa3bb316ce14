"""The weighted Gaussian mechanism: its gain in the thesis's settings, and silos weighed by precision."""

import math
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import InputError
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.protocol.batch import FULL
from fedsim.protocol.plan import Release
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview
from fedsim.simulation.trial import trial_of
from fedsim.theory.weighted_gaussian import best, error, shares
from tests.support.scenarios import BASE, changed, once

N = 10_000


@pytest.mark.parametrize(
    ("n_pub", "d", "rho", "B", "gain"),
    [
        (100, 10_000, 1, 25, 1.0783),
        (100, 1_000, 1, 25, 1.7779),
        (80, 100, 0.1, 25, 1.9763),
        (10, 100, 0.01, 25, 1.7978),
        (10, 100, 1, 500, 1.1996),
        (N // 2, N, 1, 1, 1.2000),
    ],
)
def test_the_gain_over_the_better_baseline(n_pub: int, d: int, rho: float, B: float, gain: float) -> None:
    n_priv, V = N - n_pub, 1.0
    r = best(n_priv, n_pub, d, B, V, rho)
    least = error(r, n_priv, n_pub, d, B, V, rho)
    baseline = min(V**2 / n_pub, error(1 / N, n_priv, n_pub, d, B, V, rho))
    assert round(baseline / least, 4) == pytest.approx(gain, abs=5e-5)
    variances = V**2 / n_priv + 2 * d * B**2 / (rho * n_priv**2), V**2 / n_pub
    assert least == pytest.approx(1 / sum(1 / each for each in variances), rel=1e-12)
    assert r * n_priv == pytest.approx(shares(variances)[0], rel=1e-12)
    assert all(error(r * c, n_priv, n_pub, d, B, V, rho) > least for c in (0.9, 1.1))


DIMENSION = 200
BUDGETS = {"registry": "public", "ward": 0.6}


def one_round(seed: int, weights: Any = "precision", epsilon: Any = BUDGETS, **algorithm: Any) -> Resolved:
    """Minibatch SGD from 0 at step 1, whose model after a round is the weighted mean of the silos' vectors.
    These are uniform on the unit sphere: V = 1, and a clip of 1 takes nothing away.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(320, DIMENSION))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    numbers = {"num_rounds": 1, "step_size": 1, "clip_norm": 1, "last_iterate": True}
    names = np.where(np.arange(320) < 40, "registry", "ward")
    data = fedsim.Arrays(x, np.ones(320), names, intercept=False, test_fraction=0.1)
    tree = once(
        seed=seed,
        partition="natural_id",
        problem={"name": "linear_regression", "silo_weights": weights},
        algorithm=numbers | algorithm,
        privacy={"epsilon": epsilon},
        report={"baselines": False, "nonprivate_baseline": False, "clipping": False},
    )
    return resolve(parse(tree).model_copy(update={"data": data}))


def squared_error(run: Resolved) -> float:
    trial = trial_of(run, 0)
    while not trial.finished:
        trial.advance(1.0)
    return float(trial.result().models["private"].square().sum())


def test_a_run_weighed_by_precision_has_the_error_of_the_theorem() -> None:
    first = one_round(0)
    n_pub, n_priv = first.sizes
    public, private = preview(first)
    rho = 1 / (2 * private.noise_multiplier**2)
    r = best(n_priv, n_pub, DIMENSION, 1.0, 1.0, rho)
    assert public.noise_multiplier == 0
    assert first.weights == pytest.approx((1 - r * n_priv, r * n_priv), rel=1e-9)
    found = np.mean([squared_error(one_round(seed)) for seed in range(120)])
    # of 120 trials in 200 dimensions the standard error is below 1 %
    assert found == pytest.approx(error(r, n_priv, n_pub, DIMENSION, 1.0, 1.0, rho), rel=0.03)


def test_weights_of_private_silos_follow_from_budgets_and_the_declared_variance() -> None:
    run = one_round(0, epsilon={"registry": 3.0, "ward": 0.6}, num_rounds=7)
    z = [
        SiloGaussian().noise_multipliers(((Release(FULL, 1.0), 7),), [Budget(n, e, 1 / n**2)], 1e4)[0]
        for n, e in zip(run.sizes, (3.0, 0.6), strict=True)
    ]
    assert z == pytest.approx([each.noise_multiplier for each in preview(run)])
    raw = [1 / (1 / n + DIMENSION * (2 * s / n) ** 2) for n, s in zip(run.sizes, z, strict=True)]
    assert run.weights == pytest.approx([each / sum(raw) for each in raw], rel=1e-9)
    assert run.premises.weights == run.weights


def test_the_declared_deviation_takes_the_place_of_the_clip() -> None:
    tree = changed(BASE, {"problem": {"name": "logistic_regression", "silo_weights": "precision"}})
    tree = changed(tree, {"privacy.epsilon": [1.0, 2.0, 4.0]})
    by_clip, by_phi = (resolve(parse(each)).weights for each in (tree, tree | {"assumptions": {"phi": 1e3}}))
    assert by_phi == pytest.approx((1 / 3,) * 3, rel=1e-3)  # sizes are equal: sampling hides the noise
    assert by_clip[2] > 1.5 * by_clip[0]
    assert math.isclose(sum(by_clip), 1)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"privacy.mechanism": "none"}, "adds no noise"),
        ({"privacy": {"epsilon": 1, "mechanism": "summed_gaussian", "honest_fraction": 1}}, "of sums"),
        ({"algorithm.num_rounds": "auto"}, "accountant"),
        (
            {
                "algorithm": {"name": "sufficient_statistics"},
                "data.link": "linear",
                "problem.name": "linear_regression",
            },
            "clip_norm",
        ),
    ],
)
def test_without_a_clip_and_noise_of_its_own_there_is_no_precision(changes: Any, hint: str) -> None:
    tree = changed(BASE, {"problem": {"name": "logistic_regression", "silo_weights": "precision"}})
    with pytest.raises(InputError, match=hint) as caught:
        resolve(parse(changed(tree, changes)))
    assert caught.value.field == "scenario.problem.silo_weights"


def test_the_report_says_that_the_objective_is_another() -> None:
    tree = changed(
        BASE, {"problem": {"name": "logistic_regression", "silo_weights": "precision"}, "trials": 1}
    )
    notices = fedsim.simulate(tree, progress=False).summary.privacy.notices
    assert any("changes the objective" in line and "silo-00 0.3333" in line for line in notices)
