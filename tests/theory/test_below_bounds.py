"""Runs with the theorems' numbers against what the theorems promise, on data whose optimum is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard
from support.helpers import LIMITS, DirectLink, public_of
from support.scenarios import once

from fedsim.algorithms.prox_spider import ProxSPIDER
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.plan import Terms
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import MemoryLedger
from fedsim.simulation.trial import read, trial_of
from fedsim.theory import theorem_noise
from fedsim.theory.choice import Case as Choice
from fedsim.theory.proximal_choice import prox_spider
from fedsim.theory.symbols import Symbols
from server.aggregate import weighted
from server.loop import run
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out

pytestmark = pytest.mark.slow


class Quadratic:
    """F0(w) = 1/2 sum_j h_j (w_j - w*_j)^2 in every silo, as a linear regression without noise."""

    n, silos, epsilon, delta = 3200, 4, 2.0, 1e-5

    def __init__(self, dimension: int, decades: float) -> None:
        self.curvature = np.logspace(0, -decades, dimension)
        self.optimum = np.full(dimension, 0.5 / math.sqrt(dimension))
        self.x = np.tile(hadamard(32)[:, :dimension] * np.sqrt(self.curvature), (self.n // 32, 1))
        self.beta = float(self.curvature.sum())  # |x|^2, of every record
        self.L = float(np.abs(self.x @ self.optimum).max() * math.sqrt(self.beta))
        self.Delta = float(self.curvature @ self.optimum**2) / 2

    def setting(self) -> Symbols:
        d = len(self.optimum)
        return Symbols(
            self.n, self.silos, self.silos, d, self.epsilon, self.delta, self.L, self.beta, Delta=self.Delta
        )

    def squared_mapping(self, q: int, R: int, seed: int = 0) -> float:
        """Mean of |grad F0(w_r)|^2 over the rounds of prox-SPIDER with the noise that Theorem 149 states."""
        stated = theorem_noise.prox_spider(
            Budget(self.n, self.epsilon, self.delta), self.L, R, q, smoothness=self.beta
        )
        step = 1 / (2 * self.beta)
        # Clips above L: the theorem's noise is per unit of L, and nothing is to be clipped.
        algorithm = ProxSPIDER(
            R, q, step, self.L, smoothness=self.beta, difference_noise_ratio=stated.difference_ratio
        )
        problem, sizes = LinearRegression(len(self.optimum)), [self.n] * self.silos
        public, names = public_of(sizes), [f"silo{i}" for i in range(self.silos)]
        plan = dry_run(algorithm, problem, public, 0, LIMITS).plan
        z = stated.multiplier
        terms = [Terms(name, self.n, math.inf, self.delta, range(R), z) for name in names]
        data = [(self.x, self.x @ self.optimum)] * self.silos
        gate = Served(
            Gate(
                lay_out(data, problem, torch.float64),
                problem,
                plan,
                terms,
                GAUSSIAN,
                SeededEntropy(seed, 0, names, ["spider"] * self.silos),
                [MemoryLedger() for _ in terms],
                LIMITS,
                torch.float64,
            ),
            algorithm,
        )
        rounds = [list(range(self.silos))] * R
        iterates = [
            event.answer.numpy()
            for event in run(algorithm, problem, public, 0, DirectLink(gate.answer), rounds, weighted)
        ]
        gradients = self.curvature * (np.stack(iterates) - self.optimum)
        return float(np.square(gradients).sum(axis=1).mean())

    def bound(self, q: int, R: int) -> float:
        """4 beta Delta / R + tau_1^2: what the descent proves, with its constants (docs/thesis-audit.md)."""
        sigma = 16 * self.L**2 * math.log(1 / self.delta) * max(R / q, 1) / (self.epsilon * self.n) ** 2
        return 4 * self.beta * self.Delta / R + len(self.optimum) * sigma / self.silos


@pytest.mark.parametrize(("dimension", "decades"), [(8, 1), (16, 2), (32, 1), (32, 3)])
def test_spiders_squared_gradient_mapping_is_below_its_theorems_bound(dimension: int, decades: float) -> None:
    case = Quadratic(dimension, decades)
    setting = case.setting()
    chosen = prox_spider(Choice(setting, setting.clip or 0.0)).values
    q, R = chosen["period"], chosen["num_rounds"]
    assert case.squared_mapping(q, R) <= case.bound(q, R)


@pytest.mark.parametrize("decades", [1, 2, 3])
def test_with_the_printed_period_it_is_above(decades: float) -> None:
    # 2.2 to 7.7 times over nine seeds, and 0.3 to 0.8 of the bound with the period that the descent needs.
    dimension = 32
    case = Quadratic(dimension, decades)
    strength = case.epsilon * case.n * math.sqrt(case.silos) / math.sqrt(dimension * math.log(1 / case.delta))
    q = math.floor((strength * case.L / math.sqrt(case.Delta * case.beta)) ** (2 / 3))
    R = math.ceil(strength * math.sqrt(q * case.Delta * case.beta) / case.L)
    assert case.squared_mapping(q, R) >= 1.5 * case.bound(q, R)


FEATURES = 6  # five and a constant: |x|^2 <= 6


def tree(name: str, n: int, silos: int, **changed: Any) -> dict[str, Any]:
    made = once(
        data={"name": "synthetic", "rows": n * silos * 5 // 4, "features": 5, "test_fraction": 0.2},
        partition={"name": "iid", "num_partitions": silos},
        algorithm={"name": name, "parameters": "theorem"},
        privacy={"epsilon": 2.0, "delta": 1e-5},
        assumptions={"L": math.sqrt(FEATURES), "beta": FEATURES / 4, "D": 8.0, "Delta": 0.7},
        report={"nonprivate_baseline": False, "evaluate_every": 100000},
    )
    return made | changed


def ridge(name: str, n: int, silos: int) -> dict[str, Any]:
    constants = {"L": math.sqrt(FEATURES), "beta": FEATURES / 4 + 0.1, "mu": 0.1, "Delta": 0.7, "D": 8.0}
    problem = {"name": "logistic_regression", "regulariser": {"l2": 0.1}}
    return tree(name, n, silos, assumptions=constants, problem=problem)


def excess(resolved: Resolved, trials: int = 4) -> float:
    """Mean over trials of the empirical risk of the released model above the least there is."""
    return float(np.mean([_excess(resolved, trial) for trial in range(trials)]))


def _excess(resolved: Resolved, trial: int) -> float:
    silos = read(resolved, trial).silos
    x = torch.cat([torch.as_tensor(silo.train.features) for silo in silos])
    y = torch.cat([torch.as_tensor(silo.train.target) for silo in silos]).double()
    l2 = resolved.scenario.problem.regulariser.l2

    def risk(w: torch.Tensor) -> torch.Tensor:
        return resolved.problem.losses(resolved.problem.scores(x, w), y).mean() + l2 / 2 * (w @ w)

    run = trial_of(resolved, trial)
    while not run.finished:
        run.advance(60)
    (model,) = run.result().models.values()
    return float(risk(model)) - _least(risk, resolved.problem.dimension)


def _least(risk: Any, dimension: int) -> float:
    w = torch.zeros(dimension, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        value: torch.Tensor = risk(w)
        value.backward()
        return value

    optimiser.step(closure)
    return float(risk(w).detach())


@pytest.mark.parametrize(
    ("scenario", "reached"),
    [
        # 0.071 with steps that were made for the theorem's sigma.
        (tree("accelerated_minibatch_sgd", 500, 10), 0.006),
        # The theorem's sigma left no stage.
        (ridge("multi_stage_accelerated_minibatch_sgd", 2000, 10), 3e-4),
    ],
)
def test_acceleration_reaches_what_its_noise_allows(scenario: dict[str, Any], reached: float) -> None:
    resolved = resolve(parse(scenario))
    assert resolved.derived is not None
    measured = excess(resolved)
    assert measured <= reached
    assert measured <= resolved.derived.predicted["excess"]


@pytest.mark.parametrize(
    ("scenario", "reached"),
    [
        (tree("noisy_minibatch_sgd", 500, 10), 0.006),  # 0.012
        (ridge("noisy_minibatch_sgd", 2000, 5), 0.002),  # 0.0045 of 11 parameters
        (ridge("prox_sgd", 2000, 5), 0.05),  # 0.34 of 11 parameters
        (ridge("prox_pl_svrg", 2000, 5), 0.02),  # 0.30 of 11 parameters
        (tree("prox_spider", 2000, 5), 0.02),  # diverged
    ],
    ids=["sgd", "sgd, strongly convex", "prox-SGD", "prox-PL-SVRG", "prox-SPIDER"],
)
def test_the_others_too(scenario: dict[str, Any], reached: float) -> None:
    assert excess(resolve(parse(scenario)), trials=2) <= reached
