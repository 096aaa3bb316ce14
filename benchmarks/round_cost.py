"""What a round costs over the same arithmetic without a platform: `make bench`.

25 silos x 1,238 records x 50 features, logistic regression, full batch, clipping and Gaussian noise,
one thread, one process. The bare loop is written with the fastest forms of the same operations; both
take turns, so that a busy machine slows both. Prints the median and spread of the ratio.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.contract import Public
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import Limits
from fedsim.protocol.terms import Terms
from server.loop import run
from server.participation import schedule
from silos.entropy import SeededEntropy
from silos.gate import Gate, hold

SILOS, RECORDS, FEATURES, ROUNDS = 25, 1238, 50, 200
STEP, CLIP = 0.5, 1.0


def make_records(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Separable-ish data, one pair (features, target) a silo."""
    truth = rng.standard_normal(FEATURES)
    silos = []
    for _ in range(SILOS):
        x = rng.standard_normal((RECORDS, FEATURES)) / FEATURES**0.5
        silos.append((x, (x @ truth > 0).astype(float)))
    return silos


def platform(silos: list[tuple[np.ndarray, np.ndarray]], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    """A run of ROUNDS rounds through the server loop and the gate; set-up is done before."""
    problem = LogisticRegression(FEATURES)
    algorithm = NoisyMinibatchSGD(ROUNDS, STEP, CLIP)
    names = tuple(f"silo-{i:02d}" for i in range(SILOS))
    public = Public(
        names,
        torch.full((SILOS,), RECORDS),
        torch.full((SILOS,), 1 / SILOS, dtype=dtype),
        torch.zeros(SILOS, dtype=dtype),
    )
    plan = dry_run(algorithm, problem, public, 0, Limits()).plan
    records = hold(silos, problem, dtype)
    terms = [Terms(name, RECORDS, 1.0, 1e-6, range(ROUNDS)) for name in names]

    def once() -> torch.Tensor:
        entropy = SeededEntropy(0, 0, names)
        gate = Gate(records, problem, algorithm, plan, terms, "gaussian", entropy, Limits(), dtype)
        rounds = schedule(SILOS, None, [False] * ROUNDS, 0, 0)
        start = time.perf_counter()
        for progress in run(algorithm, problem, public, 0, gate, rounds):
            answer = progress.answer
        once.seconds = time.perf_counter() - start  # type: ignore[attr-defined]
        return answer

    return once


def bare(silos: list[tuple[np.ndarray, np.ndarray]], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    """The same arithmetic and nothing else."""
    x = torch.stack([torch.as_tensor(features) for features, _ in silos]).to(dtype)
    y = torch.stack([torch.as_tensor(target) for _, target in silos]).to(dtype)
    inverse_norm = 1 / x.norm(dim=-1)
    sigma = 10 * 2 * CLIP / RECORDS
    rng = np.random.Generator(np.random.Philox(key=1))

    def once() -> torch.Tensor:
        start = time.perf_counter()
        w = torch.zeros(FEATURES, dtype=dtype)
        total = torch.zeros_like(w)
        for _ in range(ROUNDS):
            total = total + w
            bound = CLIP * inverse_norm
            coefficient = torch.clamp((x @ w).sigmoid() - y, -bound, bound)
            mean = torch.bmm(coefficient.unsqueeze(1), x).squeeze(1) / RECORDS
            noise = torch.from_numpy(rng.standard_normal((SILOS, FEATURES))).to(dtype)
            w = w - STEP * (mean + sigma * noise).mean(0)
        once.seconds = time.perf_counter() - start  # type: ignore[attr-defined]
        return total / ROUNDS

    return once


def measure(dtype: torch.dtype, repetitions: int) -> None:
    """Print milliseconds a round of both, and the ratio."""
    silos = make_records(np.random.default_rng(0))
    ours, theirs = platform(silos, dtype), bare(silos, dtype)
    ours(), theirs()
    times = []
    for _ in range(repetitions):
        ours(), theirs()
        times.append((ours.seconds, theirs.seconds))  # type: ignore[attr-defined]
    a, b = np.array(times).T * 1e3 / ROUNDS
    ratio = np.percentile(a / b, [5, 50, 95])
    kind = str(dtype).removeprefix("torch.")
    print(
        f"{kind}: fedsim {np.median(a):.3f} ms a round, bare loop {np.median(b):.3f} ms, "
        f"ratio {ratio[1]:.2f} [{ratio[0]:.2f}, {ratio[2]:.2f}] over {repetitions} repetitions"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    torch.set_num_threads(1)
    for kind in (torch.float64, torch.float32):
        measure(kind, parser.parse_args().repetitions)
