"""A fair round beside a plain one, and the metrics by group: `fair_round.py OUT`; writes JSON.

5 silos x 6,512 records and 1,000 silos x 100, 100 features, logistic regression, full batch, in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.algorithms.fair_minibatch_sgd import FairMinibatchSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.isolated.parts import trace_of
from fedsim.measure.groups import ByGroup
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.composite import Composite
from fedsim.problems.fairness import Fairness
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Terms
from fedsim.scenario.metric import BY_GROUP
from fedsim.simulation.host import MemoryLedgers
from fedsim.testing.federations import public_of
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out

FEATURES, ROUNDS = 100, 30
FAIR = Composite(fairness=Fairness("demographic_parity", 1.0, (0.5, 0.5), 2))
PROBLEM = LogisticRegression(FEATURES, 1, FAIR)


def made(silos: int, n: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Records of norm 1, labels and groups."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(silos, n, FEATURES))
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    labels, groups = rng.integers(0, 2, (2, silos, n))
    return list(zip(x, labels, groups, strict=True))


def asking(algorithm: Any, silos: list[Any]) -> Callable[[int], float]:
    """The seconds that round r takes."""
    sizes = [len(own[1]) for own in silos]
    trace = trace_of(algorithm, PROBLEM, public_of(sizes), 0, LIMITS)
    names = [f"silo-{i:04d}" for i in range(len(silos))]
    gate = Served(
        Gate(
            lay_out(silos, PROBLEM, torch.float64),
            PROBLEM,
            trace.plan,
            [Terms(name, n, 3.0, 1e-6, range(ROUNDS)) for name, n in zip(names, sizes, strict=True)],
            GAUSSIAN,
            SeededEntropy(0, 0, names, [type(algorithm).__name__] * len(names)),
            MemoryLedgers(len(names)),
            LIMITS,
            torch.float64,
            trace.broadcasts,
        ),
        algorithm,
    )
    sent = {name: torch.full((size,), 0.1, dtype=torch.float64) for name, size in trace.broadcasts[0]}

    def once(r: int) -> float:
        start = time.perf_counter()
        gate.answer(r, sent)
        return time.perf_counter() - start

    return once


def metrics_by_group(n: int = 16_281) -> float:
    """Milliseconds of every metric by group of n test records, two groups and classes; the least of 50."""
    rng, times = np.random.default_rng(0), []
    codes, target, scores = rng.integers(0, 2, n), rng.integers(0, 2, n), rng.random((n, 2))
    for _ in range(50):
        start = time.perf_counter()
        found = ByGroup.of(codes, target, scores.argmax(1), scores, (2, 2))
        for name in BY_GROUP:
            getattr(found, name)
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for silos, n in ((5, 6_512), (1_000, 100)):
        records = made(silos, n)
        plain = asking(NoisyMinibatchSGD(ROUNDS, 1.0, 1.0), records)
        fair = asking(FairMinibatchSGD(ROUNDS, 1.0, 1.0), records)
        times = [(1e3 * plain(r), 1e3 * fair(r)) for r in range(ROUNDS)][2:]
        ratio = statistics.median(b / a for a, b in times)
        found[f"{silos} silos x {n}"] = {
            "plain": min(a for a, _ in times),
            "fair": min(b for _, b in times),
            "ratio": ratio,
        }
        print(f"{silos} silos x {n}: fair round {ratio:.2f} of a plain one")
    found["metrics by group"] = {"ms": metrics_by_group()}
    print(f"metrics by group of 16,281 records: {found['metrics by group']['ms']:.1f} ms")
    Path(sys.argv[1]).write_text(json.dumps(found, indent=2))
