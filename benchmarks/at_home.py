"""What a model made at home is worth to a silo: `at_home.py OUT [TRIALS]` writes a table.

The mean over silos of log loss on their own test records: of each silo alone, of the model of the federation
by `auto`, and at home; at home over the lesser of the two; and how many silos joining pays for and costs,
without the fit at home and with it. Full batches, replace-one, delta 1 / n^2. Tables: heart disease in its
four hospitals and in sixteen clinics, and ten synthetic silos of 140 records whose coefficients differ by h
times their size.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import fedsim

EPSILONS = (0.5, 1.0, 3.0, 8.0)


def synthetic(h: float, silos: int = 10, each: int = 140, features: int = 10) -> fedsim.Arrays:
    """Records in [-1, 1]^features of two classes by logistic models that differ from silo to silo."""
    rng = np.random.default_rng(0)
    x, silo = rng.uniform(-1, 1, (silos * each, features)), np.repeat(np.arange(silos), each)
    shared = rng.normal(0, 1.5, features)
    own = shared + rng.normal(0, 1.5 * h, (silos, features))
    y = rng.random(len(x)) < 1 / (1 + np.exp(-(x * own[silo]).sum(1)))
    return fedsim.Arrays(x, y.astype(int), silo, ranges=(-1.0, 1.0), test_fraction=0.3)


def runs(epsilon: float, trials: int) -> dict[str, fedsim.Run]:
    """A run of each table."""
    asked: dict[str, Any] = {
        "report.at_home": True,
        "report.metric": "log_loss",
        "privacy.epsilon": epsilon,
        "trials": trials,
    }
    asked |= {"privacy.delta": "1/n^2", "report.nonprivate_baseline": False}
    four = {"partition": {"name": "natural_id"}, "data.silo_column": "hospital"}
    made = {
        "heart, 4 hospitals": fedsim.simulate("quickstart", overrides=asked | four, progress=False),
        "heart, 16 clinics": fedsim.simulate("quickstart", overrides=asked, progress=False),
    }
    for h in (0.0, 0.5):
        data = synthetic(h)
        made[f"synthetic, h = {h}"] = fedsim.simulate(
            "quickstart", overrides=asked, data=data, progress=False
        )
    return made


def main(out: Path, trials: int = 5) -> None:
    """Write the table."""
    head = "| table | epsilon | alone | federation | at home | home / min | pays, costs without |"
    lines = [f"{head} pays, costs at home |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for epsilon in EPSILONS:
        for name, run in runs(epsilon, trials).items():
            part = run.summary.joining
            ratio = part.at_home / min(part.alone, part.joined)
            numbers = f"{part.alone:.3f} | {part.joined:.3f} | {part.at_home:.3f} | {ratio:.3f}"
            counts = " | ".join("{}, {}".format(*part.counts(home)) for home in (False, True))
            lines.append(f"| {name} | {epsilon:g} | {numbers} | {counts} |")
            print(lines[-1], flush=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
