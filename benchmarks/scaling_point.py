"""One federation, run for some rounds in a process of its own: `scaling_point.py JSON OUT`; writes JSON.

Clipping and noise on, full batch, logistic regression, made-up records. In one process a round is timed by
itself, and the first one, which builds the silos' generators, is left out; on Ray it is the mean of all.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedsim.protocol.limits import LIMITS
from fedsim.protocol.links import Answered
from fedsim.report.outcome import Results
from fedsim.report.record import Measurement
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import SiloHost, terms
from fedsim.simulation.trial import read
from server.aggregate import weighted
from server.loop import run
from server.participation import admitted_rounds, schedule
from silos.vault.admission import admit

TEST = 0.2  # share of the records made that are for testing


def scenario(point: Mapping[str, Any]) -> Resolved:
    """Silos of equal size; `records` are those trained on, and one of `features` is the intercept."""
    silos, classes = point["silos"], point.get("classes", 2)
    runtime = {"name": "ray", "silo_hosts": point["hosts"]} if "hosts" in point else {"name": "inprocess"}
    tree = {
        "name": "scaling",
        "data": {
            "name": "synthetic",
            "features": point["features"] - 1,
            "rows": round(silos * point["records"] / (1 - TEST)),
            "test_fraction": TEST,
            **({"link": "softmax", "classes": classes} if classes > 2 else {}),
        },
        "partition": {"name": "iid", "num_partitions": silos},
        "problem": "softmax_regression" if classes > 2 else "logistic_regression",
        "algorithm": {
            "name": "noisy_minibatch_sgd",
            "num_rounds": point["rounds"],
            "step_size": 1.0,
            "clip_norm": 1.0,
            "batch": point.get("batch", "full"),
        },
        **({"participation": {"name": "uniform", "num_silos": point["active"]}} if "active" in point else {}),
        "privacy": {"epsilon": point.get("epsilon", 1.0)},
        "runtime": {**runtime, "dtype": point.get("dtype", "float64")},
        "report": {"nonprivate_baseline": False, "evaluate_every": point["rounds"]},
    }
    return resolve(parse(tree))


class Link:
    """The server loop's way to the silos of this process."""

    def __init__(self, host: SiloHost) -> None:
        self._host = host

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        """The members' messages."""
        return Answered(members, self._host.answer("private", round_index, broadcast, members))


def held() -> float:
    """Most memory this process has held, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(point: Mapping[str, Any]) -> dict[str, float]:
    """Seconds to the first round, rounds a second after it, and memory above that of the imports."""
    imports, start = held(), time.perf_counter()
    resolved = scenario(point)
    host = SiloHost(resolved, 0, read(resolved, 0))
    rounds = schedule(len(resolved.names), resolved.active, resolved.trace.holds, 0, 0)
    admitted = host.open("private", admitted_rounds(resolved.active, rounds, len(resolved.names)))
    public = resolved.public([silo.noise_multiplier for silo in admitted])
    setup = time.perf_counter() - start
    rounds_run = run(resolved.algorithm, resolved.problem, public, 0, Link(host), rounds, weighted)
    ends = [time.perf_counter() for _ in rounds_run]  # before each round, and after the last
    each = [after - before for before, after in pairwise(ends[1:])]
    return {"setup": setup, "rounds_per_second": 1 / median(each), "memory_mib": held() - imports}


def on_ray(point: Mapping[str, Any]) -> dict[str, float]:
    """Rounds a second through Ray's silo hosts."""
    from fedsim.simulation.on_ray import execute

    seen: list[Measurement] = []
    execute(scenario(point), Results(), seen.append)
    return {"rounds_per_second": point["rounds"] / seen[-1].seconds}


def admission(point: Mapping[str, Any]) -> dict[str, float]:
    """Seconds to price a plan and calibrate the noise of silos whose budgets all differ."""
    silos = point["silos"]
    resolved = scenario({**point, "epsilon": [0.5 + 7.5 * i / silos for i in range(silos)]})
    own = terms(resolved, resolved.names, [range(point["rounds"])] * silos, resolved.mechanism)
    plan, start = resolved.trace.plan, time.perf_counter()
    admit(plan, own, resolved.mechanism, LIMITS)
    return {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = json.loads(sys.argv[1])
    kinds = {"process": in_process, "ray": on_ray, "admission": admission}
    Path(sys.argv[2]).write_text(json.dumps(kinds[asked.pop("kind")](asked)), encoding="utf-8")
