"""A round of each statistic beside a round of gradients: `statistics_cost.py OUT`; writes JSON.

25 silos x 1,238 records x 50 features, logistic regression, full batch, through the gate; in turns. Gradients
with persons as units too, whose records have a Pareto tail of 1.2, at most 200 each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from round_cost import FEATURES, RECORDS, SILOS, make_records
from torch import Tensor

from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.contract import Query, Round
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Plan, QueryShape, Terms
from fedsim.protocol.statistics import statistic
from fedsim.protocol.unit import Person
from fedsim.simulation.host import MemoryLedgers
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out
from silos.vault.owners import ALONE, Owners

ROUNDS = 15
OPTIONS: dict[str, tuple[float, ...]] = {
    "gradient": (),
    "second_moment": (0.0,),
    "sum": (0.0, -1.0, 1.0),
    "histogram": (1.0, 0.0, *np.linspace(-1, 1, 65).tolist()),
    "score_histogram": (10.0,),
    "mistakes": (),
    "longer": (),
    "log_loss": (0.01,),
    "quantile": (0.0, 0.5, *(k / 50 - 1 for k in range(101))),
    "choice": (),
    "minimiser": (0.1, 50.0, 2.0),
}


@dataclass(frozen=True)
class Same:
    """The same query in every round."""

    statistic: str
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        """Ask."""
        for _ in range(ROUNDS):
            yield Round({"w": w}, answer=w)
        return w

    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Mapping[str, Tensor]:
        """One answer."""
        points = (broadcast["w"],) * statistic(self.statistic).points
        if self.statistic == "longer":
            points = broadcast["w"], broadcast["w"].new_full((1,), 0.5)
        return {"g": ask(Query(self.statistic, points, 1.0, options=OPTIONS[self.statistic]))}


def whose(rng: np.random.Generator) -> np.ndarray:
    """Whose each record of a silo is, (RECORDS,)."""
    counts = np.minimum(rng.random(RECORDS) ** (-1 / 1.2), 200).astype(int)
    return rng.permutation(np.repeat(np.arange(RECORDS), counts)[:RECORDS])


def asking(
    name: str, silos: list[tuple[np.ndarray, np.ndarray]], owners: Owners = ALONE
) -> Callable[[int], float]:
    """The seconds that round r takes."""
    records = lay_out(silos, LogisticRegression(FEATURES), torch.float64, owners)
    shape = QueryShape(name, statistic(name).points, 1.0, OPTIONS[name])
    names = [f"silo-{i:02d}" for i in range(SILOS)]
    gate = Served(
        Gate(
            records,
            LogisticRegression(FEATURES),
            Plan(((Ask(queries=(shape,), batch=Query("gradient", (), 1.0).batch),),) * ROUNDS, records.unit),
            [Terms(each, n, 1.0, 1e-6, range(ROUNDS)) for each, n in zip(names, records.sizes, strict=True)],
            GAUSSIAN,
            SeededEntropy(0, 0, names, [name] * SILOS),
            MemoryLedgers(len(names)),
            LIMITS,
            torch.float64,
        ),
        Same(name),
    )
    w = torch.full((FEATURES,), 0.1, dtype=torch.float64)

    def once(r: int) -> float:
        start = time.perf_counter()
        gate.answer(r, {"w": w * (1 + r / ROUNDS)})  # elsewhere each time: no scores are kept from the last
        return time.perf_counter() - start

    return once


if __name__ == "__main__":
    torch.set_num_threads(1)
    records = make_records(np.random.default_rng(0))
    rounds = {name: asking(name, records) for name in OPTIONS}
    codes = [whose(np.random.default_rng(1 + silo)) for silo in range(SILOS)]
    for unit in (Person("clip"), Person("mean"), Person("limit", 4), Person("smooth", 4)):
        rounds[f"gradient, persons, {unit.bound}"] = asking("gradient", records, Owners(unit, codes))
    found: dict[str, list[float]] = {name: [] for name in rounds}
    for r in range(ROUNDS):
        for name, once in rounds.items():
            found[name].append(1e3 * once(r))
    Path(sys.argv[1]).write_text(json.dumps({name: times[1:] for name, times in found.items()}))
