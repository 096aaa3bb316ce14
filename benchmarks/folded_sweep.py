"""A sweep's 60 runs side by side, beside as many bare loops: `folded_sweep.py OUT`; writes JSON.

The runs differ in epsilon and step size, on 25 silos x 1,238 records x 50 features. Milliseconds of one round
of one run, taking turns: [fedsim's], [the bare loop's], which runs by itself (`round_cost.bare`).
"""

from __future__ import annotations

import json
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from round_cost import FEATURES, RECORDS, ROUNDS, SILOS, bare, make_records
from scaling_point import scenario

from fedsim.scenario.resolve import resolve
from fedsim.simulation.side_by_side import run_fold
from fedsim.simulation.trial import read

EPSILONS, STEPS = (0.25, 0.5, 1, 2, 4, 8), (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3)
FOLDED_ROUNDS, TURNS = 50, 3


def main() -> None:
    """Run both in turn."""
    torch.set_num_threads(1)
    point = {"silos": SILOS, "records": RECORDS, "features": FEATURES, "rounds": FOLDED_ROUNDS}
    first = scenario(point).scenario
    configs = [
        resolve(
            first.model_copy(
                update={
                    "algorithm": first.algorithm.model_copy(update={"step_size": step}),
                    "privacy": first.privacy.model_copy(update={"epsilon": float(epsilon)}),
                }
            )
        )
        for epsilon, step in product(EPSILONS, STEPS)
    ]
    trials = {0: read(configs[0], 0)}
    loop: Any = bare(make_records(np.random.default_rng(0)), torch.float64)
    times: list[list[float]] = [[], []]
    for _ in range(TURNS):
        start = time.perf_counter()
        run_fold(configs, trials)
        times[0].append((time.perf_counter() - start) * 1e3 / FOLDED_ROUNDS / len(configs))
        loop()
        times[1].append(loop.seconds * 1e3 / ROUNDS)
    Path(sys.argv[1]).write_text(json.dumps({"milliseconds": times}), encoding="utf-8")


if __name__ == "__main__":
    main()
