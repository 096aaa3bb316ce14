"""Exact noise: what is drawn, what it hides, and what it costs."""

from math import exp, inf, pi, sqrt

import numpy as np
import pytest
import torch
from scipy import stats
from support.helpers import DELTA, FALSE_ALARM, asking, open_gate, scripted, silos_of
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.privacy import cost, gaussian, grid
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.discrete_noise import with_noise
from fedsim.privacy.grid import FINEST, MAX_RECORDS, STEPS, GridGaussian
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Census, QueryShape, Release
from fedsim.protocol.statistics import Extent
from silos.vault.admission import FLOATING_POINT, silo_mechanism
from silos.vault.entropy import SystemEntropy, new_secret

N, LIMIT = 10_000, LIMITS.max_noise_multiplier
CENSUSES: dict[str, Census] = {
    "full": ((Release(FULL, 1.0), 30),),
    "fresh": ((Release(FULL, 0.5), 3), (Release(Fresh(0.05), 1.0), 10)),
    "subsample": ((Release(Subsample(0.1), 1.0), 30),),
    "poisson": ((Release(Poisson(0.1), 1.0), 30),),
    "with replacement": ((Release(WithReplacement(0.001), 1.0), 5),),
}


def perturbed(total: Tensor, ratio: float, clip: float | Tensor = 1.0, z: float = 1.0) -> Tensor:
    """A copy of `total` (silos, d) after the mechanism of its dimension."""
    noisy, multipliers = total.clone(), torch.full((len(total), 1), z, dtype=torch.float64)
    GridGaussian(Extent(total.shape[1], total.shape[1])).perturb(
        noisy, ratio, multipliers, 2.0, clip, lambda: pytest.fail("a stream")
    )
    return noisy


def drawn(scale: float, count: int) -> np.ndarray:
    """Noise of so many steps that the mechanism adds to zeros, in steps."""
    ratio = scale / GridGaussian(Extent(count, count)).sensitivity
    integers = perturbed(torch.zeros(1, count, dtype=torch.float64), ratio).numpy()[0] * STEPS
    assert np.array_equal(integers, np.rint(integers))
    return np.asarray(integers)


def fits(integers: np.ndarray, scale: float) -> bool:
    """Whether variance and 32 cells of about equal probability are those of the discrete Gaussian."""
    n = len(integers)
    variance = (integers**2).mean() / scale**2  # its own standard deviation is sqrt(2/n)
    edges = np.unique(np.rint(scale * stats.norm.ppf(np.linspace(0, 1, 33)[1:-1]))) + 0.5
    found = np.bincount(np.searchsorted(edges, integers), minlength=len(edges) + 1)
    below = np.concatenate([[0], _below(edges, scale), [1]])
    shape = stats.chisquare(found, n * np.diff(below)).pvalue
    return bool(shape > FALSE_ALARM and abs(variance - 1) < stats.norm.isf(FALSE_ALARM / 2) * sqrt(2 / n))


def _below(edges: np.ndarray, scale: float) -> np.ndarray:
    """P[X < edge]; beyond 1,000 steps a sum of pixels is an integral to 1e-12."""
    if scale > 1000:
        return np.asarray(stats.norm.cdf(edges, scale=scale))
    k = np.arange(-int(12 * scale), int(12 * scale) + 1)
    p = np.exp(-(k**2) / (2 * scale**2))
    return np.array([p[k < edge].sum() for edge in edges]) / p.sum()


@pytest.mark.parametrize("scale", [3.3, 1.7 * 2**21])
def test_noise_is_the_discrete_gaussian(scale: float) -> None:
    """A scale wrong by 3 % moves the variance by 6 %, ten deviations at 60,000 numbers: seen but for 1e-6."""
    integers = drawn(scale, 60_000)
    assert fits(integers, scale)
    assert not fits(integers, scale * 1.03)
    assert not fits(integers, scale * 0.97)
    neighbours = integers[:-1] * integers[1:] / scale**2
    assert abs(neighbours.mean()) < stats.norm.isf(FALSE_ALARM / 2) / sqrt(len(neighbours))


def test_noise_is_drawn_anew_and_in_pieces() -> None:
    values = np.arange(200_000) - 100_000
    assert np.array_equal(with_noise(values, 0.0), values)
    assert not np.array_equal(with_noise(values[:50], 1e6), with_noise(values[:50], 1e6))


def test_numbers_beyond_64_bits_stop_at_the_end() -> None:
    """To wrap around would be no function of the exact sum."""
    top = np.full(300, 2**63 - 1)
    assert (with_noise(top, 1e15) > 2**62).all()
    huge = with_noise(np.zeros(300, dtype=np.int64), 1e30)
    assert {*huge.tolist()} == {-(2**63), 2**63 - 1}


def rounding_dimension() -> int:
    """A d for which clip / sqrt(d) is an integer of steps and hardly more: rounding then adds almost one."""
    return next(d for d in range(1000, 5000) if 0 < (STEPS / sqrt(d)) % 1 < 0.01)


@pytest.mark.parametrize(("terms", "sampler"), [(1, "Poisson"), (2, "replaced")])
@pytest.mark.parametrize("clip", [1.0, 0.3, 1e-6, 1e6])
def test_rounding_moves_sums_by_no_more_than_the_sensitivity(terms: int, sampler: str, clip: float) -> None:
    """Worst sums: all coordinates round towards each other in one, and apart in the other."""
    d, step = rounding_dimension(), clip / STEPS
    apart = terms * STEPS / sqrt(d)
    low = torch.full((1, d), 0.5 - (apart % 1) / 2, dtype=torch.float64)
    raised = GridGaussian(Extent(d, d)).sensitivity * terms / 2
    for drift in (1.0, 1 + 1.2e-4):  # of a sum of a million terms
        high = low + apart * drift
        moved = (perturbed(high * step, 1.0, clip, z=0) - perturbed(low * step, 1.0, clip, z=0)) / step
        assert float(moved.norm()) <= raised
    exact = (perturbed((low + apart) * step, 1.0, clip, z=0) - perturbed(low * step, 1.0, clip, z=0)) / step
    assert float(exact.norm()) > terms * STEPS + 0.95 * sqrt(d)


def test_random_sums_two_clips_apart_stay_within_the_sensitivity() -> None:
    rng = np.random.default_rng(0)
    for d in (1, 2, 3, 50):
        low = torch.from_numpy(rng.uniform(-1e4, 1e4, size=(5000, d)))
        direction = torch.from_numpy(rng.normal(size=(5000, d)))
        high = low + 2 * direction / direction.norm(dim=1, keepdim=True)
        moved = (perturbed(high, 1.0, z=0) - perturbed(low, 1.0, z=0)).norm(dim=1) * STEPS
        assert float(moved.max()) <= GridGaussian(Extent(d, d)).sensitivity
        assert float(moved.max()) >= 2 * STEPS


def test_the_sensitivity_covers_how_far_sums_in_float64_stray() -> None:
    """Terms that are alike round alike at every addition: a quarter of what is allowed for one sum."""
    in_turn = np.full(MAX_RECORDS, 0.1).cumsum()[-1]
    allowed = MAX_RECORDS**2 * 2.0**-54
    assert allowed / 5 < abs(in_turn - 0.1 * MAX_RECORDS) / 0.1 < allowed
    noise_and_division = 5e-6 + MAX_RECORDS * 2.0**-52
    assert STEPS * (1 + 2 * allowed + noise_and_division) <= GridGaussian(Extent(0, 0)).sensitivity / 2


def test_what_leaves_is_a_function_of_the_noisy_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that differ below the grid meet the sampler as equal integers and leave as equal bits."""
    seen: list[tuple[list[int], float]] = []

    def fixed(values: np.ndarray, scale: float) -> np.ndarray:
        seen.append((values.tolist(), scale))
        return np.asarray(values + 12345)

    monkeypatch.setattr(grid, "with_noise", fixed)
    clip, d = 0.7, 40
    integers = torch.from_numpy(np.random.default_rng(0).integers(-(2**40), 2**40, size=(1, d))).double()
    left = [perturbed((integers + bits) * (clip / STEPS), 2.0, clip, z=3.0) for bits in (-0.49, 0.0, 0.49)]
    assert seen == [(integers[0].tolist(), 6.0 * GridGaussian(Extent(d, d)).sensitivity)] * 3
    assert all(torch.equal(own, (integers + 12345) * (clip / STEPS)) for own in left)


def test_clip_zero_lets_nothing_out_and_every_silo_has_its_own() -> None:
    total = torch.ones(4, 6, dtype=torch.float64)
    total[0] = 0  # what clip 0 leaves of records
    total[3, 0] = torch.nan
    clip = torch.tensor([[0.0], [1.0], [0.25], [1.0]])  # float32, as a gate of that type has it
    z = torch.tensor([[1.0], [0.0], [1.0], [0.0]], dtype=torch.float64)
    GridGaussian(Extent(6, 6)).perturb(total, 1.0, z, 2.0, clip, lambda: pytest.fail("a stream"))
    assert (total[0] == 0).all()
    assert (total[1] == 1).all()
    steps = total[2] / 0.25 * STEPS
    assert torch.equal(steps, steps.round())
    assert (total[2] != 1).all()
    assert total[3].tolist() == [0, 1, 1, 1, 1, 1]
    nothing = torch.full((1, 6), torch.inf, dtype=torch.float64)
    assert (perturbed(nothing, 1.0, clip=0.0) == 0).all()


def test_sums_of_another_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match="of 8 numbers"):
        GridGaussian(Extent(7, 7)).perturb(
            torch.zeros(1, 8), 1.0, torch.ones(1, 1), 2.0, 1.0, lambda: torch.zeros(1, 8)
        )


def distance_per_coordinate(sigma: float, variance: float) -> float:
    """Of the discrete Gaussian from round(N(0, variance)), its cells integrated relative to one value."""
    k = np.arange(-int(12 * sigma), int(12 * sigma) + 1)
    t, weight = np.polynomial.legendre.leggauss(12)
    inside = np.exp(-(k[:, None] * t / 2 + t**2 / 8) / variance) @ weight / 2
    cell = np.exp(-(k**2) / (2 * variance)) * inside / sqrt(2 * pi * variance)
    own = np.exp(-(k**2) / (2 * sigma**2))
    return float(np.abs(own / own.sum() - cell).sum() / 2)


@pytest.mark.parametrize("sigma", [FINEST, 150.0, 300.0])
def test_the_distance_from_rounded_gaussian_noise(sigma: float) -> None:
    """4.9e-4 / sigma^4 with 1/12 off the variance, 0.0202 / sigma^2 without."""
    matched = distance_per_coordinate(sigma, sigma**2 - 1 / 12) * sigma**4
    assert 4.8e-4 < matched < 5e-4
    assert 0.0201 < distance_per_coordinate(sigma, sigma**2) * sigma**2 < 0.0202
    ratios = (1.0, 0.75)
    ask = Ask(FULL, tuple(QueryShape("gradient", 1, ratio) for ratio in ratios))
    mechanism = GridGaussian(Extent(10, 10))
    z = sigma * ask.weight / mechanism.sensitivity * (1 + 1e-12)
    exact = sum(
        distance_per_coordinate(c * sigma * ask.weight, (c * sigma * ask.weight) ** 2 - 1 / 12)
        for c in ratios
    )
    assert 10 * 7 * exact < mechanism.distance(((Release(FULL, ask.weight), 7),), z) < 10 * 7 * exact * 2.1
    assert (mechanism.distance(((Release(FULL, ask.weight), 7),), z * 0.999) == 1) == (sigma == FINEST)


def test_the_distance_adds_over_releases_and_coordinates() -> None:
    z = 1e-3
    one = GridGaussian(Extent(1, 1)).distance(((Release(FULL, 1.0), 1),), z)
    many = GridGaussian(Extent(1, 1)).distance(
        ((Release(FULL, 2.0), 3), (Release(Subsample(0.5), 1.0), 2)), z
    )
    assert many == pytest.approx((3 * 16 + 2) * one)
    wide, d = GridGaussian(Extent(1000, 1000)), 1000
    scale = (GridGaussian(Extent(1, 1)).sensitivity / wide.sensitivity) ** 4
    assert wide.distance(((Release(FULL, 1.0), 1),), z) == pytest.approx(d * scale * one)
    assert (
        GridGaussian(Extent(5, 5)).distance((), 0.0)
        == GridGaussian(Extent(5, 5)).distance(((Release(FULL, 0.0), 3),), 0.0)
        == 0
    )
    assert GridGaussian(Extent(5, 5)).distance(((Release(FULL, 1.0), 1),), 0.0) == 1


@pytest.mark.parametrize("kind", CENSUSES)
@pytest.mark.parametrize(("dimension", "factor"), [(50, 1.0004), (10_000, 1.0005), (100_000, 1.0008)])
def test_noise_is_hardly_more_than_the_float_mechanisms_and_never_less(
    kind: str, dimension: int, factor: float
) -> None:
    census, exact = CENSUSES[kind], GridGaussian(Extent(dimension, dimension))
    for epsilon in (0.5, 8.0):
        budgets = [Budget(N, epsilon, 1e-6)]
        (z,), (least,) = (each.noise_multipliers(census, budgets, LIMIT) for each in (exact, SiloGaussian()))
        tolerance = 0 if kind in ("full", "fresh") else 2e-3  # of a search
        assert (1 - tolerance) * least < z
        assert least * (1 - tolerance) < z * exact.sensitivity / (2 * STEPS) < least * (factor + tolerance)
        (spent,) = exact.epsilons(census, [(N, z, 1e-6)])
        assert cost.epsilon(census, N, z, 1e-6) < spent <= epsilon


@pytest.mark.parametrize("epsilon", [1.0, 20.0, 40.0])
def test_the_price_pays_for_the_distance(epsilon: float) -> None:
    """h(eps; mu) + (1 + e^eps) T <= delta, with T counted here: a thousand releases of a million numbers."""
    census, delta, mechanism = ((Release(FULL, 1.0), 1000),), 1e-6, GridGaussian(Extent(1_000_000, 1_000_000))
    (z,) = mechanism.noise_multipliers(census, [Budget(N, epsilon, delta)], LIMIT)
    (spent,) = mechanism.epsilons(census, [(N, z, delta)])
    distance = 1000 * 1_000_000 * 5e-4 / (z * mechanism.sensitivity) ** 4
    assert spent <= epsilon
    assert float(gaussian.profile(spent, sqrt(1000) / z)) + (1 + exp(spent)) * distance <= delta
    (least,) = SiloGaussian().noise_multipliers(census, [Budget(N, epsilon, delta)], LIMIT)
    assert z > least * 1.05 if epsilon == 40 else z < least * 1.001


def test_what_no_noise_can_pay_for_is_not_claimed() -> None:
    census, mechanism = CENSUSES["full"], GridGaussian(Extent(10, 10))
    tight = FINEST / mechanism.sensitivity
    cases = [(N, 0.0, DELTA), (N, tight * 0.99, DELTA), (N, 0.05, DELTA)]
    assert mechanism.epsilons(census, cases) == [inf] * 3
    assert mechanism.epsilons((), [(N, 0.0, DELTA)]) == [0.0]
    assert mechanism.noise_multipliers(census, [Budget(N, inf, DELTA)], LIMIT) == [0.0]
    with pytest.raises(Refused, match=r"multiplier 0\.1, .* of delta 1e-05"):
        mechanism.noise_multipliers(census, [Budget(N, 1e5, DELTA)], 0.1)
    with pytest.raises(Refused, match="plan costs epsilon"):
        mechanism.noise_multipliers(census, [Budget(N, 1.0, DELTA)], 0.1)
    for smallest in (5e-324, 1e-320):  # a share of the first is 0 in floating point
        assert mechanism.epsilons(census, [(N, 5.0, smallest)]) == [inf]
        with pytest.raises(Refused, match=r"of delta (4\.94066e-324|9\.99989e-321)"):
            mechanism.noise_multipliers(census, [Budget(N, 100.0, smallest)], LIMIT)
    for ask in (
        lambda n: mechanism.epsilons(census, [(n, 5.0, DELTA)]),
        lambda n: mechanism.noise_multipliers(census, [Budget(n, 1.0, DELTA)], LIMIT),
    ):
        ask(MAX_RECORDS)
        with pytest.raises(Refused, match=r"1,000,000 units, the silo has 1,000,001"):
            ask(MAX_RECORDS + 1)


def test_it_is_a_value() -> None:
    """Prices are cached by the mechanism."""
    assert GridGaussian(Extent(5, 5)) == GridGaussian(Extent(5, 5)) != GridGaussian(Extent(6, 6))
    assert len({GridGaussian(Extent(5, 5)), GridGaussian(Extent(5, 5)), GridGaussian(Extent(6, 6))}) == 2


def test_a_silo_takes_exact_noise_up_to_its_dimension() -> None:
    assert silo_mechanism(Extent(100, 100), 100) == (GridGaussian(Extent(100, 100)), ())
    assert silo_mechanism(Extent(101, 101), 100) == (SiloGaussian(), (FLOATING_POINT,))


def test_a_gate_answers_with_exact_noise() -> None:
    """Answers less the clipped mean are the noise that was paid for, on the grid, and new in every run."""
    problem, rounds, clip, n = LogisticRegression(5), 400, 0.5, 32
    data, algorithm = silos_of(problem, [n]), scripted(asking(clip=clip), rounds)
    w = torch.linspace(-1, 1, 5, dtype=torch.float64)
    plain = open_gate(data, problem, algorithm, epsilon=inf, entropy=SystemEntropy(new_secret()))
    mean = plain.answer(0, {"w": w})["g"]
    answers = []
    for _ in range(2):
        gate = open_gate(
            data,
            problem,
            algorithm,
            mechanism=GridGaussian(Extent(5, 5)),
            entropy=SystemEntropy(new_secret()),
        )
        answers.append(torch.cat([gate.answer(r, {"w": w})["g"] for r in range(rounds)]))
    steps = answers[0] * (n / clip * STEPS)
    assert float((steps - steps.round()).abs().max()) < 1e-3 < float((mean * n / clip * STEPS % 1).max())
    assert not (answers[0] == answers[1]).all(dim=1).any()
    sigma = gate.admitted[0].noise_multiplier * GridGaussian(Extent(5, 5)).sensitivity * clip / STEPS / n
    assert fits(np.rint(((answers[0] - mean) / sigma * 1e6).numpy().ravel()), 1e6)
    assert stats.kstest(((answers[1] - mean) / sigma).flatten(), "norm").pvalue > FALSE_ALARM
    assert gate.admitted[0].epsilon_guaranteed <= 1
