"""Neighbouring data sets at a kink, where the last bit of a record's number decides the whole of its term.

A term that depends on its unit alone is the same bits in every place. A kernel that rounds a row by its
place, its address, or the number of rows gives equal records last bits that differ, and at a kink of a loss,
at a threshold or at the edge of a histogram's bin such a bit is a whole term. So all units but one are copies
of one record, or every other one is; the one has one record, or several, which shift the others, or is one
that adds nothing. Where the copies have to lie is not worked out: along a line of records the answer is
bisected towards its largest jump, and data sets are compared there. A smooth answer has no jump.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

import numpy as np
import torch
from torch import Tensor

from fedsim.common.seeds import generator
from fedsim.data.source import NO_LABEL
from fedsim.problems.network import NeuralNetwork
from fedsim.protocol.plan import Terms
from fedsim.protocol.rows import Rows
from fedsim.protocol.statistics import statistic
from fedsim.protocol.unit import RECORD
from fedsim.testing.attacks.canaries import alike, record_of, whose
from fedsim.testing.attacks.cohorts import Tap
from fedsim.testing.attacks.likelihood import single
from fedsim.testing.attacks.search import Attack, held, in_full, targets
from fedsim.testing.attacks.setting import Kind, Setting

_PARTS = 8  # that a part of a line is cut into
_LEAST = 0.02  # change over a part, as a share of all units, below which it is not cut
_NARROW = 2**-20  # of a line: so short a part with such a change has a jump
_MOST = 150  # answers at most to find a jump
_SMOOTH = 6  # lines in a row without a jump, of an answer that is taken to have none
_AROUND = 8  # records on either side of a jump
_ROWS = 64  # kernels take so many rows together, or a divisor of it; what is left over may go another way
_TERMLESS = 3  # candidates without a term
Sums = list[Tensor]  # of every query, over its sensitivity


def search(
    setting: Setting, silo: int, kind: Kind, chosen: Attack, answers: int
) -> Iterator[tuple[float, str]]:
    """How far neighbouring data sets are apart over the sensitivity, and which they are, pair by pair; from
    about so many answers of the gate. Only for sums over records, which differ in whole units.
    """
    known = [statistic(query.statistic) for ask in kind.asks for query in ask.queries]
    summed = all(not each.drawn and each.unit == "record" for each in known)
    if not summed or setting.groups_alone or setting.swapped > 1:
        return
    number, smooth = silo, 0  # each of many silos, with a line or two, begins with another
    while answers > 0 and smooth < _SMOOTH:
        line, found = _Line(setting, silo, kind, number), []
        with suppress(Exception):  # the search among candidates finds what an error tells
            found = list(line.search(chosen))
        yield from found
        answers, number, smooth = answers - line.asked, number + 1, 0 if found else smooth + 1


def _point(setting: Setting, rng: np.random.Generator) -> Tensor:
    """A model (d,); of a network one whose hidden units have their kinks at the same records."""
    problem, dtype = setting.resolved.problem, setting.resolved.dtype
    if not isinstance(problem, NeuralNetwork):
        return torch.as_tensor(rng.standard_normal(problem.dimension)).to(dtype)
    drawn = [3 * rng.standard_normal(tuple(shape)) for shape in problem.shapes.values()]
    last = max(i for i, own in enumerate(drawn) if own.ndim > 1)
    equal = [np.broadcast_to(own[:1], own.shape) for own in drawn[:last]]
    flat = [own.ravel() for own in (*equal, drawn[last], *(0 * own for own in drawn[last + 1 :]))]
    return torch.as_tensor(np.concatenate(flat)).to(dtype)


class _Line:
    """Records in a row, and a silo whose units but one are the record at a place of it."""

    def __init__(self, setting: Setting, silo: int, kind: Kind, number: int) -> None:
        problem, outline, unit = setting.resolved.problem, setting.resolved.outline, setting.unit
        rng = generator("audit kinks", setting.resolved.scenario.seed, silo, number)
        self._setting, self._kind, self._n, self.asked = setting, kind, setting.admitted[silo].terms.n, 0
        start, turn = rng.standard_normal((2, problem.num_features))
        self._start, self._way = 2 * start, turn - 4 * start
        valid, _ = targets(problem, outline.num_classes)
        self._target = valid[rng.integers(2)] if outline.num_classes else float(rng.standard_normal())
        self._group = 0 if outline.groups else NO_LABEL
        self._steps = int(4 / torch.finfo(setting.resolved.dtype).eps)
        self._last = self._steps * problem.num_features
        # records of a unit, and to a copy, the rest of which count as zero; bound `limit` draws who counts
        one = unit == RECORD or unit.bound == "limit"
        layouts = ((1, 2), (1, 2), (1, 1)) if one else ((2, 2), (2, 1), (1, 2))
        self._each, self._every = layouts[number % len(layouts)]
        self._poisson = any(ask.batch.sampler == "poisson" for ask in kind.asks)
        names = [name for name, size in kind.arrays if size == problem.dimension]
        chosen = names[number % max(1, len(names)) :][:1]
        self._broadcast = {**kind.seen[-1], **{name: _point(setting, rng) for name in chosen}}

    def search(self, chosen: Attack) -> Iterator[tuple[float, str]]:
        """Neighbouring data sets around a jump, if there is one."""
        if (jump := self._jump()) is None:
            return
        units = self._units(chosen, jump)
        pairs = np.argwhere(np.triu(self._setting.related(units), 1)).tolist()
        eps = torch.finfo(self._setting.resolved.dtype).eps
        steps = np.arange(-_AROUND, _AROUND + 1)[:, None] * eps / 4 * np.abs(jump).max()
        # the records around it differ by fractions of the largest feature's last bit, in the smallest one
        for near in jump + steps * (np.arange(len(jump)) == np.abs(jump).argmin()):
            sums = [self._sums([self._data(unit, near)])[0] for unit in units]
            for a, b in pairs:
                sizes = f"{len(units[a].target)} against {len(units[b].target)} records"
                yield self._moved(sums[a], sums[b]), f"all others at a kink, {sizes}"

    def _at(self, place: int) -> np.ndarray:
        """The features at a place: from one to the next, one of them changes by a bit or two."""
        step, ahead = divmod(place, len(self._start))
        steps = step + (np.arange(len(self._start)) < ahead)
        return np.asarray(self._start + steps / self._steps * self._way)

    def _data(self, unit: Rows, x: np.ndarray) -> Rows:
        """The unit in front of the others where it can shift them, else behind."""
        rows, front = np.arange((self._n - 1) * self._each), self._poisson or self._setting.unit != RECORD
        copies = np.where((rows % self._every == 0)[:, None], x, np.nan)
        rest = Rows(copies, 0.0 * rows + self._target, 0 * rows + self._group, front + rows // self._each)
        own = unit._replace(owners=0 * whose(unit) + (0 if front else len(rows)))
        return Rows.joined((own, rest) if front else (rest, own))

    def _sums(self, data: Sequence[Rows], n: int | None = None) -> list[Sums]:
        """Of each data set, for full batches and at the same points in all of them."""
        self.asked += 1
        n = n or self._n
        terms = [Terms(f"{i}", n, inf, 1e-5, range(1)) for i in range(len(data))]
        tap = Tap(full=True, tell=lambda _, heard: tuple(map(torch.zeros_like, heard.answers)))
        in_full(self._setting, self._kind, tap, data, 1, terms).answer(0, self._broadcast)
        heard = [own for each in tap.take() for own in zip(each.queries, each.answers, strict=True)]
        sums = [rows.double() * (n / float(self._setting.scale(single(query)))) for query, rows in heard]
        return [[rows[i] for rows in sums] for i in range(len(data))]

    def _moved(self, one: Sums, other: Sums) -> float:
        """The largest distance, less what rounding the answers may add."""
        eps, pairs = torch.finfo(self._setting.resolved.dtype).eps, zip(one, other, strict=True)
        return max(0.0, *(float((a - b).norm() - 2 * eps * (a.norm() + b.norm())) for a, b in pairs))

    def _jump(self) -> np.ndarray | None:
        """The features before the largest jump; None if there is none."""
        unit, parts = alike((self._start, self._target, self._group), 1), [(-inf, 0, self._last)]
        while parts and self.asked < _MOST:
            change, low, high = heappop(parts)
            wide = high - low > _NARROW * self._last
            if wide and -change < _LEAST * self._n:
                return None
            if high - low == 1:
                return self._at(low)
            places = sorted({low + (high - low) * k // _PARTS for k in range(_PARTS + 1)})
            sums = self._sums([self._data(unit, self._at(each)) for each in places])
            parts = parts if wide else []  # the largest part of a jump is all of it
            for (a, one), (b, other) in pairwise(zip(places, sums, strict=True)):
                heappush(parts, (-self._moved(one, other), a, b))
        return None

    def _units(self, chosen: Attack, x: np.ndarray) -> list[Rows]:
        """The units in each other's place: with opposite terms, of as many records as make whole rows and of
        one less, or of one; and some that add nothing, as one may on which a module raises, or nobody.
        """
        unit, whole = self._setting.unit, 1 + -((self._n - 1) * self._each + 1) % _ROWS
        counts = (1,) if unit == RECORD else (whole, whole + _ROWS - 1 if self._each > 1 else 1)
        found = [alike((by * x, self._target, self._group), count) for by in (-1.0, 0.5) for count in counts]
        if unit.one_sided or self._poisson:
            found.append(found[0].of(slice(0)))
        may_hold = held(self._setting)
        some = [own for own in chosen.canaries if own.n and may_hold(record_of(own, 0))]
        sums = self._sums([own._replace(owners=0 * whose(own)) for own in some], 1)
        silent = [own for own, each in zip(some, sums, strict=True) if not any(map(torch.any, each))]
        return found + list({own.features.tobytes(): own for own in silent}.values())[:_TERMLESS]
