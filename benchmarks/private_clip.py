"""A clip found privately beside fixed ones and a theorem's: `private_clip.py OUT`; writes JSON.

The federation of `scenarios/heavy_tails.yaml`, a fresh one a trial: ten silos of 1,000 records, 20 features
and an intercept, centred Pareto noise of tail 2.2. Excess risk is that over the optimum of the population,
E (<w - w*, x>)^2 / 2. For each fixed clip, and for one pass with the theorem's, rounds and step are tuned at
each epsilon on trials that are not reported; the private clip has the scenario's one setting at all three.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import fedsim
from fedsim.data.heavy_tails import HeavyTails

SCENARIO = Path(__file__).parent.parent / "scenarios" / "heavy_tails.yaml"
TUNING, TRIALS = range(100, 103), range(300, 312)
EPSILONS = (1, 3, 10)
QUIET = {"evaluate_every": 1000, "baselines": False, "nonprivate_baseline": False, "clipping": False}
STARTS = (0.1, 1.0, 10.0, 100.0)


def excess(numbers: dict[str, Any], epsilon: float, seed: int, **sections: Any) -> tuple[float, float]:
    """Excess risk and last clip of one run on the records of a seed; infinite where it diverges."""
    tree = yaml.safe_load(SCENARIO.read_text()) | {"trials": 1, "seed": seed, "report": QUIET, **sections}
    tree.pop("sweep")
    tree["data"]["seed"] = seed
    tree["algorithm"] |= numbers
    tree["privacy"]["epsilon"] = epsilon
    source = HeavyTails(**tree["data"]).open()
    assert source.optimum is not None
    second = np.append(np.full(source.num_features, 1 / 3), 1.0)  # E x_j^2
    try:
        run = fedsim.simulate(tree, progress=False)
    except fedsim.Refused:  # a point beyond a silo's limits
        return np.inf, np.nan
    clips = run.summary.chosen_clips
    return float(second @ (np.asarray(run.model)[0] - source.optimum) ** 2 / 2), clips[
        -1
    ] if clips else np.nan


def mean(numbers: dict[str, Any], epsilon: float, seeds: Iterable[int], **sections: Any) -> dict[str, float]:
    """Mean excess risk, its standard error, and the range of last clips."""
    values, clips = np.array([excess(numbers, epsilon, seed, **sections) for seed in seeds]).T
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if np.isfinite(values).all() else np.nan
    return {
        "excess": float(values.mean()),
        "error": error,
        "low": float(clips.min()),
        "high": float(clips.max()),
    }


def tuned(grid: list[dict[str, Any]], epsilon: float, **sections: Any) -> dict[str, Any]:
    """The numbers of the least mean excess risk on the tuning trials, and what they come to on the others."""
    best = min(grid, key=lambda own: mean(own, epsilon, TUNING, **sections)["excess"])
    return best | mean(best, epsilon, TRIALS, **sections)


def main(out: Path) -> None:
    """Measure, and write JSON."""
    warnings.simplefilter("ignore", UserWarning)  # of steps above 2 / beta
    found: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        found.append(row)
        print(row, flush=True)
        out.write_text(json.dumps(found, indent=1))

    rule = yaml.safe_load(SCENARIO.read_text())["algorithm"]["clip_norm"]
    for epsilon in EPSILONS:
        for start in STARTS:
            own = {"clip_norm": rule | {"start": start}}
            add({"what": f"private, start {start:g}", "epsilon": epsilon, **mean(own, epsilon, TRIALS)})
        for clip in (1.0, 3.0, 6.0, 10.0, 20.0, 30.0, 100.0):
            grid = [
                {"num_rounds": R, "step_size": step, "clip_norm": clip}
                for R, step in product((30, 60), (0.5, 0.8, 1.2))
            ]
            add({"what": "fixed", "epsilon": epsilon, **tuned(grid, epsilon)})
        one_pass = [
            {
                "name": "accelerated_minibatch_sgd",
                "num_rounds": R,
                "step_size": step,
                "clip_norm": "theorem",
                "strong_convexity": 0.0,
                "batch": {"sampler": "fresh", "fraction": 1 / R},
            }
            for R, step in product((2, 5, 10), (0.02, 0.05, 0.1, 0.3))
        ]
        moment = {"assumptions": {"moment": 2, "moment_bound": 10}}
        add({"what": "theorem, one pass", "epsilon": epsilon, **tuned(one_pass, epsilon, **moment)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
