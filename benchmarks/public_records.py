"""What public records are worth, by epsilon and number of silos: `python -m benchmarks.public_records`.

Sweeps scenarios/thesis/semi_dp_regression.yaml on fifteen data sets, a sweep each, and writes a part of
docs/public-records.md and one of docs/results.md. A trial is a data set: its records, public ones too, and
its noise are its own, so that intervals speak of other data of this law. Each method has one step size for
each epsilon and number of silos: the best on five data sets, none of them reported. `--write` runs nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from math import inf
from pathlib import Path

import numpy as np

from benchmarks.document import table, write
from benchmarks.thesis import runs, tables
from benchmarks.thesis.trials import ByTrial, Curve, paired
from benchmarks.thesis.verdicts import Claim, Verdict, judge
from fedsim.report.arrow import cells_of
from fedsim.report.sweep_summary import SweepSummary, read_only

SCENARIO = runs.SCENARIOS / "semi_dp_regression.yaml"
REPORTED, TUNED = range(10), range(10, 15)  # data.seed of data sets
PAGES = runs.ROOT / "docs" / "public-records.md", runs.ROOT / "docs" / "results.md"
DIVERGED = 10.0  # about the error of predicting 0
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
    errors = defaultdict[tuple[int, str, float], dict[float, dict[int, float]]](lambda: defaultdict(dict))
    alone = dict[int, float]()
    for seed in (*REPORTED, *TUNED):
        for row in cells_of(place / str(seed)).to_pylist():
            key = row["partition.num_partitions"], row["problem"], row["privacy.epsilon"]
            if row["loss"] is not None:  # else it diverged
                errors[key][row["algorithm.step_size"]][seed] = 2 * row["loss"]
        groups = read_only(SweepSummary, place / str(seed)).baselines
        losses = [one.loss for group in groups for one in group.baselines if one.name == "throw_away"]
        alone[seed] = 2 * float(np.mean([loss for loss in losses if loss is not None]))
    found: dict[tuple[int, str], Curve] = {}
    for (silos, name, epsilon), steps in errors.items():
        best = min(steps.values(), key=lambda own: np.mean([own.get(seed, inf) for seed in TUNED]))
        curve = found.setdefault((silos, name), Curve(f"{silos} silos", name, True))
        curve.at[epsilon] = {seed: best[seed] for seed in REPORTED if seed in best}
        level = found.setdefault((silos, ALONE), Curve(f"{silos} silos", ALONE, True))
        level.at[None] = {seed: alone[seed] for seed in REPORTED}
    return found


def measured(found: dict[tuple[int, str], Curve]) -> str:
    """A row for each method and number of silos, a column for each epsilon."""
    epsilons = sorted({e for curve in found.values() for e in curve.at if e is not None})
    rows = []
    for silos in sorted({silos for silos, _ in found}):
        for name, title in TITLES.items():
            at = found[silos, name].at
            cells = [_cell(at.get(epsilon, at.get(None, {}))) for epsilon in epsilons]
            rows.append([f"{silos} silo{'s' * (silos > 1)}, {title}", *cells])
    return table(["mean squared error", *(f"{e:g}" for e in epsilons)], rows)


def _cell(own: ByTrial) -> str:
    if len(own) < len(REPORTED) or max(own.values()) > DIVERGED:
        return "diverges"
    return tables.with_interval(own, False)


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
    for seed in () if asked.write else (*REPORTED, *TUNED):
        sweep(asked.out, seed, asked.set)
    found = curves(asked.out)
    made = f"Mean of {len(REPORTED)} data sets and half its 95 % interval, by epsilon"
    shown = f"{measured(found)}\n\n{made}; made by `python -m benchmarks.public_records`."
    write("semi-DP", shown, PAGES[0])
    write(SCENARIO.stem, f"{shown}\n\n{tables.verdicts(claims(found))}", PAGES[1])


if __name__ == "__main__":
    main()
