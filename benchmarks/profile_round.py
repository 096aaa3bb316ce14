"""Where the time of a round and of a sweep goes, by part: `make profile` writes docs/performance.md.

Functions are wrapped by a clock that takes away what wrapped functions within them take; the wrapping itself
adds a few microseconds a part. Rounds: the median of each part. The sweep: one algorithm of MNIST's logistic
regression on principal components (six budgets, ten step sizes, ten trials) where `FEDSIM_DATA` has the
images, else `digits_sweep`.
One process, one thread.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

import torch
from document import table, where, write
from scaling_point import Link, scenario

import fedsim
import server.aggregate
import server.loop
from fedsim.data import federation, fitted
from fedsim.data.images import ImageSource
from fedsim.data.source import Matrix
from fedsim.measure import baselines
from fedsim.measure.evaluator import Evaluator
from fedsim.problems.glm import LogisticRegression, SoftmaxRegression
from fedsim.simulation import side_by_side
from fedsim.simulation.host import SiloHost
from fedsim.simulation.sweeps import run, run_cells
from fedsim.simulation.trial import read
from server.participation import admitted_rounds, schedule
from silos.front import served
from silos.vault import batches, entropy, gate, records, releases, sums

ROUNDS = 300
WORKLOADS = {
    "logistic, 25 x 1,238 x 50, full batch, float64": {"silos": 25, "records": 1238, "features": 50},
    "softmax, 784 x 10, 25 silos, 32 of 320 records, float32": {
        "silos": 25,
        "records": 320,
        "features": 784,
        "classes": 10,
        "batch": {"sampler": "subsample", "fraction": 0.1},
        "dtype": "float32",
    },
}
PARTS: dict[str, list[tuple[Any, str]]] = {
    "scores x W": [(sums.Block, "scores")],
    "weighted sum of records": [(records, "weighted_sum")],
    "slope of the loss, clip, finite terms": [
        (LogisticRegression, "coefficient"),
        (SoftmaxRegression, "coefficient"),
        (records, "bounded"),
    ],
    "batches drawn": [(batches, "_draw"), (batches.RoundBatches, "next")],
    "records gathered": [(records, "_gather")],
    "noise drawn": [(entropy.Noise, "round"), (entropy.RoundNoise, "next")],
    "noise added, divided by K": [(releases.RoundReleases, "_release")],
    "plan and limits checked": [
        (gate.OpenRound, "_match"),
        (gate.OpenRound, "_checked"),
        (gate.Gate, "check_point"),
        (gate.Gate, "_check_members"),
    ],
    "digest of the broadcast": [(gate, "digests")],
    "ledger, memory, copies": [(gate.Gate, "asked"), (gate.OpenRound, "keep")],
    "server's sum": [(server.aggregate, "combine")],
}

SWEEP_PARTS: dict[str, list[tuple[Any, str]]] = {
    "records read": [(ImageSource, "design"), (Matrix, "design")],
    "principal components fitted": [
        (fitted, "training_moments"),
        (fitted, "principal_components"),
    ],
    "components applied, values checked": [(federation, "prepare")],
    "digests of records": [(federation, "_digest")],
    "scenarios checked and resolved": [(run_cells, "_resolved")],
    "silos admitted, noise keyed": [(side_by_side, "_gate")],
    "rounds": [(served.Served, "answer")],
    "optima of baselines": [(baselines, "fit")],
    "metrics": [(Evaluator, "__call__"), (run_cells, "train_loss")],
    "results written": [(run, "write")],
}
MNIST = {
    "trials": 10,
    "data.transform": None,
    "data.pca": 50,
    "data.preprocessing_cost": "ignored",
    "sweep.grid.algorithm": [
        {
            "label": "minibatch SGD",
            "name": "noisy_minibatch_sgd",
            "num_rounds": 35,
            "clip_norm": 3.0,
            "tune": {"step_size": [0.1, 0.2, 0.4, 0.7, 1, 1.5, 2, 3, 5, 8]},
        }
    ],
    "sweep.grid.participation": ["all"],
}
SCENARIOS = Path(__file__).parents[1] / "scenarios"


class Clock:
    """Time of every part without that of the parts within it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._within = [0.0]

    def wrap(self, part: str, owner: Any, name: str) -> None:
        """Count the function's time for the part."""
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            self._within.append(0.0)
            try:
                return function(*arguments, **named)
            finally:
                whole = time.perf_counter() - start
                self.spent[part] += whole - self._within.pop()
                self._within[-1] += whole

        setattr(owner, name, timed)


def profile(clock: Clock, point: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a round by part, the median of each."""
    resolved = scenario({**point, "rounds": ROUNDS})
    host = SiloHost(resolved, 0, read(resolved, 0))
    rounds = schedule(len(resolved.names), None, resolved.trace.holds, 0, 0)
    admitted = host.open("private", admitted_rounds(None, rounds, len(resolved.names)))
    public = resolved.public([silo.noise_multiplier for silo in admitted])
    each: dict[str, list[float]] = defaultdict(list)
    algorithm, link, aggregate = resolved.algorithm, Link(host), server.aggregate.weighted
    start = time.perf_counter()
    for _ in server.loop.run(algorithm, resolved.problem, public, 0, link, rounds, aggregate):
        whole = time.perf_counter() - start
        parts = {part: clock.spent[part] for part in PARTS}
        for part, seconds in {
            **parts,
            "all": whole,
            "server's step and the rest": whole - sum(parts.values()),
        }.items():
            each[part].append(seconds * 1e3)
        clock.spent.clear()
        start = time.perf_counter()
    return {part: median(times[2:]) for part, times in each.items()}


def wrapped(parts: Mapping[str, Sequence[tuple[Any, str]]]) -> Clock:
    """A clock of these functions, which stay wrapped."""
    clock = Clock()
    for part, functions in parts.items():
        for owner, name in functions:
            clock.wrap(part, owner, name)
    return clock


def profile_sweep() -> tuple[str, dict[str, float]]:
    """The sweep's name, and its seconds by part."""
    clock, name, changes = wrapped(SWEEP_PARTS), "digits_sweep", {"runtime": "inprocess"}
    if "FEDSIM_DATA" in os.environ:
        name, changes = "thesis/mnist_logistic", {**MNIST, **changes}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        fedsim.sweep(SCENARIOS / f"{name}.yaml", changes, out=Path(folder) / "sweep")
        whole = time.perf_counter() - start
    return name, {**clock.spent, "the rest": whole - sum(clock.spent.values()), "all": whole}


def rows(parts: Sequence[Mapping[str, float]], digits: int) -> list[list[str]]:
    """A row a part, the longest of the first column first."""
    order = sorted((part for part in parts[0] if part != "all"), key=lambda part: -parts[0][part])
    return [
        [part, *(f"{own[part]:.{digits}f} ({own[part] / own['all']:.0%})" for own in parts)]
        for part in [*order, "all"]
    ]


def main() -> None:
    """Profile both workloads and a sweep, and write the tables."""
    torch.set_num_threads(1)
    name, sweep = profile_sweep()
    clock = wrapped(PARTS)
    found = [profile(clock, point) for point in WORKLOADS.values()]
    tables = (
        table(("part, ms a round", *WORKLOADS), rows(found, 3)),
        table(("part, seconds of a sweep", f"`{name}`"), rows([sweep], 1)),
    )
    text = "\n\n".join([where(), *tables])
    write("profile", text)
    print(text)


if __name__ == "__main__":
    main()
