"""Where a round's time goes, by part: `make profile` writes the table into docs/performance.md.

Functions are wrapped by a clock that takes away what wrapped functions within them take; the wrapping itself
adds a few microseconds a part. Median over rounds, one process, one thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from statistics import median
from typing import Any

import torch
from document import table, where, write
from scaling_point import Link, scenario

import server.aggregate
import server.loop
from fedsim.problems.glm import GeneralisedLinear, LogisticRegression, SoftmaxRegression
from fedsim.simulation.host import SiloHost
from fedsim.simulation.trial import read
from server.participation import admitted_rounds, schedule
from silos import batches, entropy, gate, records, releases

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
    "scores x W": [(GeneralisedLinear, "scores")],
    "weighted sum of records": [(records, "weighted_sum")],
    "slope of the loss, clip, finite terms": [
        (LogisticRegression, "coefficient"),
        (SoftmaxRegression, "coefficient"),
        (records, "bounded"),
        (releases.RoundReleases, "_clipped_sum"),
    ],
    "batches drawn": [(batches, "_draw"), (batches.RoundBatches, "next")],
    "records gathered": [(records, "_gather")],
    "noise drawn": [(entropy.Noise, "round"), (entropy.RoundNoise, "next")],
    "noise added, divided by K": [(releases.RoundReleases, "_release")],
    "plan and limits checked": [
        (gate._RoundAsker, "_match"),
        (gate._RoundAsker, "_checked"),
        (gate.Gate, "check_point"),
        (gate.Gate, "_check_members"),
    ],
    "digest of the broadcast": [(gate, "digests")],
    "ledger, memory, copies": [(gate.Gate, "answer"), (gate.Gate, "_reply")],
    "server's sum": [(server.aggregate, "combine")],
}


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


def main() -> None:
    """Profile both workloads and write the table."""
    torch.set_num_threads(1)
    clock = Clock()
    for part, functions in PARTS.items():
        for owner, name in functions:
            clock.wrap(part, owner, name)
    found = [profile(clock, point) for point in WORKLOADS.values()]
    order = sorted((part for part in found[0] if part != "all"), key=lambda part: -found[0][part])
    rows = [
        [part, *(f"{own[part]:.3f} ({own[part] / own['all']:.0%})" for own in found)]
        for part in [*order, "all"]
    ]
    text = f"{where()}\n\n{table(('part, ms a round', *WORKLOADS), rows)}"
    write("profile", text)
    print(text)


if __name__ == "__main__":
    main()
