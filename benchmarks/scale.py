"""Many silos: time and memory of whole commands, each in a process of its own. Part of `make bench`."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

BASE = {
    "data": {"name": "synthetic", "features": 10, "test_fraction": 0.2},
    "problem": "logistic_regression",
    "runtime": "inprocess",
}


def scenario(silos: int, records: int, rounds: int, batch: object, epsilon: object) -> dict[str, object]:
    """A synthetic federation; epsilon and n may differ from silo to silo."""
    sizes = [records + (i * 7919) % (records if silos == 1000 else 1) for i in range(silos)]
    return BASE | {
        "name": "scale",
        "data": BASE["data"] | {"rows": sum(sizes)},
        "partition": {"name": "size", "partition_sizes": sizes},
        "algorithm": {
            "name": "noisy_minibatch_sgd",
            "num_rounds": rounds,
            "step_size": 1.0,
            "clip_norm": 1.0,
            "batch": batch,
        },
        "privacy": {"epsilon": epsilon},
        "report": {"nonprivate_twin": False},
    }


def measure(label: str, command: list[str], tree: dict[str, object]) -> None:
    """Run one command on one scenario and print its wall time and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        extra = ["--out", f"{folder}/run"] if command == ["simulate"] else []
        start = time.perf_counter()
        program = [sys.executable, "-m", "fedsim.cli.main", *command, str(path), *extra]
        subprocess.run(program, check=True, capture_output=True)
        seconds = time.perf_counter() - start
    print(f"{label}: {seconds:.1f} s")


def main() -> None:
    """`privacy` for 1,000 distinct silos with each sampler, then 10,000 silos for 20 rounds."""
    epsilons = [0.5 + 7.5 * i / 999 for i in range(1000)]
    for sampler, fraction in (
        ("full", None),
        ("fresh", 0.02),
        ("subsample", 0.1),
        ("with_replacement", 0.1),
        ("poisson", 0.1),
    ):
        batch = {"sampler": sampler} | ({"fraction": fraction} if fraction else {})
        tree = scenario(1000, 200, 35, batch, epsilons)
        measure(f"privacy, 1,000 silos, {sampler}", ["privacy"], tree)
    measure(
        "simulate, 10,000 silos x 25 records, 20 rounds", ["simulate"], scenario(10_000, 25, 20, "full", 1)
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"peak memory of the largest process: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
