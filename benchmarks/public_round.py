"""Rounds with 10,000 public records beside rounds without: `public_round.py OUT`; writes JSON.

Minibatch SGD of logistic regression, 20 features, full batches with noise, in one process, by the server.
1,000 silos of 200 records, and 5; both take turns, round by round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fedsim.data.federation import load
from fedsim.report.outcome import variants
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import SiloHost
from fedsim.simulation.trial import rounds_of
from server.participation import schedule

ROUNDS, RECORDS, PUBLIC = 60, 200, 10_000


def rounds(silos: int, weight: float) -> Iterator[Any]:
    """The rounds of a run; with a weight of 0 it has no public records."""
    data = {"name": "synthetic", "rows": silos * RECORDS * 5 // 4, "features": 20}
    public = {"public": {**data, "rows": PUBLIC, "draw": 1}} if weight else {}
    problem = {"name": "logistic_regression", **({"public": {"weight": weight}} if weight else {})}
    tree = {
        "name": "public records",
        "data": data,
        "partition": {"name": "iid", "num_partitions": silos},
        "problem": problem,
        "algorithm": {
            "name": "noisy_minibatch_sgd",
            "num_rounds": ROUNDS,
            "step_size": 0.5,
            "clip_norm": 1.0,
        },
        "privacy": {"epsilon": 3},
        "runtime": "inprocess",
        "report": {"clipping": False, "excess_risk": False},
    }
    resolved = resolve(parse({**tree, **public}))
    scenario = resolved.scenario
    federation = load(scenario.data, scenario.partition, scenario.seed, 0)
    host, order = SiloHost(resolved, 0, federation), schedule(silos, None, resolved.trace.holds, 0, 0)
    yield from rounds_of(resolved, 0, host, federation.digest, variants(resolved)[0], order)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found: dict[str, list[list[float]]] = {}
    for silos in (5, 1000):
        both, times = [rounds(silos, 0.5), rounds(silos, 0.0)], [[], []]
        for _ in range(ROUNDS):
            for one, took in zip(both, times, strict=True):
                start = time.process_time()
                next(one)
                took.append(1e3 * (time.process_time() - start))
        found[f"{silos:,} silos"] = [each[2:] for each in times]
    Path(sys.argv[1]).write_text(json.dumps(found))
