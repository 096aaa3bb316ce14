"""What public records are worth, by epsilon and number of silos: `python -m benchmarks.public_records`.

Sweeps scenarios/thesis/semi_dp_regression.yaml on ten data sets, a sweep each, and writes a part of
docs/public-records.md and one of docs/results.md. A trial is a data set: its records, public ones too, and
its noise are its own, so that intervals speak of other data of this law. `--write` runs nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.document import table, write
from benchmarks.thesis import runs, tables
from benchmarks.thesis.trials import Curve, paired
from benchmarks.thesis.verdicts import Claim, Verdict, judge
from fedsim.report.sweep_summary import read_sweep

SCENARIO, DATA_SETS = runs.SCENARIOS / "semi_dp_regression.yaml", 10
PAGES = runs.ROOT / "docs" / "public-records.md", runs.ROOT / "docs" / "results.md"
ALONE, NOISED = "public records alone", "all noised"
TITLES = {
    ALONE: ALONE,
    NOISED: "all records noised, started there",
    "preconditioner": "preconditioner",
    "weight": "weight n_pub / n",
    "optimal weight": "weight optimal",
    "weight and preconditioner": "weight n_pub / n and preconditioner",
}


def sweep(place: Path, seed: int, overrides: Sequence[str]) -> None:
    """One data set's sweep, from the cells that are there."""
    sets = [f"data.seed={seed}", f"public.seed={seed}", "runtime=inprocess", *overrides]
    words = [word for one in sets for word in ("--set", one)]
    command = [
        sys.executable,
        "-m",
        "fedsim",
        "sweep",
        str(SCENARIO),
        *words,
        "--out",
        str(place / str(seed)),
    ]
    with (place / f"{seed}.log").open("w", encoding="utf-8") as log:
        subprocess.run(command, cwd=runs.ROOT, stdout=log, stderr=log, check=True)


def curves(place: Path) -> dict[tuple[int, str], Curve]:
    """Mean squared errors by number of silos and method; those of public records alone have no epsilon."""
    found: dict[tuple[int, str], Curve] = {}
    for seed in range(DATA_SETS):
        for row in pq.read_table(place / str(seed) / "cells.parquet").to_pylist():
            silos, name = row["partition.num_partitions"], row["problem"]
            curve = found.setdefault((silos, name), Curve(f"{silos} silos", name, True))
            if row["loss"] is not None:
                curve.at.setdefault(row["privacy.epsilon"], {})[seed] = 2 * row["loss"]
        for group in read_sweep(place / str(seed)).baselines:
            for one in (each for each in group.baselines if each.name == "throw_away" and each.loss):
                for silos in {silos for silos, _ in found}:
                    curve = found.setdefault((silos, ALONE), Curve(f"{silos} silos", ALONE, True))
                    curve.at.setdefault(None, {})[seed] = 2 * one.loss
    return found


def measured(found: dict[tuple[int, str], Curve]) -> str:
    """A row for each method and number of silos, a column for each epsilon."""
    epsilons = sorted({e for curve in found.values() for e in curve.at if e is not None})
    rows = []
    for silos in sorted({silos for silos, _ in found}):
        for name, title in TITLES.items():
            at = found[silos, name].at
            cells = [
                tables.with_interval(own, False) if (own := at.get(e, at.get(None))) else "-"
                for e in epsilons
            ]
            rows.append([f"{silos} silo{'s' * (silos > 1)}, {title}", *cells])
    return table(["mean squared error", *(f"{e:g}" for e in epsilons)], rows)


def claims(found: dict[tuple[int, str], Curve]) -> list[tuple[Claim, Verdict]]:
    """That a method has a smaller loss than others at every epsilon but 0.1."""
    rows = []
    for silos in sorted({silos for silos, _ in found}):
        for less in ("weight", "optimal weight", "weight and preconditioner"):
            others = [name for name in (ALONE, NOISED, "preconditioner") if name != less]
            own, differences = found[silos, less].at, dict[str, np.ndarray]()
            for epsilon in sorted(e for e in own if e is not None and e != 0.1):
                for name in others:
                    at = found[silos, name].at
                    one, other = paired(own[epsilon], at.get(epsilon, at.get(None, {})))
                    differences[f"against {name}, epsilon {epsilon:g}"] = one - other
            who = "one silo" if silos == 1 else f"{silos} silos"
            text = f"Semi-DP has the smallest test loss at every epsilon but 0.1 ({who}; {TITLES[less]})"
            rows.append((Claim(text=text, scenario=SCENARIO.stem, less=less), judge(differences)))
    return rows


def main() -> None:
    """Run what is not there, and write both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="run nothing: write from what is there")
    parser.add_argument("--out", type=Path, default=runs.ROOT / "runs" / "public_records")
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="over the scenario's own")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for seed in () if asked.write else range(DATA_SETS):
        sweep(asked.out, seed, asked.set)
    found = curves(asked.out)
    shown = f"{measured(found)}\n\nMean of {DATA_SETS} data sets and half its 95 % interval, by epsilon."
    write("semi-DP", shown, PAGES[0])
    write(SCENARIO.stem, f"{shown}\n\n{tables.verdicts(claims(found))}", PAGES[1])


if __name__ == "__main__":
    main()
