"""Noise and rounds solved together: V is what silos add, R solves its own equation, budgets are kept."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.refusals import refused
from support.theorem_scenarios import tree as made_of

from fedsim.privacy import gaussian
from fedsim.scenario.by_theorem import CHOICES
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview

L, BETA, MU, D, DELTA_F = 2.0, 1.5, 0.2, 8.0, 50.0
DIMENSION, N, DELTA = 6, 4, 1e-5


def tree(name: str, **changed: Any) -> dict[str, Any]:
    constants = {"L": L, "beta": BETA, "D": D, "Delta": DELTA_F, "upsilon": 0.5}
    needs_mu = name in ("multi_stage_accelerated_minibatch_sgd", "prox_sgd", "prox_pl_svrg")
    algorithm, assumptions = (
        {"name": name, "parameters": "theorem"},
        constants | ({"mu": MU} if needs_mu else {}),
    )
    return made_of(N, 1500, algorithm=algorithm, assumptions=assumptions) | changed


def made(name: str, algorithm: dict[str, Any] | None = None, **changed: Any) -> Resolved:
    scenario = tree(name, **changed)
    scenario["algorithm"] |= algorithm or {}
    return resolve(parse(scenario))


def predicted(resolved: Resolved) -> dict[str, float]:
    assert resolved.derived is not None
    return resolved.derived.predicted


def numbers(resolved: Resolved) -> Any:
    return resolved.algorithm


def squared_noise(resolved: Resolved, clip: float = L, size: float | None = None) -> float:
    """E|noise of the mean message|^2 with the noise multipliers at which silos are admitted."""
    admitted = preview(resolved)
    scales = [silo.noise_multiplier * 2 * clip / (size or silo.terms.n) for silo in admitted]
    weights = np.asarray(resolved.weights)
    return DIMENSION * float(np.sum((weights * np.asarray(scales)) ** 2))


FULL = ("noisy_minibatch_sgd", "accelerated_minibatch_sgd", "multi_stage_accelerated_minibatch_sgd")
UNEQUAL: dict[str, dict[str, Any]] = {
    "alike": {},
    "budgets": {"privacy": {"epsilon": [0.5, 1, 2, 4], "delta": [1e-5, 1e-6, 1e-5, 1e-7]}},
    "weights": {"problem": {"name": "logistic_regression", "silo_weights": [1, 1, 1, 3]}},
}


@pytest.mark.parametrize("silos", UNEQUAL)
@pytest.mark.parametrize("name", FULL)
def test_the_error_is_that_of_the_noise_that_silos_are_admitted_with(name: str, silos: str) -> None:
    resolved = made(name, **UNEQUAL[silos])
    assert resolved.algorithm.batch.sampler == "full"
    assert predicted(resolved)["V"] == pytest.approx(math.sqrt(squared_noise(resolved)), rel=1e-6)


def closed_form(R: int, epsilon: float = 2.0, n: int = 1500) -> float:
    """V^2 of R rounds on every record, from the Gaussian mechanism alone: sigma = 2 L sqrt R / (n mu)."""
    return DIMENSION * (2 * L / (n * affordable(epsilon))) ** 2 * R / N


@cache
def affordable(epsilon: float) -> float:
    return float(gaussian.mu(epsilon, DELTA))


def smallest(enough: Any, least: int = 1) -> int:
    return next(R for R in range(least, 10**6) if enough(R))


def test_accelerated_rounds_are_where_optimisation_meets_noise() -> None:
    resolved = made("accelerated_minibatch_sgd")
    R = smallest(lambda R: D * math.sqrt(closed_form(R) / R) >= BETA * D**2 / R**2)
    V = math.sqrt(closed_form(R))
    assert numbers(resolved).num_rounds == R > 20
    assert numbers(resolved).step_size == pytest.approx(1 / max(2 * BETA, R**1.5 * V / D), rel=1e-6)
    assert predicted(resolved)["excess"] == pytest.approx(2 * D * V / math.sqrt(R), rel=1e-6)


def test_minibatch_rounds_are_where_optimisation_meets_noise_and_stability() -> None:
    resolved = made("noisy_minibatch_sgd")

    def floor(R: int) -> float:
        return closed_form(R) / R + L**2 / (1500 * N)

    R = smallest(lambda R: D * math.sqrt(floor(R)) >= BETA * D**2 / R)
    assert numbers(resolved).num_rounds == R > 100
    step = min(1 / BETA, D / (R * math.sqrt(floor(R))))
    assert numbers(resolved).step_size == pytest.approx(step, rel=1e-6)


def test_strongly_convex_minibatch_rounds_contract_down_to_the_noise() -> None:
    constants = {"L": L, "beta": BETA, "mu": MU, "D": D}
    resolved = made("noisy_minibatch_sgd", assumptions=constants)

    def floor(R: int) -> float:
        return (closed_form(R) / R + L**2 / (1500 * N)) / MU

    R = smallest(lambda R: BETA * D**2 * math.exp(-R * MU / (2 * BETA)) <= floor(R), 15)
    assert numbers(resolved).num_rounds == R
    step = math.log((MU * R * D) ** 2 / closed_form(R)) / (MU * R)
    assert numbers(resolved).step_size == pytest.approx(min(1 / (2 * BETA), step), rel=1e-6)


def stages(R: int, V2: float) -> tuple[int, int]:
    """(stages, rounds) of B.1.6.1 that R rounds hold at variance V2."""
    count, used = 0, 0
    while True:
        k = count + 1
        more = math.ceil(max(4 * math.sqrt(2 * BETA / MU), 128 * V2 / (3 * MU * DELTA_F * 2 ** -(k + 1))))
        if used + more > R:
            return count, used
        count, used = k, used + more


def test_multi_stage_rounds_are_the_fewest_that_hold_the_most_stages_at_their_own_noise() -> None:
    resolved = made("multi_stage_accelerated_minibatch_sgd")
    R, excess = numbers(resolved).num_rounds, predicted(resolved)["excess"]
    held = {r: stages(r, closed_form(r))[0] for r in range(1, 5 * R)}
    most = max(held.values())
    assert min(r for r in held if held[r] == most) == R
    assert excess == DELTA_F * 2.0**-most
    assert stages(R, closed_form(R)) == (most, R)  # no round is left over
    assert len(resolved.trace.plan.rounds) == R
    assert most > 3


def test_prox_sgd_rounds_make_the_larger_error_least_over_every_number_of_batches() -> None:
    resolved = made("prox_sgd")

    def larger(R: int) -> float:
        K = 1500 // R
        V2 = L**2 / (N * K) + DIMENSION * (2 * L / (K * affordable(2.0))) ** 2 / N
        return max(DELTA_F * (1 - MU / (2 * BETA)) ** R, V2 / MU)

    R = min(range(1, 1501), key=lambda R: (larger(R), -R))
    assert numbers(resolved).num_rounds == R > 10
    assert predicted(resolved)["excess"] == pytest.approx(2 * larger(R), rel=1e-6)


def spider_noise(resolved: Resolved) -> tuple[float, float]:
    """(tau_1^2, tau_2^2) from the admitted noise: of a gradient, and of a difference per unit of the step."""
    ratio = numbers(resolved).difference_noise_ratio
    return squared_noise(resolved), ratio**2 * squared_noise(resolved, clip=BETA)


def test_spiders_period_keeps_its_descent_with_the_noise_that_is_there() -> None:
    resolved = made("prox_spider")
    q, R, eta = numbers(resolved).period, numbers(resolved).num_rounds, numbers(resolved).step_size
    first, second = spider_noise(resolved)
    assert eta == 1 / (2 * BETA)
    assert 10 < q < R
    assert q * eta**2 * second <= 0.5 < (q + 2) * eta**2 * second * 1.1
    assert numbers(resolved).difference_noise_ratio == pytest.approx(math.sqrt(q))
    assert predicted(resolved)["V"] == pytest.approx(math.sqrt(first), rel=1e-6)
    assert 0.9 <= BETA * DELTA_F / R / first <= 1.1


def test_svrgs_differences_have_the_theorems_share_of_noise() -> None:
    resolved = made("prox_pl_svrg")
    a = numbers(resolved)
    K = a.batch.size(1500)
    assert a.difference_noise_ratio == pytest.approx(K / 1500 * math.sqrt(a.inner_steps))
    V2 = squared_noise(resolved) + a.difference_noise_ratio**2 * squared_noise(resolved, 2 * L, K)
    assert predicted(resolved)["V"] == pytest.approx(math.sqrt(V2), rel=1e-3)  # a search to a tolerance
    assert predicted(resolved)["excess"] == pytest.approx(
        2 * max(DELTA_F * 2.0**-a.restarts, V2 / MU), rel=2e-3
    )


PARTICIPATION: dict[str, Any] = {
    "all": "all",
    "half": {"name": "uniform", "num_silos": 2},
    "random": {"name": "random_size", "min_silos": 1, "max_silos": 4},
    "available": {"name": "availability", "probability": 0.7},
}


@pytest.mark.parametrize("participation", PARTICIPATION)
@pytest.mark.parametrize("name", CHOICES)
def test_the_plan_stays_within_every_silos_budget(name: str, participation: str) -> None:
    budgets = {"epsilon": [0.5, 1, 2, 4], "delta": DELTA}
    resolved = made(name, privacy=budgets, participation=PARTICIPATION[participation])
    for silo in preview(resolved):
        assert silo.epsilon_guaranteed <= silo.terms.epsilon
        if participation in ("all", "available"):
            assert silo.epsilon_guaranteed > 0.99 * silo.terms.epsilon


FAST = [(name, 13) for name in CHOICES if name not in ("prox_pl_svrg", "prox_spider")]
SLOW = [pytest.param(name, 13, marks=pytest.mark.slow) for name in ("prox_pl_svrg", "prox_spider")]


@pytest.mark.parametrize("participation", ["all", "half"])
@pytest.mark.parametrize(("name", "budgets"), [*FAST, ("prox_spider", 2), *SLOW])  # 2 of the 13
def test_more_budget_never_has_a_worse_bound(name: str, budgets: int, participation: str) -> None:
    expected = []
    for epsilon in np.geomspace(0.8, 12, budgets):
        budget = {"epsilon": float(epsilon), "delta": DELTA}
        resolved = made(name, privacy=budget, participation=PARTICIPATION[participation])
        found = predicted(resolved)
        expected.append(found.get("excess", found.get("squared gradient")))
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] < expected[0]


def test_half_of_the_silos_plan_for_their_own_rounds() -> None:
    # A silo that is in a round is in 1 + (R - 1) / 2 of them on average, and counts twice in a mean over 2.
    resolved = made("accelerated_minibatch_sgd", participation=PARTICIPATION["half"])
    R = numbers(resolved).num_rounds
    drawn = 4 * L**2 / (2 * 1500)
    expected = drawn + closed_form(math.ceil(1 + (R - 1) / 2)) * 2
    assert predicted(resolved)["V"] == pytest.approx(math.sqrt(expected), rel=1e-6)
    rounds = [len(silo.terms.rounds) for silo in preview(resolved)]
    assert np.mean(rounds) == R / 2


def test_given_numbers_are_part_of_the_plan_whose_error_counts() -> None:
    name = "accelerated_minibatch_sgd"
    fixed = made(name, {"num_rounds": 9})
    assert numbers(fixed).num_rounds == 9
    assert predicted(fixed)["V"] == pytest.approx(math.sqrt(closed_form(9)), rel=1e-6)
    clipped = made(name, {"num_rounds": 9, "clip_norm": 1.0})
    assert predicted(clipped)["V"] == pytest.approx(math.sqrt(closed_form(9)) / 2, rel=1e-6)
    sampled = made(name, {"num_rounds": 9, "batch": {"sampler": "poisson", "fraction": 0.1}})
    assert numbers(sampled).batch.sampler == "poisson"
    V2 = 4 * L**2 / (N * 150) + squared_noise(sampled, size=150)
    assert predicted(sampled)["V"] == pytest.approx(math.sqrt(V2), rel=1e-3)
    one_pass = made(name, {"batch": {"sampler": "fresh", "fraction": 0.05}})
    assert numbers(one_pass).num_rounds == 20
    V2 = L**2 / (N * 75) + squared_noise(one_pass, size=75)
    assert predicted(one_pass)["V"] == pytest.approx(math.sqrt(V2), rel=1e-6)


@pytest.mark.parametrize("name", CHOICES)
def test_a_resolved_scenario_resolves_to_itself(name: str) -> None:
    once = made(name)
    again = resolve(parse(once.scenario.model_dump(mode="json")))
    assert again.algorithm == once.algorithm
    assert predicted(again) == predicted(once)


def test_fewer_records_than_the_condition_number_are_refused() -> None:
    constants = {"L": L, "beta": BETA, "mu": 1e-4, "Delta": DELTA_F}
    with refused("scenario.assumptions.beta", BETA, "n = 1500", "kappa = 15000"):
        made("prox_sgd", assumptions=constants)


@pytest.mark.parametrize("name", CHOICES)
def test_a_missing_constant_is_named(name: str) -> None:
    with refused("scenario.assumptions.L", None):
        made(name, assumptions={})
