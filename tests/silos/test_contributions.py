"""What a silo adds to a sum: its noise, and how far one record moves it."""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.helpers import FALSE_ALARM, asking, scripted, silos_of
from support.summing import sums_gate

from fedsim.common.errors import Refused
from fedsim.privacy.shuffled_binomial import ShuffledBinomial
from fedsim.privacy.shuffled_gaussian import ShuffledGaussian
from fedsim.privacy.sum_mechanism import SumMechanism
from fedsim.privacy.summed_gaussian import SummedGaussian
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.batch import FULL, Batch, Subsample
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.pool import Pool
from fedsim.protocol.statistics import Extent

D, Z = 200, 3.0
LEAST, FRACTION = 8, 0.5
HONEST = 4
POOL = Pool((2,) * 10, (1.0,) * 10, LEAST, FRACTION)


def _noise(mechanism: SumMechanism, seed: int = 0, rounds: int = 20) -> np.ndarray:
    """Contributions of ten silos whose records all count as zero, in value at clip 1: (silos, numbers)."""
    problem = LinearRegression(D)
    zeros = [(np.full((2, D), np.nan), np.zeros(2))] * 10
    algorithm = scripted(asking(), rounds)
    gate = sums_gate(zeros, problem, algorithm, mechanism, POOL, noise=Z, seed=seed)
    point = {"w": torch.zeros(D, dtype=torch.float64)}
    rows = [gate.answer(r, point)["0"] for r in range(rounds)]
    return (torch.cat(rows, dim=1) * mechanism.step(1.0)).numpy()


def _is_claimed(noise: np.ndarray, mechanism: SumMechanism, share: float) -> bool:
    """Whether the variance is `share` of what is claimed, (Z reach(1))^2; false alarm 1e-6."""
    statistic = (noise**2).sum() / ((Z * mechanism.reach(1.0)) ** 2 * share)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], noise.size)
    return bool(low < statistic < high)


NOISY: list[SumMechanism] = [
    SummedGaussian(Extent(D, D), LEAST, FRACTION),
    SummedGaussian(Extent(D, D), LEAST, FRACTION, exact=True),
    ShuffledBinomial(D, LEAST, FRACTION, 128),
]


@pytest.mark.parametrize("mechanism", NOISY, ids=["summed", "exact", "binomial"])
def test_the_total_has_the_claimed_noise_with_the_fewest_honest_silos(mechanism):
    """Each silo's is a quarter of the claim, four are all of it, ten two and a half times as much.

    4,000 numbers: a scale that is a sixth too small or a fifth too large is rejected, power above 1 - 1e-6.
    """
    noise = _noise(mechanism)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], noise.shape[1])
    assert stats.chi2.sf(low * 1.2**2, noise.shape[1]) < 1e-6 > stats.chi2.cdf(high / 1.2**2, noise.shape[1])
    assert _is_claimed(noise[:HONEST].sum(0), mechanism, 1.0)
    assert _is_claimed(noise[0], mechanism, 1 / HONEST)
    assert _is_claimed(noise.sum(0), mechanism, 10 / HONEST)
    assert not _is_claimed(noise[: HONEST - 1].sum(0), mechanism, 1.0)
    assert not _is_claimed(1.2 * noise[:HONEST].sum(0), mechanism, 1.0)
    assert not _is_claimed(noise[:HONEST].sum(0) / 1.2, mechanism, 1.0)


def test_messages_have_all_of_the_noise_each():
    mechanism = ShuffledGaussian(LEAST, FRACTION)
    noise = _noise(mechanism)
    assert _is_claimed(noise[0], mechanism, 1.0)
    assert not _is_claimed(noise[0] / 1.2, mechanism, 1.0)


def test_silos_add_none_where_aggregators_do():
    mechanism = SummedGaussian(Extent(D, D), LEAST, 1.0, noise_by="aggregators")
    assert not _noise(mechanism, rounds=2).any()
    assert mechanism.aggregators_noise(Z, D, 2.0) * mechanism.step(1.0) == pytest.approx(
        Z * mechanism.reach(1.0)
    )


def test_no_two_silos_share_noise():
    """4,000 numbers each; false alarm 1e-6, and shared noise has correlation 1."""
    noise = _noise(SummedGaussian(Extent(D, D), LEAST, FRACTION))
    most = stats.norm.isf(FALSE_ALARM / 2 / 45) / math.sqrt(noise.shape[1])
    assert most < 0.2
    assert all(abs(np.corrcoef(a, b)[0, 1]) < most for a, b in combinations(noise, 2))


# How far one record moves a contribution: all pairs of hostile records, through the gate.

DIMENSION = 3
SIZES, WEIGHTS, CLIPS = (4, 10, 30), (0.2, 0.5, 0.3), (1.0, 0.4, 0.07)
UNEQUAL = Pool(SIZES, WEIGHTS, 3, 1.0)
HALF = Subsample(0.5)
ONE_QUERY = Plan(((Ask(FULL, (QueryShape("gradient", 1, 1.0),)),),))
MECHANISMS: list[SumMechanism] = [
    SummedGaussian(Extent(DIMENSION, DIMENSION), 3, 1.0),
    ShuffledBinomial(DIMENSION, 3, 1.0, 128),
    ShuffledGaussian(3),
]


def _hostile() -> list[tuple[np.ndarray, float]]:
    rng = np.random.default_rng(1)
    directions = [*np.eye(DIMENSION), rng.normal(size=DIMENSION)]
    opposed = [(sign * x, 1e3) for x in directions for sign in (1, -1)]
    odd = [(np.full(DIMENSION, np.nan), 0.0), (np.full(DIMENSION, 1e300), -1e300)]
    return [*opposed, (1e6 * directions[-1], 0.3), (directions[0], 0.3), *odd]


def _moved(mechanism: SumMechanism, silo: int, batch: Batch, clip: float, place: int) -> float:
    """The largest distance between contributions of data sets that differ in one record, over the clip."""
    problem, seen = LinearRegression(DIMENSION), []
    data = silos_of(problem, SIZES)
    plan = Plan(((Ask(batch, (QueryShape("gradient", 1, 1.0),)),),))
    algorithm, point = scripted(asking(clip=clip, batch=batch), 1), torch.full((DIMENSION,), 0.1).double()
    for features, target in _hostile():
        x, y = data[silo][0].copy(), data[silo][1].copy()
        x[place], y[place] = features, target
        worlds = [(x, y) if i == silo else own for i, own in enumerate(data)]
        gate = sums_gate(worlds, problem, algorithm, mechanism, UNEQUAL, clips=CLIPS, plan=plan)
        seen.append(gate.answer(0, {"w": point})["0"][silo] * mechanism.step(clip) / clip)
    table = torch.stack(seen)
    return float(torch.cdist(table, table, compute_mode="donot_use_mm_for_euclid_dist").max())


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
@pytest.mark.parametrize("batch", [FULL, HALF], ids=["full", "half"])
def test_one_record_moves_a_contribution_by_what_is_priced(mechanism, batch):
    """By at most reach(w_i kappa_i), and by nearly all of it but for rounding; weights and clips differ."""
    for silo, kappa in enumerate(CLIPS):
        r = kappa * UNEQUAL.weight(silo, batch)
        places = range(1) if batch == FULL else range(2)
        moved = max(_moved(mechanism, silo, batch, 0.7, place) for place in places)
        assert moved <= mechanism.reach(r) * (1 + 1e-9)
        assert moved >= 0.99 * 2 * r - 2 * math.sqrt(DIMENSION) / 128
        assert moved > mechanism.reach(0.9 * r) or mechanism.name == ShuffledBinomial.name


# Algorithms whose silo method is not linear.


def _answered(half: Any, plan: Plan | None = ONE_QUERY, noise: float = 0.0) -> Mapping[str, torch.Tensor]:
    """The contributions of three silos that run this silo method, in one round."""
    problem = LinearRegression(DIMENSION)
    data = silos_of(problem, SIZES)
    gate = sums_gate(data, problem, scripted(half, 1), MECHANISMS[0], UNEQUAL, noise=noise, plan=plan)
    return gate.answer(0, {"w": torch.zeros(DIMENSION, dtype=torch.float64)})


def test_a_clip_of_one_silo_is_refused_where_sums_have_one():
    def own_clips(w, ask, memory):
        first = asking()(w, ask, memory)["g"]
        return asking(clip=torch.ones_like(first[:, :1]))(w, ask, memory)

    assert list(_answered(asking(), None)) == ["0"]
    with pytest.raises(Refused, match="one clip for all"):
        _answered(own_clips, None)


def test_a_silo_method_that_remembers_is_refused():
    def remembering(w, ask, memory):
        answer = asking()(w, ask, memory)
        memory["last"] = answer["g"]
        return answer

    with pytest.raises(Refused, match="keeps memory"):
        _answered(remembering)


def test_a_silo_method_hears_zeros():
    heard = []

    def listening(w, ask, memory):
        answer = asking()(w, ask, memory)
        heard.append(answer["g"].abs().max())
        return answer

    assert _answered(listening, noise=1.0)["0"].abs().max() > 0
    assert heard == [0.0]
