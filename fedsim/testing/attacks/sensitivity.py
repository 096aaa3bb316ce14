"""The exact search: by how much one unit moves an answer when there is no noise to hide it.

A plan is priced on the promise that replacing one unit moves an answer by at most its
sensitivity over K, and no other silo's answer at all. Here units of the silos' own data are replaced by
hostile ones (`canaries`), at many points, and the gate itself answers, at noise multiplier 0 and with the
same batches in every world; asks of a round that follow from earlier answers are kept at equal points. The
largest movement over the sensitivity is reported. A ratio above 1 is proof of a fault; none above 1 is no
proof of the opposite, since the search is finite.

Beside the silo's own units, data sets are tried whose units lie at a kink (`kinks`). Which record is in which
batch is seen from outside, on silos whose other records all count as zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product
from math import inf
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.protocol.batch import Fresh, Part, WithReplacement
from fedsim.protocol.rows import Rows
from fedsim.testing.attacks import kinks
from fedsim.testing.attacks.canaries import replaced, whose
from fedsim.testing.attacks.cohorts import Heard, Tap, Tell
from fedsim.testing.attacks.likelihood import single, term
from fedsim.testing.attacks.search import Attack
from fedsim.testing.attacks.servers import Done
from fedsim.testing.attacks.setting import Broadcast, Setting, beside

_TOGETHER, _ROUNDS, _ENOUGH = 64, 64, 12
_LOOKED_FOR = 256  # units of a silo at most that are looked for in disjoint batches


@dataclass(frozen=True)
class Presence:
    """A unit of a silo by its number, and how often it is drawn."""

    place: int  # of the unit that is replaced
    draws: dict[int, tuple[int, ...]]  # for rounds where it is drawn at all, how often in each ask


def find_drawn(setting: Setting, silo: int, kind: int, chosen: Attack, stream: str) -> Presence:
    """The unit, any record or the one to be replaced, that `stream` draws in most of a kind's rounds."""
    rounds = [r for r in setting.kinds[kind].rounds if r in set(setting.rounds(silo))]
    asks = setting.kinds[kind].asks
    if all(ask.batch.sampler == "full" for ask in asks):
        return Presence(setting.place(silo), {r: (setting.swap(silo),) * len(asks) for r in rounds})
    best, rounds, places = Presence(0, {}), rounds[:_ROUNDS], setting.places(silo)
    for marker in (chosen.first, chosen.second):  # one of the two may have no term at the attacked points
        for first in range(0, len(places), _TOGETHER):
            some = places[first : first + _TOGETHER]
            draws = _draws(setting, silo, chosen.broadcasts[kind], marker, stream, some, rounds)
            best = max([best, *draws], key=lambda found: len(found.draws))
            if len(best.draws) >= min(_ENOUGH, len(rounds)):
                return best
    return best


def repeated(setting: Setting, silo: int, chosen: Attack, stream: str) -> str:
    """In words, a unit that is in two batches that may share none: fresh ones, or different parts."""
    seen, places = defaultdict[int, set[Hashable]](set), setting.places(silo)[:_LOOKED_FOR]
    for (k, kind), marker in product(enumerate(setting.kinds), (chosen.first, chosen.second)):
        apart = {a: ask.batch for a, ask in enumerate(kind.asks) if isinstance(ask.batch, Fresh | Part)}
        rounds = [r for r in kind.rounds if r in set(setting.rounds(silo))][:_ROUNDS]
        for first in range(0, len(places) if apart else 0, _TOGETHER):
            some = places[first : first + _TOGETHER]
            for found in _draws(setting, silo, chosen.broadcasts[k], marker, stream, some, rounds):
                for (r, counts), (a, batch) in product(found.draws.items(), apart.items()):
                    if counts[a]:
                        seen[found.place].add(batch if isinstance(batch, Part) else (r, a))
    most = max(seen.values(), key=len, default=set())
    return f"one {setting.unit.name} is in {len(most)} batches that share none" if len(most) > 1 else ""


def _draws(
    setting: Setting,
    silo: int,
    broadcast: Broadcast,
    marker: Rows,
    stream: str,
    places: Sequence[int],
    rounds: Sequence[int],
) -> list[Presence]:
    tap = Tap(tell=lambda _, heard: tuple(torch.zeros_like(answer) for answer in heard.answers))
    silent = beside(setting, silo, "silent", marker)
    data = [replaced(silent, marker, place) for place in places]
    gate = setting.gate(tap, [silo] * len(data), data, [stream] * len(data), noisy=False)
    found: dict[int, dict[int, tuple[int, ...]]] = {place: {} for place in places}
    for r in rounds:
        gate.answer(r, broadcast)
        counts = np.stack([_counts(setting, silo, marker, heard) for heard in tap.take()], axis=1)
        for place, row in zip(places, counts.tolist(), strict=True):
            if any(row):
                found[place][r] = tuple(row)
    return [Presence(place, draws) for place, draws in found.items()]


def _counts(setting: Setting, silo: int, marker: Rows, heard: Heard) -> np.ndarray:
    """How often each member's record was drawn, from the first query that it moves."""
    n = setting.admitted[silo].terms.n
    for query, answer in zip(heard.queries, heard.answers, strict=True):
        length = float(torch.linalg.vector_norm(term(setting, marker, single(query))))
        if length > 0:
            drawn = torch.linalg.vector_norm(answer.double(), dim=1) * query.batch.size(n) / length
            return np.asarray(drawn.round().long())
    return np.zeros(len(heard.answers[0]), dtype=int)


TOLERANCE = 1e-6  # rounding: by so much a ratio may exceed 1, and another silo's answer may move
_STREAM = "exact"


@dataclass
class Found:
    """The largest ratios, and where."""

    # movement of the silo's own answer over its sensitivity; infinity where one record decides whether
    # it answers at all
    sensitivity: float = 0.0
    cross: float = 0.0  # movement of another silo's answer over that silo's sensitivity
    asked: int = 0  # how often the gate answered
    where: dict[str, str] = field(default_factory=dict)  # of each ratio, in words
    repeated: str = ""  # `repeated`

    def add(self, kind: Literal["sensitivity", "cross"], ratio: float, where: str) -> None:
        """Another movement."""
        if ratio > getattr(self, kind):
            self.where[kind] = where
            setattr(self, kind, ratio)


@dataclass(frozen=True)
class Slot:
    """A round of the plan to be asked with a broadcast, and how often the replaced record is drawn."""

    round: int
    broadcast: Broadcast
    draws: tuple[int, ...]


Reply = list[Heard] | Exception  # a cohort's answers in a round, or the error that it raised


def search(
    setting: Setting, silo: int, chosen: Attack, points: int, records: int, done: Done = lambda _: None
) -> Found:
    """Replace one record of a silo by the first `records` candidates, at the first `points` of each kind; and
    ask about half as often at kinks.
    """
    found = Found(repeated=repeated(setting, silo, chosen, f"{_STREAM}/{silo}"))
    for kind in range(len(setting.kinds)):
        for ratio, where in kinks.search(setting, silo, setting.kinds[kind], chosen, points * records // 2):
            found.add("sensitivity", ratio, where)
        drawn = find_drawn(setting, silo, kind, chosen, f"{_STREAM}/{silo}")
        if not drawn.draws:
            continue
        slots = [
            Slot(r, broadcast, drawn.draws[r])
            for broadcast, r in zip(chosen.points[kind][:points], cycle(drawn.draws), strict=False)
        ]
        base = _world(setting, silo, setting.data, slots, None)
        rows: list[list[list[Tensor]]] = [_rows(reply, silo) for reply in base]
        canaries = chosen.canaries[:records]
        for number, canary in enumerate(canaries):
            data = [*setting.data]
            data[silo] = replaced(data[silo], canary, drawn.place)
            for at, reply in enumerate(_world(setting, silo, data, slots, base)):
                _cross(setting, silo, base[at], reply, found, f"candidate {number} at broadcast {at}")
                for kept, new in zip(rows[at], _rows(reply, silo) or rows[at], strict=False):
                    kept += new[:1]
            found.asked += len(slots)
            done(len(slots))
        own = setting.data[silo]
        neighbours = torch.from_numpy(setting.related([own.of(whose(own) == drawn.place), *canaries]))
        for at, slot in enumerate(slots):
            for ratio in _own(setting, silo, slot, base[at], rows[at], neighbours):
                found.add("sensitivity", ratio, f"broadcast {at}")
    return found


def _rows(reply: Reply, silo: int) -> list[list[Tensor]]:
    """The silo's answers, one list a query."""
    if isinstance(reply, Exception):
        return []
    return [[answer[silo].double()] for heard in reply for answer in heard.answers]


def _own(
    setting: Setting, silo: int, slot: Slot, base: Reply, rows: Sequence[list[Tensor]], neighbours: Tensor
) -> Iterator[float]:
    """All worlds against each other: any two differ in one unit, and the `neighbours` as the claim says."""
    if isinstance(base, Exception):
        return
    counts = [count for heard, count in zip(base, slot.draws, strict=True) for _ in heard.queries]
    queries = [query for heard in base for query in heard.queries]
    for query, count, answers in zip(queries, counts, rows, strict=True):
        asked, table = single(query, silo), torch.stack(list(answers))
        times = max(1, count) if isinstance(query.batch, WithReplacement) or setting.swapped > 1 else 1
        allowed = float(setting.allowed(asked)) / query.batch.size(setting.admitted[silo].terms.n) * times
        moved = torch.cdist(table, table, compute_mode="donot_use_mm_for_euclid_dist")
        yield _over(float(moved[neighbours].max()), _rounding(setting, table), allowed)


def _cross(setting: Setting, silo: int, base: Reply, reply: Reply, found: Found, where: str) -> None:
    """Every other silo's answer against the one in the base world; and whether there is one in both."""
    if isinstance(base, Exception) or isinstance(reply, Exception):
        if isinstance(base, list) or isinstance(reply, list):
            found.add("sensitivity", inf, f"{where}: the silos answer in one world and not in the other")
        return
    for before, after in zip(base, reply, strict=True):
        for query, old, new in zip(before.queries, before.answers, after.answers, strict=True):
            moved = torch.linalg.vector_norm(new.double() - old.double(), dim=1)
            moved[silo] = 0.0
            for other in torch.nonzero(moved).flatten().tolist():
                size = query.batch.size(setting.admitted[other].terms.n)
                allowed = float(setting.sensitivity(single(query, other))) / size
                ratio = _over(float(moved[other]), _rounding(setting, old[other]), allowed)
                found.add("cross", ratio, f"{where}: {setting.resolved.names[other]}")


def _rounding(setting: Setting, answers: Tensor) -> float:
    """Upper bound on the movement by rounding an answer to its type; for float32 it is not small."""
    size = torch.linalg.vector_norm(answers.double(), dim=-1)
    return 2 * torch.finfo(setting.resolved.dtype).eps * float(size.nan_to_num(0.0, 0.0).max())


def _over(moved: float, rounding: float, sensitivity: float) -> float:
    if np.isnan(moved):
        return inf
    left = max(0.0, moved - rounding)
    return left / sensitivity if sensitivity > 0 else (inf if left > 0 else 0.0)


def _world(
    setting: Setting, silo: int, data: Sequence[Rows], slots: Sequence[Slot], base: Sequence[Reply] | None
) -> list[Reply]:
    """Replies of the whole cohort in every slot, kept on the base world's path."""
    silos, tap, replies = range(len(data)), Tap(), list[Reply]()
    gate, used = None, set[int]()
    for at, slot in enumerate(slots):
        if gate is None or slot.round in used:  # each round of a plan is asked once
            streams, used = [f"{_STREAM}/{i}" for i in silos], set()
            gate = setting.gate(tap, silos, data, streams, noisy=False, like=silo)
        used.add(slot.round)
        tap.tell = None if base is None else _telling(base[at])
        try:
            gate.answer(slot.round, slot.broadcast)
        except Exception as error:  # whatever it is: that it is raised may depend on a record
            tap.take()
            replies.append(error)
        else:
            replies.append(tap.take())
    return replies


def _telling(base: Reply) -> Tell | None:
    """The base world's answers, whatever this one's are."""
    if isinstance(base, Exception):
        return None
    return lambda ask, heard: base[ask].answers
