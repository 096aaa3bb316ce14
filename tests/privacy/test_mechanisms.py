"""What a mechanism adds, costs and says; that its noise is Gaussian is tested through the gate."""

from math import inf
from typing import get_args

import numpy as np
import pytest
import torch
from scipy import stats

from fedsim.privacy import calibrate, cost
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.registry import GAUSSIAN, MECHANISMS, NONE
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.plan import Release
from fedsim.scenario.privacy import PrivacySection

CENSUS = ((Release(FULL, 1.0), 5), (Release(Subsample(0.2), 1.0), 3))


def test_a_scenario_can_name_every_mechanism() -> None:
    assert set(MECHANISMS) == set(get_args(PrivacySection.model_fields["mechanism"].annotation))
    assert [MECHANISMS[name].name for name in MECHANISMS] == list(MECHANISMS)


def test_gaussian_noise_is_the_streams_own_scaled_to_ratio_multiplier_and_clip() -> None:
    rows = np.empty((2, 5))
    GAUSSIAN.fill([np.random.default_rng(silo) for silo in (3, 4)], rows)
    assert np.array_equal(rows, [np.random.default_rng(silo).standard_normal(5) for silo in (3, 4)])
    z, clip = torch.tensor([[1.0], [10.0]]).double(), torch.tensor([[0.5], [2.0]]).double()
    total = torch.ones(2, 5, dtype=torch.float64)
    GAUSSIAN.perturb(total, 3.0, z, 2.0, clip, lambda: torch.from_numpy(rows))
    assert SiloGaussian().sigma(3.0, z, 2.0, clip).flatten().tolist() == [3.0, 120.0]
    torch.testing.assert_close(total, 1 + torch.tensor([[3.0], [120.0]]) * torch.from_numpy(rows))


def test_float32_noise_is_standard_normal_to_its_tails_and_independent() -> None:
    """By Kolmogorov and Smirnov, lags and tails, 1e-6 by chance each; 1.015 times the size is told apart."""
    drawn = np.empty((4, 250_001), np.float32)
    GAUSSIAN.fill([np.random.Generator(np.random.SFC64(seed)) for seed in range(4)], drawn)
    values = drawn.astype(float)
    assert stats.kstest(values.ravel(), "norm").pvalue > 1e-6
    assert stats.kstest(1.015 * values.ravel(), "norm").pvalue < 1e-6
    for lag in (1, 2, 3):
        for one, other in ((values, values), (values**2, values), (values**2, values**2)):
            assert stats.pearsonr(one[:, lag:].ravel(), other[:, :-lag].ravel()).pvalue > 1e-6
    assert stats.pearsonr(values[0], values[1]).pvalue > 1e-6
    for beyond in (3, 4, 4.5):
        for side in (values, -values):
            assert (
                stats.binomtest(int((side > beyond).sum()), values.size, stats.norm.sf(beyond)).pvalue > 1e-6
            )
    again = np.empty((1, 7), np.float32)
    GAUSSIAN.fill([np.random.Generator(np.random.SFC64(0))], again)
    assert np.array_equal(again[0], drawn[0, :7])


def test_a_row_without_a_stream_is_an_error() -> None:
    """It would go out with whatever its memory held."""
    with pytest.raises(ValueError, match="zip"):
        GAUSSIAN.fill([np.random.default_rng(0)], np.empty((2, 5)))


def test_gaussian_noise_is_priced_by_the_accountant() -> None:
    budgets = [Budget(100, 1.0, 1e-5), Budget(50, 3.0, 1e-6)]
    assert GAUSSIAN.noise_multipliers(CENSUS, budgets, 1e4) == calibrate.noise_multipliers(
        CENSUS, budgets, 1e4
    )
    assert GAUSSIAN.epsilons(CENSUS, [(100, 5.0, 1e-5)]) == [cost.epsilon(CENSUS, 100, 5.0, 1e-5)]


def test_no_mechanism_changes_nothing_and_costs_infinity() -> None:
    stream, rows, total = np.random.default_rng(0), np.full((1, 3), 7.0), torch.ones(1, 3)
    NONE.fill([stream], rows)
    NONE.perturb(total, 1.0, torch.ones(1, 1), 2.0, 1.0, lambda: pytest.fail("noise was drawn"))
    assert rows.tolist() == [[7.0] * 3]
    assert total.tolist() == [[1.0] * 3]
    assert stream.standard_normal() == np.random.default_rng(0).standard_normal()
    for census in (CENSUS, ()):
        assert NONE.epsilons(census, [(100, 1e4, 1e-5)] * 2) == [inf, inf]
    assert not NONE.private
    assert NONE.notices == ("No privacy: mechanism none neither clips nor adds noise",)


def test_a_plan_with_sampling_is_not_priced_exactly() -> None:
    assert GAUSSIAN.accountant(["fresh", "full"]) == "exact Gaussian"
    assert GAUSSIAN.accountant(["full", "subsample"]).startswith("privacy loss distribution")
    assert NONE.accountant(["full"]) == "none"
