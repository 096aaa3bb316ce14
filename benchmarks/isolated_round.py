"""A round with an isolated algorithm beside one in process: 25 silos of 1,238 records, d = 50.

Both take turns, without start-up; milliseconds a round go to the JSON file that is named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

import fedsim
from fedsim import Query, Round

ROUNDS, TURNS = 400, 5
SCENARIO: dict[str, Any] = {
    "name": "isolated round",
    "seed": 3,
    "nonce": "0" * 32,
    "data": {"name": "synthetic", "rows": 25 * 1238 * 2, "features": 49, "test_fraction": 0.5},
    "partition": {"name": "iid", "num_partitions": 25},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": ROUNDS, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
    "report": {
        "baselines": False,
        "nonprivate_baseline": False,
        "evaluate_every": ROUNDS,
        "clipping": False,
        "excess_risk": False,
    },
}


@dataclass(frozen=True)
class Own:
    """Noisy gradient descent, as any author would write it."""

    num_rounds: int
    linear: ClassVar[bool] = True

    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Iterator[Round]:
        """Descend."""
        for _ in range(self.num_rounds):
            mean = yield Round({"w": w}, answer=w)
            w = problem.descend(w, mean["g"], 0.5)
        return w

    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Mapping[str, Tensor]:
        """One noisy mean gradient."""
        return {"g": ask(Query("gradient", (broadcast["w"],), 1.0))}


def seconds(plug_ins: str) -> float:
    """Of one round."""
    runtime = {"name": "inprocess", "plug_ins": plug_ins}
    run = fedsim.simulate({**SCENARIO, "runtime": runtime}, algorithm=Own(ROUNDS), progress=False)
    return float(list(run.metrics["seconds"])[-1]) / ROUNDS


if __name__ == "__main__":
    seconds("isolated")  # the child is kept
    pairs = [(seconds("isolated") * 1e3, seconds("in_process") * 1e3) for _ in range(TURNS)]
    times = [list(column) for column in zip(*pairs, strict=True)]
    Path(sys.argv[1]).write_text(json.dumps({"milliseconds": times}), encoding="utf-8")
