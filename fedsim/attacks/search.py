"""The pair of records and the broadcasts that would tell most, found without noise and without the silo.

Only candidates' own terms are looked at, so what is found is a choice of attack. What it attains, and whether
a silo's answer really moves by no more than it should, is then tried on the silo (`exact`, `worst`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsim.attacks.bench import Record, alone
from fedsim.attacks.candidates import balanced, broadcasts, records, vectors
from fedsim.attacks.gates import cohort
from fedsim.attacks.setting import Broadcast, Kind, Setting
from fedsim.attacks.wiretap import Heard, Tap, Wiretap
from fedsim.common.errors import Refused
from fedsim.common.seeds import generator
from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.plan import Plan

_PATHS = 4
"""Ways of an honest silo half through a round of several asks that a choice is averaged over."""


@dataclass(frozen=True)
class Attack:
    """What a server knows and does.

    Args:
        first: the record of one world.
        second: that of the other.
        broadcasts: by kind of round, what it sends.
        ratios: by kind, how far the two terms are from each other, over 2 clip: 1 is the most there can be.
        records: every candidate record, the most promising ones first.
        points: by kind, every candidate broadcast that silos accept, likewise.
    """

    first: Record
    second: Record
    broadcasts: tuple[Broadcast, ...]
    ratios: tuple[float, ...]
    records: tuple[Record, ...]
    points: tuple[tuple[Broadcast, ...], ...]


def search(setting: Setting, silo: int, allowed: Callable[[Record], bool] = lambda _: True) -> Attack:
    """Choose among all allowed pairs and points those of the largest sum of squared distances."""
    x, y = setting.data[silo]
    own = (x[0], float(y[0]))
    pair_records, pair_points = balanced(setting, own)
    clip = _largest_clip(setting, own)
    every = [record for record in (*pair_records, *records(setting, own, clip)) if allowed(record)]
    tried = _usable(setting, silo, every)
    total, found = torch.zeros(len(tried), len(tried), dtype=torch.float64), []
    for kind in setting.kinds:
        points = broadcasts(setting, kind, vectors(setting, kind, pair_points))
        accepted, squares = _distances(setting, silo, kind, points, tried)
        total += len(kind.rounds) * kind.weight * squares.amax(0)
        found.append((accepted, squares))
    a, b = divmod(int(total.argmax()), len(tried))
    best = [(points, squares, int(squares[:, a, b].argmax())) for points, squares in found]
    chosen = tried[a], tried[b]
    return Attack(
        *chosen,
        tuple(points[at] for points, _, at in best),
        tuple(float(squares[at, a, b]) ** 0.5 for _, squares, at in best),
        (*chosen, *(record for record in every if not any(record is one for one in chosen))),
        tuple(_ordered(points, squares, at) for points, squares, at in best),
    )


def _usable(setting: Setting, silo: int, every: list[Record]) -> list[Record]:
    """Those whose term can be computed; on others a problem of somebody's own may raise."""

    def works(some: list[Record]) -> bool:
        try:
            return all(_hear(setting, silo, kind, kind.seen[-1:], some, 0) for kind in setting.kinds)
        except Refused:
            raise
        except Exception:
            return False

    return every if works(every) else [record for record in every if works([record])]


def _ordered(points: Sequence[Broadcast], squares: Tensor, best: int) -> tuple[Broadcast, ...]:
    """The chosen point, then others in turn: the most telling one left, and the next in the list."""
    by_size = squares.flatten(1).amax(1).argsort(descending=True).tolist()
    turns = [place for pair in zip(by_size, range(len(points)), strict=True) for place in pair]
    return tuple(points[place] for place in dict.fromkeys([best, *turns]))


def _largest_clip(setting: Setting, own: Record) -> float:
    """Of the plan's queries, at broadcasts of an honest run."""
    clips = [1e-6]
    for kind in setting.kinds:
        for heard in _hear(setting, 0, kind, [kind.seen[-1]], [own], 0):
            clips += [float(torch.as_tensor(query.clip).max()) for each in heard[1] for query in each.queries]
    return max(clips)


def _distances(
    setting: Setting, silo: int, kind: Kind, points: Sequence[Broadcast], tried: Sequence[Record]
) -> tuple[list[Broadcast], Tensor]:
    """The broadcasts that are accepted, and squared distances over 2 clip, (broadcasts, records, records)."""
    paths = _PATHS if sum(len(ask.queries) for ask in kind.asks) > 1 else 1
    totals: dict[int, Tensor] = {}
    for path in range(paths):
        for place, heard in _hear(setting, silo, kind, points, tried, path):
            square = sum((_square(each) for each in heard), torch.zeros(()))
            totals[place] = totals.get(place, torch.zeros(())) + square / (paths * kind.weight)
    if not totals:
        raise Refused("the silos accept none of the broadcasts that the audit would try")
    return [points[place] for place in totals], torch.stack(list(totals.values()))


def _square(heard: Heard) -> Tensor:
    """Sum over an ask's queries of (distance / (2 clip ratio))^2 between all pairs of members."""
    total = torch.zeros(())
    for query, answer in zip(heard.queries, heard.answers, strict=True):
        scale = 2 * torch.as_tensor(query.clip).reshape(-1, 1).double() * query.noise_ratio
        scaled = torch.where(scale > 0, answer.double() / scale, 0.0)
        total = total + torch.cdist(scaled, scaled).square()
    return total


def _hear(
    setting: Setting,
    silo: int,
    kind: Kind,
    points: Sequence[Broadcast],
    tried: Sequence[Record],
    path: int,
) -> list[tuple[int, list[Heard]]]:
    """(place, asks) of the points that are accepted, for silos of one record each.

    In a round of several asks the silo half goes on from noise of its own size, the same for all records.
    """
    asks = tuple(replace(ask, batch=FULL) for ask in kind.asks)
    rng = generator("audit path", setting.resolved.scenario.seed, silo, path)
    tap = Tap(
        full=True, tell=lambda ask, heard: _noise_alone(setting, silo, kind.asks[ask].batch, heard, rng)
    )
    names = [""] * len(tried)
    gate = cohort(
        setting.resolved,
        Wiretap(setting.algorithm, tap),
        Plan((asks,) * len(points)),
        [alone(record) for record in tried],
        [0.0] * len(tried),
        names,
    )
    found = []
    for place, broadcast in enumerate(points):
        try:
            gate.answer(place, broadcast)
        except Refused:
            tap.take()
            continue
        found.append((place, tap.take()))
    return found


def _noise_alone(
    setting: Setting, silo: int, batch: Batch, heard: Heard, rng: np.random.Generator
) -> tuple[Tensor, ...]:
    admitted = setting.admitted[silo]
    sensitivity = 2 / batch.size(admitted.terms.n)  # at clip 1
    told = []
    for query, answer in zip(heard.queries, heard.answers, strict=True):
        sigma = query.noise_ratio * admitted.noise_multiplier * sensitivity
        drawn = torch.as_tensor(rng.standard_normal(answer.shape[1])).to(answer.dtype)
        told.append((sigma * torch.as_tensor(query.clip) * drawn).expand_as(answer).to(answer.dtype).clone())
    return tuple(told)
