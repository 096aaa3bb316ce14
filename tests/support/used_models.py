"""Small runs whose models are used, and the raw records that they were trained on."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedsim

CLINIC_SCHEMA: dict[str, Any] = {
    "age": {"kind": "number", "lower": 20, "upper": 80},
    "sex": {"kind": "category", "categories": ["male", "female"]},
    "chol": {"kind": "number", "lower": 100, "upper": 400, "scale": "log", "fill": 200},
    "outcome": {"kind": "category", "categories": ["well", "ill"]},
}


def clinic(folder: Path, records: int = 60) -> pd.DataFrame:
    """A made-up table, as clinic.csv too: numbers, a category, missing values, and whose record it is."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "patient": [f"p{k}" for k in range(records)],
            "age": rng.integers(15, 90, records),
            "sex": rng.choice(["female", "male"], records),
            "hospital": rng.choice(["north", "south"], records),
            "chol": np.where(rng.random(records) < 0.2, np.nan, rng.uniform(90, 410, records).round()),
            "outcome": rng.choice(["well", "ill"], records),
        }
    )
    frame.to_csv(folder / "clinic.csv", index=False)
    return frame


def tree(data: Any, problem: Any, **changes: Any) -> dict[str, Any]:
    """A scenario of three rounds."""
    algorithm = {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 0.5, "clip_norm": 1.0}
    return {
        "name": "used",
        "data": data,
        "partition": {"name": "iid", "num_partitions": 2},
        "problem": problem,
        "algorithm": algorithm,
        "privacy": {"epsilon": 4.0, "delta": 0.001},
        "runtime": "inprocess",
        "report": {"baselines": False},
        **changes,
    }


def clinic_tree(folder: Path, target: str = "outcome", **data: Any) -> dict[str, Any]:
    """A scenario on `clinic`'s table, its silos the hospitals."""
    own = {"name": "csv", "path": str(folder / "clinic.csv"), "target": target, "silo_column": "hospital"}
    problem = "logistic_regression" if target == "outcome" else "linear_regression"
    return tree(own | {"schema": CLINIC_SCHEMA} | data, problem, partition="natural_id")


def simulated(scenario: Any, overrides: Any = None, **short: Any) -> fedsim.Run:
    return fedsim.simulate(scenario, overrides, progress=False, **short)
