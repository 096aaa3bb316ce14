"""Seconds a round through Flower: a SuperLink with TLS, three nodes with keys, frames of several sizes.

    python benchmarks/flower_rounds.py [--silos 3] [--rounds 20]

Stand-ins for daemons turn each frame round, so that what is timed is the way there and back alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.flower import Federation, echo, federation, short_folder

SIZES = (1_000, 1_000_000, 20_000_000)


def measure(flower: Federation, size: int, rounds: int) -> list[float]:
    """Seconds of each round but the first, which loads code."""
    out = flower.folder / f"{size}.json"
    settings = {
        "papers": str(flower.papers),
        "silos": ",".join(flower.silos),
        "out": str(out),
        "sizes": ",".join([str(size)] * (rounds + 1)),
        "deadline": 120.0,
    }
    with flower.control() as control:
        run = control.start(settings, "support.flower_app:app")
        while not (status := control.status(run)).over:
            time.sleep(1)
    if status.word != "completed":
        raise SystemExit(f"{status.word}: {status.details}")
    found = json.loads(out.read_text())
    if any(each["good"] != sorted(flower.silos) for each in found):
        raise SystemExit("a frame was lost or changed")
    return [each["seconds"] for each in found[1:]]


def memory(pid: int) -> str:
    """Resident memory of a process."""
    return f"{psutil.Process(pid).memory_info().rss / 1e6:.0f} MB"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    names = [f"silo-{i + 1}" for i in range(asked.silos)]
    print(f"{asked.silos} silos, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    with short_folder() as folder, federation(folder, names) as flower, ExitStack() as stack:
        for name in names:
            stack.enter_context(echo(flower.socket(name)))
        flower.wait_online()
        for size in SIZES:
            seconds = measure(flower, size, asked.rounds)
            middle = statistics.median(seconds)
            print(f"{size:>10,} bytes: {middle:.2f} s a round ({min(seconds):.2f} - {max(seconds):.2f})")
        node = next(iter(flower.nodes.values()))
        print(f"memory: node {memory(node.process.pid)}, SuperLink {memory(flower.superlink.pid)}")


if __name__ == "__main__":
    main()
