"""Records within an ulp of where a term jumps, and what one unit less or more does to noiseless answers.

Units stand on the kink as the silo's own functions compute it, so that a last bit that depends on what stands
beside them turns whole terms.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from support.helpers import Scripted, Switch, names_of
from torch import Tensor

from fedsim.privacy.registry import CLIP_ONLY
from fedsim.problems.kinds import Problem, scores_of_records
from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.contract import Query
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Plan, QueryShape, Terms
from fedsim.protocol.statistics import statistic
from fedsim.protocol.unit import RECORD, Person, Record
from fedsim.simulation.host import MemoryLedger
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out
from silos.vault.owners import Owners
from silos.vault.selections import PER_ONE
from silos.vault.terms import summed

World = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Features, targets and whose each record is, the one that differs first."""


def answers(
    problem: Problem, silos: Sequence[World], unit: Record | Person, query: Query, first: int, batch: Batch
) -> tuple[Tensor, Plan]:
    """Sums without noise, (silos, size); the first silo states so many units."""
    seen: list[Tensor] = []

    def half(w: Tensor, ask: Any, memory: Any) -> dict[str, Tensor]:
        seen.append(ask(query))
        return {"g": seen[0]}

    wide = 0 if query.transform is None else len(query.transform)
    shape = QueryShape(query.statistic, len(query.points), query.noise_ratio, query.options, wide)
    plan, names = Plan(((Ask(batch, (shape,)),),), unit), names_of(len(silos))
    persons = Owners.of(unit, [own[2] for own in silos], None if unit == RECORD else (0, 0, names))
    records = lay_out([(x, y, code % 2) for x, y, code in silos], problem, torch.float64, persons)
    sizes = [first, *(len(own[1]) for own in silos[1:])]
    terms = [Terms(*own, math.inf, 1e-5, range(1)) for own in zip(names, sizes, strict=True)]
    gate = Gate(
        *(records, problem, plan, terms, CLIP_ONLY),
        *(SeededEntropy(0, 0, names, ["a test's run"] * len(names)), [MemoryLedger() for _ in names]),
        *(LIMITS, torch.float64),
    )
    if statistic(query.statistic).drawn:  # of which a gate gives the drawn candidate alone
        found = [
            summed(records.clipped_sum, shape, problem, own, query.points, query.clip)
            for own in records.full([0])
        ]
        return found[0].double() / PER_ONE, plan
    Served(gate, Scripted(Switch(half), 1)).answer(
        0, {"w": torch.zeros(problem.dimension, dtype=torch.float64)}
    )
    return seen[0].double() * torch.tensor([[batch.size(n)] for n in sizes]), plan


def moved(
    problem: Problem,
    worlds: Sequence[World],
    unit: Record | Person,
    query: Query,
    batch: Batch = FULL,
    others: Sequence[World] = (),
) -> tuple[float, float]:
    """The furthest that a silo's sum moves between the first world and another one, over its price, and that
    any other silo's moves.
    """
    n = 1 + int(worlds[0][2].max())
    found = [answers(problem, [world, *others], unit, query, n, batch) for world in worlds]
    first, plan = found[0]
    known = statistic(query.statistic)
    if known.drawn:
        return max(float((sums - first).abs().max()) for sums, _ in found[1:]), 0.0
    apart = torch.stack([(sums - first).norm(dim=1) for sums, _ in found[1:]]).amax(0)
    price = plan.spread(next(iter(plan.queries))) * float(
        torch.as_tensor(query.clip, dtype=torch.float64).max()
    )
    return float(apart[0]) / price, float(apart[1:].max()) if others else 0.0


def worlds(x: np.ndarray, y: np.ndarray, fronts: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[World]:
    """Those units of one record each behind a first unit of these records, or of none."""
    made = []
    for features, target in fronts:
        code = np.append(np.zeros(len(target), dtype=int), np.arange(1, 1 + len(y)))
        made.append((np.vstack([features, x]), np.append(target, y), code))
    return made


def scores(problem: Problem, x: np.ndarray, w: Tensor) -> np.ndarray:
    """Scores as silos compute them, each record alone."""
    found = [scores_of_records(problem, torch.from_numpy(row[None].copy()), w) for row in x]
    return torch.cat(found).numpy()


def tuned(x: np.ndarray, w: Tensor, score: Callable[[np.ndarray], np.ndarray], wanted: float) -> np.ndarray:
    """Records whose last feature brings their score to within about an ulp of the number that is wanted."""
    x = x.copy()
    for _ in range(6):
        x[:, -1] -= (score(x) - wanted) / float(w[-1])
    return x


def near(number: float) -> list[float]:
    """The number and its neighbours."""
    return [number, float(np.nextafter(number, math.inf)), float(np.nextafter(number, -math.inf))]
