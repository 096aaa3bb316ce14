"""What a person's guarantee costs, bound by bound: `persons.py OUT`; writes JSON.

Log loss of records and of persons on the data set `visits`, 30 rounds of full batches. Every bound is tuned
alike, on trials that are not reported: clip norm and step size, 4 x 4. World A: 10 silos of 200 persons;
world B: 5 silos of 1,000, whose labels depend on how many visits a person has.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import fedsim

WORLDS: dict[str, dict[str, Any]] = {
    "A": {"num_silos": 10, "persons_per_silo": 200},
    "B": {"num_silos": 5, "persons_per_silo": 1000, "by_contribution": 0.7},
}
UNITS: list[Any] = [
    "record",
    {"name": "person", "bound": "clip"},
    {"name": "person", "bound": "mean"},
    *({"name": "person", "bound": bound, "h": h} for bound in ("limit", "smooth") for h in (1, 2, 4, 8)),
]
CLIPS, STEPS = (0.25, 0.5, 1.0, 2.0), (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
TUNING, TRIALS = 3, 20


def losses(world: str, unit: Any, epsilon: float, clip: float, step: float, seed: int, trials: int) -> Any:
    """Log loss over records and over persons, (trials, 2)."""
    run = fedsim.simulate(
        {
            "name": "persons",
            "seed": seed,
            "trials": trials,
            "data": {"name": "visits", **WORLDS[world]},
            "partition": "natural_id",
            "problem": "logistic_regression",
            "algorithm": {
                "name": "noisy_minibatch_sgd",
                "num_rounds": 30,
                "step_size": step,
                "clip_norm": clip,
            },
            "privacy": {"epsilon": epsilon, "unit": unit},
            "runtime": "inprocess",
            "report": {
                "evaluate_every": 30,
                "baselines": False,
                "nonprivate_baseline": False,
                "clipping": False,
            },
        },
        progress=False,
    )
    rows = run.metrics.to_pylist()
    return np.array([(row["log_loss"], row["person_loss"]) for row in rows if row["round"] == 30])


def measured(world: str, unit: Any, epsilon: float) -> dict[str, Any]:
    """The best settings' log losses, by records' and by persons' risk."""
    grid = list(product(CLIPS, STEPS))
    tried = np.array([losses(world, unit, epsilon, *own, 1, TUNING).mean(0) for own in grid])
    found: dict[str, Any] = {"world": world, "unit": unit, "epsilon": epsilon}
    for column, risk in enumerate(("records", "persons")):
        clip, step = grid[int(np.nanargmin(tried[:, column]))]
        own = losses(world, unit, epsilon, clip, step, 0, TRIALS)[:, column]
        spread = float(own.std(ddof=1) / np.sqrt(len(own)))
        found[risk] = {"loss": float(own.mean()), "error": spread, "clip": clip, "step": step}
    return found


def main(out: Path) -> None:
    """Measure, and write JSON."""
    cases = [("A", 1.0), ("A", 3.0), ("B", 1.0)]
    rows = [measured(world, unit, epsilon) for world, epsilon in cases for unit in UNITS]
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
