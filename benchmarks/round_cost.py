"""What a round costs over the same arithmetic without a platform: `round_cost.py OUT`; writes JSON.

25 silos x 1,238 records x 50 features, logistic regression, full batch, clipping and Gaussian noise,
one thread, one process; and local SGD on the same records, whose steps have a point for each silo. The bare
loops are written with the fastest forms of the same operations; all take turns, so that a busy machine slows
all.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.local_sgd import LocalSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.contract import Public
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import Limits
from fedsim.protocol.links import Answered
from fedsim.protocol.plan import Terms
from fedsim.simulation.host import MemoryLedgers
from server.aggregate import weighted
from server.loop import run
from server.participation import schedule
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out
from silos.vault.sums import product

SILOS, RECORDS, FEATURES, ROUNDS = 25, 1238, 50, 200
LOCAL_ROUNDS, LOCAL_STEPS = 20, 10
STEP, CLIP = 0.5, 1.0
SIGMA = 10 * 2 * CLIP / RECORDS
REPETITIONS = 9


def make_records(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Separable-ish data, one pair (features, target) a silo."""
    truth = rng.standard_normal(FEATURES)
    silos = []
    for _ in range(SILOS):
        x = rng.standard_normal((RECORDS, FEATURES)) / FEATURES**0.5
        silos.append((x, (x @ truth > 0).astype(float)))
    return silos


class Link:
    """The server loop's way to the gate."""

    def __init__(self, gate: Served) -> None:
        self._gate = gate

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        """The members' messages."""
        return Answered(members, self._gate.answer(round_index, broadcast, members))


def platform(
    silos: list[tuple[np.ndarray, np.ndarray]],
    dtype: torch.dtype,
    algorithm: NoisyMinibatchSGD | LocalSGD,
) -> Callable[[], Tensor]:
    """A run through the server loop and the gate; set-up is done before."""
    problem, num_rounds = LogisticRegression(FEATURES), int(algorithm.num_rounds)
    names = tuple(f"silo-{i:02d}" for i in range(SILOS))
    public = Public(
        names,
        torch.full((SILOS,), RECORDS),
        torch.full((SILOS,), 1 / SILOS, dtype=dtype),
        torch.zeros(SILOS, dtype=dtype),
    )
    plan = dry_run(algorithm, problem, public, 0, Limits()).plan
    records = lay_out(silos, problem, dtype)
    terms = [Terms(name, RECORDS, 1.0, 1e-6, range(num_rounds)) for name in names]

    def once() -> Tensor:
        entropy = SeededEntropy(0, 0, names, ["round cost"] * len(names))
        ledgers = MemoryLedgers(len(names))
        gate = Served(
            Gate(records, problem, plan, terms, GAUSSIAN, entropy, ledgers, Limits(), dtype), algorithm
        )
        rounds = schedule(SILOS, None, [False] * num_rounds, 0, 0)
        start = time.perf_counter()
        for progress in run(algorithm, problem, public, 0, Link(gate), rounds, weighted):
            answer = progress.answer
        once.seconds = time.perf_counter() - start  # type: ignore[attr-defined]
        return answer

    return once


def arrays(silos: list[tuple[np.ndarray, np.ndarray]], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Features, targets and 1 / |x| of all silos, (silos, records, ..)."""
    x, y = (torch.stack(list(map(torch.as_tensor, own))).to(dtype) for own in zip(*silos, strict=True))
    return x, y, 1 / x.norm(dim=-1)


def bare(
    silos: list[tuple[np.ndarray, np.ndarray]], dtype: torch.dtype, fastest: bool = True
) -> Callable[[], Tensor]:
    """The same arithmetic and nothing else; its products by NumPy's BLAS, or as they were, by torch's."""
    x, y, inverse_norm = arrays(silos, dtype)
    rng = np.random.Generator(np.random.Philox(key=1))
    scores, sums = (product, product) if fastest else (torch.matmul, torch.bmm)

    def once() -> Tensor:
        start = time.perf_counter()
        w = torch.zeros(FEATURES, dtype=dtype)
        total = torch.zeros_like(w)
        for _ in range(ROUNDS):
            total = total + w
            bound = CLIP * inverse_norm
            coefficient = torch.clamp(scores(x, w).sigmoid() - y, -bound, bound)
            mean = sums(coefficient.unsqueeze(1), x).squeeze(1) / RECORDS
            noise = torch.from_numpy(rng.standard_normal((SILOS, FEATURES))).to(dtype)
            w = w - STEP * (mean + SIGMA * noise).mean(0)
        once.seconds = time.perf_counter() - start  # type: ignore[attr-defined]
        return total / ROUNDS

    return once


def bare_local(silos: list[tuple[np.ndarray, np.ndarray]], fastest: bool = True) -> Callable[[], Tensor]:
    """Local SGD's arithmetic and nothing else, in float64."""
    x, y, inverse_norm = arrays(silos, torch.float64)
    rng = np.random.Generator(np.random.Philox(key=1))
    times = product if fastest else torch.bmm

    def once() -> Tensor:
        start = time.perf_counter()
        w = torch.zeros(FEATURES, dtype=torch.float64)
        for _ in range(LOCAL_ROUNDS):
            noise = torch.from_numpy(rng.standard_normal((LOCAL_STEPS, SILOS, FEATURES)))
            own = w.repeat(SILOS, 1)
            for step in range(LOCAL_STEPS):
                bound = CLIP * inverse_norm
                scores = times(x, own.unsqueeze(-1)).squeeze(-1)
                coefficient = torch.clamp(scores.sigmoid() - y, -bound, bound)
                mean = times(coefficient.unsqueeze(1), x).squeeze(1) / RECORDS
                own -= STEP * (mean + SIGMA * noise[step])
            w = own.mean(0)
        once.seconds = time.perf_counter() - start  # type: ignore[attr-defined]
        return w

    return once


def compare(runs: Sequence[Callable[[], Tensor]], rounds: int) -> list[list[float]]:
    """Milliseconds a round, taking turns: [fedsim's], [the bare loop's], [the loop's with torch alone]."""
    for once in runs:
        once()
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(REPETITIONS):
        for once, own in zip(runs, times, strict=True):
            once()
            own.append(once.seconds * 1e3 / rounds)  # type: ignore[attr-defined]
    return times


def main() -> None:
    """Compare, and write."""
    torch.set_num_threads(1)
    silos, result = make_records(np.random.default_rng(0)), {}
    for name, dtype in {"float64": torch.float64, "float32": torch.float32}.items():
        ours = platform(silos, dtype, NoisyMinibatchSGD(ROUNDS, STEP, CLIP))
        result[name] = compare([ours, bare(silos, dtype), bare(silos, dtype, fastest=False)], ROUNDS)
    ours = platform(silos, torch.float64, LocalSGD(LOCAL_ROUNDS, LOCAL_STEPS, STEP, CLIP))
    result["local SGD"] = compare([ours, bare_local(silos), bare_local(silos, fastest=False)], LOCAL_ROUNDS)
    Path(sys.argv[1]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
