"""Records with heavy tails: the noise's law, the optimum that is stated, and the hard instances' moments."""

import numpy as np
import pytest
from scipy import stats
from support.scenarios import once

import fedsim
from fedsim.data.heavy_tails import HeavyTails


def residuals(data: HeavyTails) -> np.ndarray:
    source = data.open()
    w = source.optimum
    assert w is not None
    x = np.hstack([source.features, np.ones((source.num_rows, 1))])
    return source.other("y") - x @ w


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("tail", [2.2, 4.0])
def test_noise_has_the_law_that_is_asked_for(tail: float, skewed: bool) -> None:
    found = residuals(HeavyTails(rows=20_000, features=3, tail=tail, skewed=skewed, noise=0.5))
    law = stats.pareto(tail, loc=-tail / (tail - 1)) if skewed else stats.t(tail)
    assert law.mean() == pytest.approx(0, abs=1e-12)
    assert stats.kstest(found / 0.5, law.cdf).pvalue > 0.01
    assert (stats.kstest(found / 0.5, stats.t(tail + 1.5).cdf).pvalue < 1e-4) or tail > 3 or skewed


def test_the_stated_optimum_is_what_most_records_come_to() -> None:
    data = HeavyTails(rows=200_000, features=4, tail=5.0, skewed=True)
    source = data.open()
    x = np.hstack([source.features, np.ones((source.num_rows, 1))])
    found = np.linalg.lstsq(x, source.other("y"), rcond=None)[0]
    assert found == pytest.approx(source.optimum, abs=0.02)


def test_the_rare_instance_has_the_moments_of_theorem_168() -> None:
    data = HeavyTails(law="rare", rows=50_000, features=16, probability=0.02, intercept=False)
    source = data.open()
    lengths = np.linalg.norm(source.features, axis=1)
    assert set(np.round(lengths, 12)) == {0.0, 1.0}
    assert (lengths**2.2).mean() == pytest.approx(0.02, rel=0.1)
    signs = source.features[lengths > 0][0] * 4
    assert set(np.abs(np.round(signs, 12))) == {1.0}
    assert source.optimum == pytest.approx(signs / 4)


def test_the_instance_of_signs_has_a_mean_that_is_hard_to_see() -> None:
    source = HeavyTails(law="signs", rows=40_000, features=25).open()
    assert np.allclose(np.abs(source.features), 0.2)
    mean = source.features.mean(axis=0) / source.optimum  # 1 / sqrt(rows), and as much error
    assert mean.mean() * 200 == pytest.approx(1.0, abs=0.7)


@pytest.mark.parametrize("law", ["rare", "signs"])
def test_a_hard_instance_trains_in_its_ball(law: str) -> None:
    data = {"name": "heavy_tails", "law": law, "rows": 400, "features": 16, "intercept": False}
    tree = once(
        seed=1,
        data=data | {"probability": 0.5},
        partition={"name": "iid", "num_partitions": 2},
        problem={"name": "hinge_loss", "constraint": {"name": "l2_ball", "radius": 1.0}},
        algorithm={"num_rounds": 20, "step_size": 0.3, "last_iterate": True},
    )
    run = fedsim.simulate(tree | {"privacy": {"mechanism": "none"}}, progress=False)
    if law == "rare":
        optimum = HeavyTails(**data, probability=0.5).open().optimum
        assert np.asarray(run.model)[0] @ optimum > 0.9
