"""Which record is in which batch: seen from outside, on silos whose other records all count as zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedsim.attacks.bench import Record, single, term
from fedsim.attacks.search import Attack
from fedsim.attacks.setting import Broadcast, Setting
from fedsim.attacks.wiretap import Heard, Tap, Wiretap
from fedsim.attacks.worst import beside, replaced

_TOGETHER, _ROUNDS, _ENOUGH = 64, 64, 12


@dataclass(frozen=True)
class Presence:
    """A place in a silo's records, and how often the record there is drawn.

    Attributes:
        place: of the record that is replaced.
        draws: for rounds where it is drawn at all, how often in each ask.
    """

    place: int
    draws: dict[int, tuple[int, ...]]


def find(setting: Setting, silo: int, kind: int, chosen: Attack, stream: str) -> Presence:
    """The place whose record is drawn in most of some rounds of a kind.

    Args:
        kind: its position in the setting.
        stream: of the silo's batches.
    """
    rounds = [r for r in setting.kinds[kind].rounds if r in set(setting.rounds(silo))]
    asks = setting.kinds[kind].asks
    if all(ask.batch.sampler == "full" for ask in asks):
        return Presence(0, {r: (1,) * len(asks) for r in rounds})
    best, rounds, n = Presence(0, {}), rounds[:_ROUNDS], len(setting.data[silo][1])
    for marker in (chosen.first, chosen.second):  # one of the two may have no term at the attacked points
        for first in range(0, n, _TOGETHER):
            places = range(first, min(n, first + _TOGETHER))
            draws = _draws(setting, silo, chosen.broadcasts[kind], marker, stream, places, rounds)
            best = max([best, *draws], key=lambda found: len(found.draws))
            if len(best.draws) >= min(_ENOUGH, len(rounds)):
                return best
    return best


def _draws(
    setting: Setting,
    silo: int,
    broadcast: Broadcast,
    marker: Record,
    stream: str,
    places: Sequence[int],
    rounds: Sequence[int],
) -> list[Presence]:
    tap = Tap(tell=lambda _, heard: tuple(torch.zeros_like(answer) for answer in heard.answers))
    silent = beside(setting, silo, "silent", marker)
    data = [replaced(silent, marker, place) for place in places]
    members = [silo] * len(data)
    gate = setting.gate(Wiretap(setting.algorithm, tap), members, data, [stream] * len(data), noisy=False)
    found: dict[int, dict[int, tuple[int, ...]]] = {place: {} for place in places}
    for r in rounds:
        gate.answer(r, broadcast)
        counts = np.stack([_counts(setting, silo, marker, heard) for heard in tap.take()], axis=1)
        for place, row in zip(places, counts.tolist(), strict=True):
            if any(row):
                found[place][r] = tuple(row)
    return [Presence(place, draws) for place, draws in found.items()]


def _counts(setting: Setting, silo: int, marker: Record, heard: Heard) -> np.ndarray:
    """How often each member's one record was drawn, from the first query that it moves."""
    n = setting.admitted[silo].terms.n
    for query, answer in zip(heard.queries, heard.answers, strict=True):
        length = float(torch.linalg.vector_norm(term(setting, marker, single(query))))
        if length > 0:
            drawn = torch.linalg.vector_norm(answer.double(), dim=1) * query.batch.size(n) / length
            return np.asarray(drawn.round().long())
    return np.zeros(len(heard.answers[0]), dtype=int)
