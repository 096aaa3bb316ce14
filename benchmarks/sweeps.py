"""The shipped sweeps, timed as a person runs them: `make sweeps` writes docs/performance.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from document import table, where, write

from fedsim.report.record import CellResult, CellSource, Record

ROOT = Path(__file__).parents[1]
SWEEPS = ("digits_sweep", "full_protocol")
THESIS = "thesis/mnist_logistic"  # where its files are at hand


def measure(name: str, folder: Path) -> tuple[float, dict[str, Any]]:
    """Wall seconds, start-up and pages included, and the sweep's summary."""
    command = [sys.executable, "-m", "fedsim.cli.main", "sweep", ROOT / "scenarios" / f"{name}.yaml"]
    start = time.perf_counter()
    subprocess.run([*command, "--out", folder], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start, json.loads((folder / "summary.json").read_text())


def by_algorithm(cells: Path) -> list[list[str]]:
    """Where the workers' time went: runs and seconds of each algorithm."""
    spent: dict[str, list[float]] = defaultdict(list)
    with Record.open(cells, print) as record:
        for source, result in zip(record.rows(CellSource), record.rows(CellResult), strict=True):
            spent[source.scenario["algorithm"]["name"]].append(result.seconds)
    ordered = sorted(spent.items(), key=lambda item: -sum(item[1]))
    return [[name, str(len(own)), f"{sum(own):.1f}", f"{sum(own) / len(own):.3f}"] for name, own in ordered]


def main() -> None:
    """Run them and write the tables."""
    walls, parts = [], ""
    for name in (*SWEEPS, *([THESIS] if "FEDSIM_DATA" in os.environ else [])):
        with tempfile.TemporaryDirectory() as folder:
            seconds, summary = measure(name, Path(folder) / name)
            walls.append([f"`{name}.yaml`", str(summary["runs"]["made"]), f"{seconds:.1f}"])
            if name == "full_protocol":
                columns = ("algorithm in `full_protocol.yaml`", "runs", "worker seconds", "seconds a run")
                parts = table(columns, by_algorithm(Path(folder) / name / "record.sqlite"))
    text = f"{where()}\n\n{table(('sweep', 'runs', 'wall seconds'), walls)}\n\n{parts}"
    write("sweeps", text)
    print(text)


if __name__ == "__main__":
    main()
