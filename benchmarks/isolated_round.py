"""A round with an isolated algorithm beside one in process: 25 silos of 1,238 records, d = 50.

It prints the median of the ratios of alternating runs, without start-up; let the machine do nothing else.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

import fedsim
from fedsim import Query, Round

ROUNDS = 400
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
        "nonprivate_twin": False,
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


def main(turns: int) -> None:
    """Measure and print."""
    seconds("isolated")  # the child is kept
    pairs = [(seconds("in_process"), seconds("isolated")) for _ in range(turns)]
    ratios = [isolated / own for own, isolated in pairs]
    own, isolated = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    print(f"in process {own:.2f} ms, isolated {isolated:.2f} ms a round")
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), {turns} turns")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
