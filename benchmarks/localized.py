"""Localized acceleration beside one pass and full batches: `localized.py OUT`; writes JSON.

Ten silos of 1,024 records, 20 normal features, logistic regression, delta 1 / n^2; a silo's parameters are
the common ones plus `apart` times normal numbers. Excess risk over
the population's optimum, of the mean objective, on 20,000 further records a silo. Every method is tuned on
trials that are not reported, at its own numbers.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from fedsim.algorithms.section import algorithm_of
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Plan, Terms
from fedsim.simulation.host import MemoryLedger
from fedsim.testing.federations import all_take_part, drive, plan_of, public_of
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out

SILOS, N, D = 10, 1024, 20
TUNING, TRIALS = 3, 12
FRESH = {"sampler": "fresh"}


def worlds(apart: float, seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features with an intercept, labels and silos of n records a silo; parameters are of the seed alone."""
    parameters = np.random.default_rng([seed, 0])
    common = parameters.normal(size=D + 1)
    own = common + apart * parameters.normal(size=(SILOS, D + 1))
    rng = np.random.default_rng([seed, 1, n])
    x = rng.normal(size=(SILOS, n, D))
    score = np.einsum("snd,sd->sn", x, own[:, :-1]) + own[:, -1:]
    y = (rng.random((SILOS, n)) < expit(score)).astype(np.int64)
    return x.reshape(-1, D), y.ravel(), np.repeat(np.arange(SILOS), n)


def risk(apart: float, seed: int) -> Any:
    """w to the population's excess risk."""
    x, y, _ = worlds(apart, seed, 20_000)
    x = np.hstack([x, np.ones((len(x), 1))])

    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        score = x @ w
        loss = np.logaddexp(0, score) - y * score
        return float(loss.mean()), x.T @ (expit(score) - y) / len(y)

    least = minimize(value, np.zeros(D + 1), jac=True, tol=1e-10).fun
    return lambda w: value(w)[0] - least


def methods() -> dict[str, list[dict[str, Any]]]:
    """Numbers that each is tuned over."""
    steps = (1.0, 2.0, 4.0, 8.0)
    one_pass = [
        {"num_rounds": R, "step_size": step, "clip_norm": 1.0, "batch": FRESH | {"fraction": 1 / R}}
        for R, step in product((2, 4, 8, 16, 32), (*steps, 16.0, 32.0))
    ]
    full = [
        {"num_rounds": R, "step_size": s, "clip_norm": 1.0, "last_iterate": True}
        for R, s in product((5, 10, 20, 40, 80), steps)
    ]
    localized = [
        {
            "phases": phases,
            "phase_rounds": R,
            "step_size": step,
            "regularisation": weight,
            "growth": growth,
            "clip_norm": 1.0,
        }
        for phases, R, step, (weight, growth) in product(
            (2, 3, 4), (2, 5, 10, 20), (2.0, 4.0, 8.0, 16.0), ((0.003, 2.0), (0.03, 1.0))
        )
    ]
    return {
        "accelerated_minibatch_sgd": one_pass,
        "localized_accelerated_sgd": localized,
        "noisy_minibatch_sgd": full,
    }


@cache
def planned(algorithm: str) -> Plan:
    """The plan of an algorithm's numbers, whatever the records and the budget."""
    return plan_of(algorithm_of(json.loads(algorithm)), LogisticRegression(D + 1), (N,) * SILOS)


def excess(algorithm: dict[str, Any], epsilon: float, apart: float, seed: int, measure: Any) -> float:
    """Of one run on the records of a seed, without what a whole simulation measures besides."""
    x, y, _ = worlds(apart, seed, N)
    x = np.hstack([x, np.ones((len(x), 1))]).reshape(SILOS, N, D + 1)
    data, sizes = list(zip(x, y.reshape(SILOS, N).astype(float), strict=True)), (N,) * SILOS
    made, problem, public = algorithm_of(algorithm), LogisticRegression(D + 1), public_of(sizes)
    plan = planned(json.dumps(algorithm))
    names = [f"silo{i}" for i in range(SILOS)]
    terms = [Terms(name, N, epsilon, N**-2.0, range(len(plan.rounds))) for name in names]
    entropy, records = (
        SeededEntropy(seed, 0, names, ["localized"] * SILOS),
        lay_out(data, problem, public.weights.dtype),
    )
    ledgers = [MemoryLedger() for _ in names]
    gate = Served(
        Gate(records, problem, plan, terms, GAUSSIAN, entropy, ledgers, LIMITS, public.weights.dtype), made
    )
    rounds = drive(gate, made, problem, public, all_take_part(plan, SILOS))
    return float(measure(rounds[-1].answer.numpy()))


def several(algorithm: dict[str, Any], epsilon: float, apart: float, risks: dict[int, Any]) -> list[float]:
    """Excess risks of runs on the records of several seeds."""
    return [excess(algorithm, epsilon, apart, seed, measure) for seed, measure in risks.items()]


def main(out: Path) -> None:
    """Measure, and write JSON."""
    found = []
    for apart in (0.5, 1.5):
        held_back = {seed: risk(apart, seed) for seed in range(100, 100 + TUNING)}
        reported = {seed: risk(apart, seed) for seed in range(TRIALS)}
        for epsilon, (name, grid) in product((1.0, 3.0, 6.0), methods().items()):
            tuned = [np.mean(several({"name": name, **own}, epsilon, apart, held_back)) for own in grid]
            best = grid[int(np.argmin(tuned))]
            values = several({"name": name, **best}, epsilon, apart, reported)
            row = {"apart": apart, "epsilon": epsilon, "name": name, "excess": float(np.mean(values))}
            found.append(row | {"error": float(np.std(values, ddof=1) / np.sqrt(TRIALS)), **best})
            print(found[-1], flush=True)
            out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
