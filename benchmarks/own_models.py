"""Own models on the School data set, which is not shipped: `own_models.py school.mat OUT [EPSILON...]`.

Each trial divides every school's pupils 70 to 30. Settings are chosen, trial by trial, on pupils that are put
aside of the 70 (again 30 in 100), and run once with all 70; the other 30 only test. Numbers are the mean over
schools of the squared error, and where the worst tenth of schools begins. Replace-one, delta 1 / n_i^2.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

import fedsim
from fedsim.data.arrays import Arrays
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import read

TRIALS = 5
LOW, HIGH = np.zeros(27), np.ones(27)
HIGH[3:5] = 100  # per cent of the school's pupils
NUMBERS = HIGH > 1
FIXED = {"name": "mean_regularised", "averaging": 0.9}
STEPS = {"num_rounds": (40, 100), "step_size": (1, 2), "clip_norm": (0.1, 0.2)}
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "own": STEPS | {"pull": (0.3, 1), "own_step_size": (0.06, 0.15)},
    "one": STEPS | {"pull": (0,), "own_step_size": (0,)},
    "alone": STEPS | {"step_size": (1e-9,), "pull": (0,), "own_step_size": (0.1, 0.3)},
    "textbook": STEPS | {"step_size": (0.3, 1), "pull": (0.3, 3)},
}


def schools(file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (n, 27), shares on [-1, 1] and indicators 0 or 1; scores on [0, 1]; and whose each is."""
    held = loadmat(file)
    parts, scores = held["X"][0], held["Y"][0]
    x = (np.vstack(parts)[:, :27].astype(float) - LOW) / (HIGH - LOW)
    silo = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return np.where(NUMBERS, 2 * x - 1, x), (np.vstack(scores)[:, 0].astype(float) - 1) / 69, silo


def scenario(algorithm: dict[str, Any], epsilon: float, seed: int, **report: bool) -> dict[str, Any]:
    """One trial; without a step of its own for own parts the form is the textbook's."""
    return {
        "name": "School",
        "seed": seed,
        "partition": "natural_id",
        "problem": {"name": "linear_regression", "silo_weights": "size"},
        "algorithm": FIXED | algorithm | ({"form": "textbook"} if "own_step_size" not in algorithm else {}),
        "privacy": {"epsilon": epsilon},
        "runtime": "inprocess",
        "report": {"own_models": True, "metric": "loss", "clipping": False, "nonprivate_baseline": False}
        | {"baselines": False, **report},
    }


def errors(data: Arrays, tree: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Mean over schools and worst tenth of the squared error, twice the loss, by kind of model."""
    part = fedsim.simulate(tree, data=data).summary.own_models
    return {one.name: (2 * one.mean, 2 * one.worst_tenth) for one in part.models}


def main(file: Path, out: Path, epsilons: list[float]) -> None:
    """Write a row for each epsilon, trial and kind of model; print means."""
    x, y, silo = schools(file)
    settings = {"scaling": "none", "test_fraction": 0.3}
    everyone = Arrays(x, y, silo, **settings)
    found: list[dict[str, Any]] = []
    for epsilon, seed in itertools.product(epsilons, range(TRIALS)):
        base = scenario(
            dict(FIXED, num_rounds=1, step_size=1, clip_norm=1, pull=0, own_step_size=0), epsilon, seed
        )
        held = read(resolve(parse(base | {"data": everyone})), 0).silos
        train_x = np.vstack([each.train.features[:, :-1] for each in held])
        train_y = np.concatenate([each.train.target for each in held])
        names = np.repeat(np.arange(len(held)), [len(each.train.target) for each in held])
        reserved = Arrays(train_x, train_y, names, **settings)
        for kind, grid in GRIDS.items():
            points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
            best = min(points, key=lambda one: errors(reserved, scenario(one, epsilon, seed))["own"][0])
            tested = errors(everyone, scenario(best, epsilon, seed, baselines=kind == "own"))
            row = {"epsilon": epsilon, "trial": seed, "kind": kind, "setting": best, "errors": tested}
            found.append(row)
            print(json.dumps(row), flush=True)
        out.write_text(json.dumps(found, indent=1))
    for epsilon, kind in itertools.product(epsilons, GRIDS):
        values = np.array([r["errors"]["own"] for r in found if (r["epsilon"], r["kind"]) == (epsilon, kind)])
        low, high = values[:, 0].min(), values[:, 0].max()
        print(epsilon, kind, *values.mean(0).round(4), f"[{low:.4f}, {high:.4f}]")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), list(map(float, sys.argv[3:])) or [1.0, 2.0, 4.0])
