"""fedsim on the peers' workloads: `fedsim_rounds.py logistic|softmax|aggregate inprocess|ray OUT`;
writes JSON.

Clipping, noise, plan matching and ledger are on; a round's time is that of a trial's server loop, and what
measures models, which the peers do not, is in neither number. Softmax runs in float32, as its peer does; the
rest in float64. `aggregate` is softmax with the noise of the sum drawn at once.
"""

from __future__ import annotations

import json
import sys
import time

from fedsim.report.record import Measurement

STARTED = time.perf_counter()

from workload import CLIP, RECORDS, SILOS, STEP

from fedsim.report.outcome import Results
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve

ROUNDS = 400
LOGISTIC = {
    "data": {"name": "synthetic", "link": "logistic", "rows": SILOS * RECORDS * 5 // 4, "features": 49},
    "problem": "logistic_regression",
    "batch": "full",
    "dtype": "float64",
}
SOFTMAX = {
    "data": {"name": "synthetic", "link": "softmax", "rows": SILOS * 400, "features": 783, "classes": 10},
    "problem": "softmax_regression",
    "batch": {"sampler": "subsample", "fraction": 0.1},
    "dtype": "float32",
}


def scenario(kind: str, runtime: str) -> dict[str, object]:
    parts = {"logistic": LOGISTIC, "softmax": SOFTMAX, "aggregate": SOFTMAX | {"noise": "aggregate"}}[kind]
    algorithm = {"name": "noisy_minibatch_sgd", "num_rounds": ROUNDS, "step_size": STEP, "clip_norm": CLIP}
    return {
        "name": "benchmark",
        "data": parts["data"],
        "partition": {"name": "iid", "num_partitions": SILOS},
        "problem": parts["problem"],
        "algorithm": algorithm | {"batch": parts["batch"]},
        "privacy": {"epsilon": 2},
        "runtime": {"name": runtime, "dtype": parts["dtype"], "noise": parts.get("noise", "silos")},
        "report": {
            "evaluate_every": ROUNDS // 10,
            "nonprivate_baseline": False,
            "baselines": False,
            "clipping": kind != "aggregate",
        },
    }


def main() -> None:
    kind, runtime, out = sys.argv[1:]
    seen: list[tuple[Measurement, float]] = []
    results = Results()
    resolved = resolve(parse(scenario(kind, runtime)))
    if runtime == "ray":
        from fedsim.simulation.on_ray import execute
    else:
        from fedsim.simulation.trial import execute
    execute(resolved, results, lambda measured: seen.append((measured, time.perf_counter())))
    begun = min(at - measured.seconds for measured, at in seen)  # none of it before the first report
    result = {"milliseconds": seen[-1][0].seconds / ROUNDS * 1e3, "startup": begun - STARTED}
    with open(out, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
