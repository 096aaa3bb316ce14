"""What a silo's replies tell of its gate's answers, to a server that sees messages and nothing else.

The silo half is public code. Where its message of a round is the answer to the round's only query, as it is,
a server hears what the plan is priced for. (A message that is made of several answers tells less, and its
likelihood is not worked out here.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedsim.attacks.bench import narrowed
from fedsim.attacks.score import Places, Scores
from fedsim.attacks.search import Attack
from fedsim.attacks.setting import Broadcast, Setting
from fedsim.attacks.wiretap import Heard
from fedsim.attacks.worst import Knowledge, Others
from fedsim.common.errors import InputError
from fedsim.common.seeds import generator
from fedsim.mechanisms.grid import STEPS
from fedsim.protocol.contract import Asker, Query
from fedsim.protocol.plain import CohortMemory

_COORDINATES = 66


@dataclass(frozen=True)
class Line:
    """One round of the attack.

    Args:
        round: its number.
        broadcast: what the server sends.
        name: of the reply's array.
        query: what that array answers.
        places: where it lies in each world.
        dtype: of the answer.
    """

    round: int
    broadcast: Broadcast
    name: str
    query: Query
    places: Places
    dtype: torch.dtype


def lines(setting: Setting, silo: int, chosen: Attack, kind: Others) -> list[Line]:
    """The rounds of the silo's plan, as the worst server plays them.

    Raises:
        InputError: a reply is not the answer to one query.
    """
    knowledge = Knowledge(setting, silo, chosen.first, chosen.second, kind).of(1)
    memory = CohortMemory(1, setting.resolved.problem.dimension, setting.resolved.dtype)
    of_round = {r: k for k, kind in enumerate(setting.kinds) for r in kind.rounds}
    found = []
    for r in setting.rounds(silo):
        if (k := of_round.get(r)) is None:  # no honest run has it: nobody saw what it broadcasts
            continue
        name, query = _answered(setting, chosen.broadcasts[k], memory)
        (places,) = knowledge.places(Heard((query,), ()), (r, 0), (k, 0))
        found.append(Line(r, chosen.broadcasts[k], name, narrowed(query), places, setting.resolved.dtype))
    return found


def _answered(setting: Setting, broadcast: Broadcast, memory: CohortMemory) -> tuple[str, Query]:
    """Which array of the reply is the answer to which query: tried with a random answer."""
    resolved = setting.resolved
    asked: list[Query] = []
    probe = torch.as_tensor(generator("audit probe").standard_normal(resolved.problem.dimension))
    probe = probe.to(resolved.dtype)[None]

    def ask(*queries: Query) -> Tensor | tuple[Tensor, ...]:
        asked.extend(queries)
        return probe.clone() if len(queries) == 1 else (probe.clone(),) * len(queries)

    message = setting.algorithm.silo(resolved.problem, broadcast, cast(Asker, ask), memory)
    plain = len(asked) == len(message) == 1
    if not plain or not torch.equal(next(iter(message.values())).reshape(-1), probe[0]):
        hint = "a daemon is audited by algorithms whose reply is the answer to one query a round"
        raise InputError("scenario.algorithm.name", resolved.scenario.algorithm.name, hint)
    return next(iter(message)), asked[0]


def scores(plan: Sequence[Line], replies: Sequence[Tensor], n: int, noise_multiplier: float) -> np.ndarray:
    """Log-likelihood ratios of runs, (runs,), from what each line was answered, (runs, d) each."""
    runs = Scores(len(replies[0]), n, noise_multiplier)
    for line, answers in zip(plan, replies, strict=True):
        runs.add(line.query.batch, Heard((line.query,), (answers,)), [line.places])
    return runs.ratios()


def noise(
    plan: Sequence[Line], replies: Sequence[Tensor], n: int, noise_multiplier: float
) -> tuple[np.ndarray, float]:
    """The first world's replies' noise over its stated standard deviation, (lines, runs, coordinates).

    Where a batch is not full, of the coordinates that no draw of it moves: the part across both worlds'
    places. And the step of the noise, in standard deviations: that of the grid, or of the answer's type.
    """
    found, steps = [], [0.0]
    for line, answers in zip(plan, replies, strict=True):
        query, places = line.query, line.places
        size = query.batch.size(n)
        left = (answers - places.base)[:, :_COORDINATES]
        if query.batch.sampler == "full":
            left = left - places.first[:, :_COORDINATES]
        else:
            left = left @ _across(places)
        sigma = query.noise_ratio * noise_multiplier * 2 * float(torch.as_tensor(query.clip)) / size
        if sigma > 0 and left.shape[1]:
            found.append((left / sigma).numpy())
            grain = max(1 / (2 * STEPS), torch.finfo(line.dtype).eps * size)
            steps.append(grain / (query.noise_ratio * noise_multiplier))
    width = min((rows.shape[1] for rows in found), default=0)
    rows = [rows[:, :width] for rows in found]
    return np.stack(rows) if rows else np.empty((0, 0, 0)), max(steps)


def _across(places: Places) -> Tensor:
    """Directions at right angles to both worlds' places among the first coordinates, in columns."""
    moved = torch.cat([places.first, places.second]).T[:_COORDINATES]
    basis: Tensor = torch.linalg.qr(moved, mode="complete").Q
    return basis[:, moved.shape[1] :]
