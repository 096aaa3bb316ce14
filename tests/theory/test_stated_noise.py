"""Theorems as code against their printed formulas, and their true cost against published values."""

import math
from collections.abc import Callable

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant

from benchmarks.thesis.audit.claims import spider_code
from benchmarks.thesis.audit.true_cost import census, least_epsilon, true_epsilon, zcdp_epsilon
from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample, WithReplacement
from fedsim.theory.theorem import Theorem
from fedsim.theory.theorem_noise import (
    accelerated_erm,
    accelerated_one_pass,
    alternate_spider,
    experiments,
    local_sgd,
    noisy_minibatch,
    prox_sgd,
    prox_spider,
    prox_svrg,
    spider_experiments,
)

CLAIM = Budget(1000, 0.5, 1e-5)
LOG = math.log(1e5)  # ln(1/delta)
MANY = 256 * 9 / (1000 * 0.5) ** 2  # 256 L^2 / (n eps)^2 at L = 3
# name: theorem, [sigma^2], [sensitivity], [count] of its releases
STATED: dict[str, tuple[Theorem, list[float], list[float], list[int]]] = {
    "MB-SGD": (
        noisy_minibatch(CLAIM, 3.0, 40, Subsample(0.1)),
        [MANY * 40 * math.log(100 / 1e-5) * math.log(2e5)], [6 / 100], [40],
    ),
    "accelerated ERM": (
        accelerated_erm(CLAIM, 3.0, 40, Subsample(0.1)),
        [MANY * 40 * math.log(100 / 1e-5) * math.log(2e5)], [6 / 100], [40],
    ),
    "experiments": (
        experiments(CLAIM, 3.0, 40, Subsample(0.1)), [8 * 9 * 40 * LOG / 500**2], [6 / 100], [40]
    ),
    "one pass": (
        accelerated_one_pass(CLAIM, 3.0, 20, Fresh(0.05)),
        [32 * 9 * math.log(1.25e5) / (0.5 * 50) ** 2], [6 / 50], [20],
    ),
    "prox-SGD": (
        prox_sgd(CLAIM, 3.0, 20, Fresh(0.05)), [8 * 9 * LOG / (0.5 * 50) ** 2], [6 / 50], [20]
    ),
    "SVRG": (
        prox_svrg(CLAIM, 3.0, 6.0, 12, 10, Subsample(0.1), 4),
        [
            MANY * 4 * 12 * math.log(2e5) * math.log(5 * 12e5),
            4 * MANY * 4 * 120 * math.log(2e5) * math.log(2.5 * 120e5),
        ],
        [6 / 1000, 12 / 100], [48, 480],
    ),
    "SPIDER": (
        prox_spider(CLAIM, 3.0, 60, 4),
        [16 * 9 * LOG * 15 / 500**2, 64 * 9 * 60 * LOG / 500**2], [6 / 1000, 12 / 1000], [15, 45],
    ),
    "SPIDER, beta known": (
        prox_spider(CLAIM, 3.0, 60, 4, smoothness=7.0),
        [16 * 9 * LOG * 15 / 500**2, 16 * 49 * 60 * LOG / 500**2], [6 / 1000, 14 / 1000], [15, 45],
    ),
    "SPIDER, one phase": (
        prox_spider(CLAIM, 3.0, 3, 5),
        [16 * 9 * LOG / 500**2, 64 * 9 * 3 * LOG / 500**2], [6 / 1000, 12 / 1000], [1, 2],
    ),
    "alternate SPIDER": (
        alternate_spider(CLAIM, 3.0, 7, Subsample(0.5), Subsample(0.25)),
        [8 * 9 * 7 * math.log(2e5) / 500**2, 32 * 9 * 7 * math.log(2e5) / 500**2],
        [6 / 500, 12 / 250], [4, 3],
    ),
    "SPIDER's experiments": (
        spider_experiments(CLAIM, 3.0, 60, 4, Subsample(0.5), Subsample(0.25)),
        [16 * 9 * LOG * 15 / 500**2, 64 * 9 * 60 * LOG / 500**2], [6 / 500, 12 / 250], [15, 45],
    ),
    "SPIDER's code": (
        spider_code(CLAIM, 3.0, 60, 4, Subsample(0.5), Subsample(0.25)),
        [16 * 9 * LOG / 500**2, 64 * 9 * 60 * LOG / 500**2], [6 / 500, 12 / 250], [15, 45],
    ),
    "local SGD": (
        local_sgd(CLAIM, 3.0, 10, Subsample(0.001), 6), [8 * 9 * 60 * LOG / 500**2], [6], [60]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATED)
def test_releases_are_the_printed_ones(name: str) -> None:
    theorem, variances, sensitivities, counts = STATED[name]
    assert [kind.sigma**2 for kind in theorem.releases] == pytest.approx(variances, rel=1e-12)
    assert [kind.sensitivity for kind in theorem.releases] == pytest.approx(sensitivities)
    assert [kind.count for kind in theorem.releases] == counts


def test_a_census_weighs_differences_by_their_own_multiplier() -> None:
    theorem = STATED["SPIDER"][0]
    first, second = theorem.releases
    mu = math.sqrt(15 / first.multiplier**2 + 45 / second.multiplier**2)
    assert true_epsilon(theorem) == pytest.approx(float(gaussian.epsilon(mu, 1e-5)), rel=1e-9)
    weights = [release.weight for release, _ in census(theorem)]
    assert weights == pytest.approx([1.0, first.multiplier / second.multiplier])


def _minibatch(epsilon: float) -> Theorem:
    return noisy_minibatch(Budget(1000, epsilon, 1e-6), 1.0, 100, Subsample(0.05))


@pytest.mark.parametrize(("target", "true", "renyi"), [(1, 0.03, 0.06), (8, 0.24, 0.54)])
def test_the_256_family_spends_a_small_part_of_its_claim(target: float, true: float, renyi: float) -> None:
    # Two digits: by privacy-loss distributions, and by Renyi DP, which is twice as loose here.
    theorem = _minibatch(target)
    gaussian_event = dp_accounting.GaussianDpEvent(theorem.multiplier)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 50, gaussian_event)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(neighboring_relation=relation).compose(event, 100)
    assert accountant.get_epsilon(1e-6) == pytest.approx(renyi, abs=0.005)
    assert true_epsilon(theorem) == pytest.approx(true, abs=0.006)


def _one_pass(epsilon: float) -> Theorem:
    return accelerated_one_pass(Budget(1000, epsilon, 1e-5), 1.0, 20, Fresh(0.05))


def _prox_sgd(epsilon: float) -> Theorem:
    return prox_sgd(Budget(1000, epsilon, 1e-5), 1.0, 20, Fresh(0.05))


def _svrg(epsilon: float) -> Theorem:
    return prox_svrg(Budget(1000, epsilon, 1e-5), 1.0, 2.0, 12, 10, Subsample(0.1), 3)


def _spider(epsilon: float) -> Theorem:
    return prox_spider(Budget(1000, epsilon, 1e-5), 1.0, 1000, 100)


@pytest.mark.parametrize(
    ("theorem", "target", "true", "tolerance"),
    [
        (_one_pass, 1, 0.353, 5e-4),
        (_prox_sgd, 8, 8.0, 0.05),
        (_prox_sgd, 10, 10.5, 0.05),
        (_prox_sgd, 12, 13.2, 0.05),
        (_prox_sgd, 15, 17.6, 0.05),
        (_svrg, 1, 0.04, 0.006),
    ],
)
def test_true_epsilons_are_the_published_ones(
    theorem: Callable[[float], Theorem], target: float, true: float, tolerance: float
) -> None:
    assert true_epsilon(theorem(target)) == pytest.approx(true, abs=tolerance)


@pytest.mark.parametrize(("target", "zcdp"), [(1, 1.02), (6, 6.8), (12, 15.1), (18, 25.0)])
def test_spider_exceeds_its_claim_already_by_the_theorems_own_conversion(target: float, zcdp: float) -> None:
    found = zcdp_epsilon(_spider(target))
    assert found == pytest.approx(zcdp, abs=0.06 if target > 1 else 0.005)
    assert found is not None
    assert found > target


def test_spider_exceeds_its_claim_exactly_from_about_eight() -> None:
    assert true_epsilon(_spider(7.5)) < 7.5
    assert true_epsilon(_spider(8.5)) > 8.5
    doubled = _spider(18 / math.sqrt(2))  # twice every variance
    assert true_epsilon(doubled) < 18


def _failing(theorem: Theorem) -> list[str]:
    return [check.condition for check in theorem.checks if not check.holds]


@pytest.mark.parametrize(
    ("theorem", "bound"),
    [
        (noisy_minibatch, 2 * math.log(2e5)),
        (accelerated_erm, 2 * math.log(2e5)),
        (accelerated_one_pass, 8 * LOG),
        (prox_sgd, 15.0),
    ],
)
def test_the_range_of_epsilon_ends_where_the_theorem_says(
    theorem: Callable[..., Theorem], bound: float
) -> None:
    def conditions(epsilon: float) -> list[str]:
        batch = FULL if theorem in (noisy_minibatch, accelerated_erm) else Fresh(0.001)
        return _failing(theorem(Budget(1000, epsilon, 1e-5), 1.0, 1000, batch))

    assert conditions(bound * 0.999) == []
    assert [text.split()[0] for text in conditions(bound * 1.001)] == ["eps"]


def test_the_minimum_of_k_is_the_theorems() -> None:
    least = 0.5 * 1000 / (4 * math.sqrt(2 * 40 * math.log(2e5)))  # 4.0
    enough, short = math.ceil(least), math.ceil(least) - 1
    assert _failing(noisy_minibatch(CLAIM, 1.0, 40, Subsample(enough / 1000))) == []
    assert _failing(noisy_minibatch(CLAIM, 1.0, 40, Subsample(short / 1000)))[0].startswith("K >=")


@pytest.mark.parametrize("kind", [spider_experiments, alternate_spider])
def test_the_experiments_spiders_have_a_minimum_of_k_for_either_batch(kind: Callable[..., Theorem]) -> None:
    enough, short = Subsample(56 / 1000), Subsample(54 / 1000)  # 1000 sqrt(0.5) / (2 sqrt 40) = 55.9
    period = [4] if kind is spider_experiments else []
    for batches, holds in [((enough, enough), True), ((short, enough), False), ((enough, short), False)]:
        failing = _failing(kind(CLAIM, 1.0, 40, *period, *batches))
        assert failing == ([] if holds else ["K >= n sqrt(eps) / (2 sqrt R)"])


def test_the_published_formula_at_the_clip_truly_costs_at_least_33_where_it_claims_12() -> None:
    claim, batch = Budget(1238, 12.0, 1238**-2), WithReplacement(443 / 1238)
    theorem = experiments(claim, 1.0, 35, batch)
    assert least_epsilon(theorem) == pytest.approx(33.1, abs=0.1)  # by dp_accounting's mixture pair
    assert 33 <= least_epsilon(theorem) <= true_epsilon(theorem) <= 48


def test_svrg_needs_a_batch_that_grows_as_silos_get_fewer() -> None:
    numbers = (CLAIM, 1.0, 2.0, 2, 10, Subsample(0.05))
    assert _failing(prox_svrg(*numbers, active=8)) == []  # (10^6 / 8)^(1/3) = 50
    assert _failing(prox_svrg(*numbers, active=7)) == ["K >= (n^2 / M)^(1/3)"]


def test_prox_sgd_needs_more_records_than_the_condition_number() -> None:
    numbers = (CLAIM, 1.0, 20, Fresh(0.05))
    assert _failing(prox_sgd(*numbers, kappa=1000)) == []
    assert _failing(prox_sgd(*numbers, kappa=1001)) == ["n >= kappa"]
    assert _failing(prox_sgd(*numbers)) == []


@pytest.mark.parametrize(
    "theorem",
    [
        noisy_minibatch(CLAIM, 1.0, 20, Fresh(0.05)),
        noisy_minibatch(CLAIM, 1.0, 20, Poisson(0.5)),
        prox_sgd(CLAIM, 1.0, 20, Subsample(0.05)),
        accelerated_one_pass(CLAIM, 1.0, 20, FULL),
        prox_spider(CLAIM, 1.0, 20, 5, FULL, Subsample(0.05)),
    ],
)
def test_a_sampler_that_the_proof_does_not_cover_is_named(theorem: Theorem) -> None:
    (check,) = [check for check in theorem.checks if not check.holds]
    assert check.field == "algorithm.batch.sampler"


def test_the_thesis_conversion_does_not_apply_to_sampled_batches() -> None:
    assert zcdp_epsilon(STATED["experiments"][0]) is None


def test_a_base_multiplier_is_sigma_over_sensitivity() -> None:
    theorem, variances, *_ = STATED["SVRG"]
    assert theorem.multiplier == pytest.approx(math.sqrt(variances[0]) * 1000 / 6)
