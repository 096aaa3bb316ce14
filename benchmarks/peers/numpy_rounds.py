"""The workload as published scripts run it, written anew: loops over silos and records; writes JSON."""

from __future__ import annotations

import json
import sys
import time

STARTED = time.perf_counter()

import numpy as np
from workload import CLIP, FEATURES, RECORDS, SIGMA, SILOS, STEP, make_silo

ROUNDS = 3


def main() -> None:
    silos = [make_silo(i) for i in range(SILOS)]
    rng, w = np.random.default_rng(0), np.zeros(FEATURES)
    start = time.perf_counter()
    for _ in range(ROUNDS):
        messages = []
        for x, y in silos:
            total = np.zeros(FEATURES)
            for record, target in zip(x, y, strict=True):
                gradient = (1 / (1 + np.exp(-record @ w)) - target) * record
                total += gradient * min(1.0, CLIP / max(np.linalg.norm(gradient), 1e-12))
            messages.append(total / RECORDS + SIGMA * rng.standard_normal(FEATURES))
        w = w - STEP * np.mean(messages, axis=0)
    milliseconds = (time.perf_counter() - start) / ROUNDS * 1e3
    with open(sys.argv[1], "w") as file:
        json.dump({"milliseconds": milliseconds, "startup": start - STARTED}, file)


if __name__ == "__main__":
    main()
