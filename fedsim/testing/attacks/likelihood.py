"""The likelihood ratio of a silo's answers: how much more probable they are in one world than in the other.

The worlds differ in one record. Given how often that record is in an ask's batch (j times, with a public
probability p_j), the ask's answers are Gaussian around L + j E, with E the record's clipped term over K and L
what the others add, so that

    ln P(answers | world) = ln sum_j p_j exp(j <answers - L, E> / s^2 - j^2 |E|^2 / (2 s^2)) + a constant,

summed over an ask's queries inside the exponential, since they share the draw. No other function of the
answers tells more where L is known (Neyman and Pearson). Where batches are full the score is Gaussian with
variance mu^2 = sum |E - E'|^2 / s^2. Any score gives a valid bound; this one gives the best.

What the attacker knows of the records gives L and E: clipped means without noise, at any points, from the
silo's own gate at noise multiplier 0 on full batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TypeGuard, cast

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from fedsim.problems.glm import GeneralisedLinear
from fedsim.protocol.batch import FULL, Batch, Fresh, Part, Poisson, Subsample, WithReplacement
from fedsim.protocol.contract import Algorithm, Asker, Memory, Message, PublicProblem, Query
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.rows import Rows
from fedsim.protocol.statistics import point_sizes, statistic
from fedsim.protocol.unit import RECORD
from fedsim.testing.attacks.canaries import nothing, num_units, replaced
from fedsim.testing.attacks.cohorts import Heard, cohort, sensitivity
from fedsim.testing.attacks.setting import Others, Setting


class ClippedMeans:
    """Silos' clipped means without noise, for queries of given shapes."""

    _query: Query  # that is asked next

    def __init__(self, setting: Setting, silos: Sequence[Rows], runs: int, shapes: Sequence[QueryShape]):
        """`runs` of them side by side, each at points of its own."""
        asks = tuple((Ask(FULL, (replace(shape, noise_ratio=1.0),)),) for shape in shapes)
        problem = setting.resolved.problem
        linear = isinstance(problem, GeneralisedLinear) and setting.unit == RECORD
        sizes = [point_sizes(shape, problem.dimension, problem.num_features) for shape in shapes]
        self._silos, self._runs = len(silos), runs
        data = list(silos) if linear else list(silos) * runs  # else records are not shared by runs
        plan, copies = Plan(asks, setting.unit), runs if linear else 1
        arrays = [tuple((f"p{k}", size) for k, size in enumerate(own)) for own in sizes]
        asking = cast(Algorithm, SimpleNamespace(silo=self._silo, linear=False))
        self._gate = cohort(setting.resolved, asking, plan, data, copies=copies, broadcasts=arrays)

    def means(self, query: Query, place: int = 0) -> Tensor:
        """Clipped means of a query of the shape at `place`, to be asked once; (runs, silos, d). Points are
        (d,) or (runs, d), the clip a number or (runs, 1).
        """
        known = statistic(query.statistic).clipped
        clip = query.clip.detach() if isinstance(query.clip, Tensor) else query.clip
        clip, weight = (clip, 1.0) if known else (1.0, torch.as_tensor(clip).reshape(-1, 1, 1))
        clip = self._each(clip) if _rows(clip) else clip
        self._query = replace(query, points=(), clip=clip, batch=FULL, noise_ratio=1.0)
        broadcast = {f"p{k}": self._each(point.detach()) for k, point in enumerate(query.points)}
        return self._gate.answer(place, broadcast)["g"].view(self._runs, self._silos, -1) * weight

    def _silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """The mean at the points p0, p1."""
        points = tuple(broadcast[name] for name in sorted(broadcast))
        return {"g": ask(replace(self._query, points=points))}

    def _each(self, value: Tensor) -> Tensor:
        """A row for every member."""
        if value.dim() < 2:
            return value
        return value.expand(self._runs, -1).repeat_interleave(self._silos, 0).contiguous()


def _rows(clip: Tensor | float) -> TypeGuard[Tensor]:
    return isinstance(clip, Tensor) and clip.dim() == 2


def narrowed(query: Query) -> Query:
    """The query with one number as its clip, where all members share points and the clip is a column."""
    return single(query) if all(point.dim() == 1 for point in query.points) else query


def single(query: Query, row: int = 0) -> Query:
    """The query of one member."""
    clip = query.clip
    if _rows(clip):
        clip = float(clip[row if len(clip) > 1 else 0, 0])
    points = tuple(point if point.dim() == 1 else point[row] for point in query.points)
    return replace(query, points=points, clip=clip)


def term(setting: Setting, canary: Rows, query: Query) -> Tensor:
    """A unit's term where all points are shared, (d,); the mean of those of a group of records."""
    return ClippedMeans(setting, [canary], 1, [query.shape]).means(query)[0, 0].to(torch.float64)


_RARE = 1e-12
Scale = Callable[[Query], Tensor]


@dataclass(frozen=True)
class Places:
    """Means of a query's answer where a record is drawn j times: base + j first, or base + j second.

    Each (runs, d), or (1, d) where it is the same in all runs.
    """

    base: Tensor
    first: Tensor
    second: Tensor


def draws(batch: Batch, n: int, group: int = 1) -> tuple[Tensor, Tensor]:
    """j and ln p_j: how many of a group's units are in the batch (of disjoint ones given that one is)."""
    size = batch.size(n)
    j = np.arange(1 + (size if isinstance(batch, WithReplacement) else group))
    match batch:
        case Poisson(fraction=q):
            chance = stats.binom.pmf(j, group, q)
        case WithReplacement():
            chance = stats.binom.pmf(j, size, group / n)
        case Subsample() | Fresh() | Part() if isinstance(batch, Subsample) or group > 1:
            chance = stats.hypergeom.pmf(j, n, group, size)
        case _:
            chance = (j == group).astype(float)
    j = np.flatnonzero(chance > _RARE)
    return torch.as_tensor(j, dtype=torch.float64), torch.as_tensor(np.log(chance[j]))


class Scores:
    """Log-likelihood ratios (second world over first) of so many runs, ask by ask."""

    def __init__(
        self, runs: int, n: int, noise_multiplier: float, scale: Scale = sensitivity, group: int = 1
    ) -> None:
        """`scale`: of a query's noise; `group`: units that differ between the worlds, with equal terms."""
        self._n, self._z, self._scale, self._group = n, noise_multiplier, scale, group
        self._total = torch.zeros(runs, dtype=torch.float64)
        # (share of the units, ratio given that the unit is there) of each batch of disjoint ones
        self._disjoint: dict[object, tuple[float, Tensor]] = {}

    def add(self, batch: Batch, heard: Heard, places: Sequence[Places]) -> None:
        """Add an ask's log-likelihood ratio."""
        if heard.answers[0].dim() == 3:
            self._total = self._total + self._unlinked(batch, heard, places)
            return
        j, log_chance = draws(batch, self._n, self._group)
        worlds = []
        for terms in ([place.first for place in places], [place.second for place in places]):
            exponent = log_chance
            for query, answer, place, term in zip(heard.queries, heard.answers, places, terms, strict=True):
                moved = self._scale(query) / batch.size(self._n)
                variance = (query.noise_ratio * self._z * moved).square().reshape(-1)
                inner = ((answer.double() - place.base) * term).sum(-1) / variance
                square = term.square().sum(-1) / variance
                exponent = exponent + j * inner[:, None] - j.square() * square[:, None] / 2
            worlds.append(torch.where(exponent.isnan(), log_chance, exponent).logsumexp(-1))
        ratio = worlds[1] - worlds[0]  # clip 0 releases zero without noise: 0 / 0, which tells nothing
        if isinstance(batch, Fresh | Part) and self._group == 1:
            share = batch.size(self._n) / self._n
            key = batch if isinstance(batch, Part) else len(self._disjoint)
            _, before = self._disjoint.get(key, (share, torch.zeros_like(ratio)))
            self._disjoint[key] = share, before + ratio
        else:
            self._total = self._total + ratio

    def _unlinked(self, batch: Batch, heard: Heard, places: Sequence[Places]) -> Tensor:
        """The ratio where answers are unlinked messages, (runs, messages, d), of full batches."""
        exponent = torch.zeros((), dtype=torch.float64)
        for query, answer, place in zip(heard.queries, heard.answers, places, strict=True):
            moved = float(self._scale(query)) / batch.size(self._n)
            variance = (query.noise_ratio * self._z * moved) ** 2
            apart = (place.second - place.first)[:, None]
            left = answer.double() - (place.base + place.first)[:, None]
            exponent = exponent + ((left * apart).sum(-1) - apart.square().sum(-1) / 2) / variance
        mean: Tensor = exponent.logsumexp(-1) - np.log(exponent.shape[-1])
        return mean

    def ratios(self) -> np.ndarray:
        """ln P(second) / P(first) of each run, (runs,)."""
        total = self._total
        if self._disjoint:  # the record is in one of these batches, or in none of them
            rest = max(0.0, 1 - sum(share for share, _ in self._disjoint.values()))
            terms = [np.log(share) + ratio for share, ratio in self._disjoint.values()]
            nowhere = torch.full_like(terms[0], np.log(max(rest, 1e-300)))
            total = total + torch.stack([*terms, nowhere]).logsumexp(0)
        return np.asarray(total)


Key = tuple[int, int]


class Knowledge:
    """The means of answers in each world, which an attacker who knows the records computes."""

    def __init__(self, setting: Setting, silo: int, first: Rows, second: Rows, kind: Others) -> None:
        self._setting, self._silo, self._kind = setting, silo, kind
        self._silos, own = [first, second], setting.data[silo]
        if kind == "own":
            self._silos.append(replaced(own, nothing(second, setting.unit), setting.place(silo)))
        self._known: dict[Key, list[Places]] = {}

    def clipped_means(self, runs: int, shapes: Sequence[QueryShape]) -> ClippedMeans:
        """The means of both units alone and, where needed, of the others."""
        return ClippedMeans(self._setting, self._silos, runs, shapes)

    def shapes(self) -> dict[tuple[int, int, int], QueryShape]:
        """The shape of every query of the silo's plan, by (round, ask, query)."""
        return {
            (r, a, q): shape
            for r in self._setting.rounds(self._silo)
            for a, ask in enumerate(self._setting.resolved.trace.plan.rounds[r])
            for q, shape in enumerate(ask.queries)
        }

    def alike(self, key: Key, heard: Heard) -> list[Places]:
        """Means of answers at points that all runs share; computed once for equal keys."""
        if key not in self._known:
            clipped = self.clipped_means(1, [query.shape for query in heard.queries])
            means = [clipped.means(narrowed(query), at) for at, query in enumerate(heard.queries)]
            self._known[key] = self.places(means, heard.queries[0].batch)
        return self._known[key]

    def places(self, means: Sequence[Tensor], batch: Batch) -> list[Places]:
        """Means of the answers of an ask, from the clipped means (runs, silos, d) of its queries."""
        n = self._setting.admitted[self._silo].terms.n
        size = batch.size(n)
        found, others = [], max(1, num_units(self._silos[-1], self._setting.unit)) / n
        for mean in means:
            first, second = mean[:, 0].double(), mean[:, 1].double()
            if self._kind == "own":
                found.append(Places(mean[:, 2].double() * others, first / size, second / size))
            elif self._kind == "copies":
                found.append(Places(first, torch.zeros_like(first), (second - first) / size))
            else:
                found.append(Places(torch.zeros_like(first), first / size, second / size))
        return found


class InRuns:
    """`Knowledge` at the points of so many runs; common points are computed once."""

    def __init__(self, knowledge: Knowledge, runs: int) -> None:
        self._knowledge, self._runs = knowledge, runs
        self._means: ClippedMeans | None = None
        self._index: dict[tuple[int, int, int], int] = {}

    def places(self, heard: Heard, at: tuple[int, int], key: Key | None = None) -> list[Places]:
        """Means of the answers of the ask `at` (round, ask); equal keys are asked at equal points."""
        if all(point.dim() == 1 for query in heard.queries for point in query.points):
            return self._knowledge.alike(key or at, heard)
        if self._means is None:
            shapes = self._knowledge.shapes()
            self._means = self._knowledge.clipped_means(self._runs, list(shapes.values()))
            self._index = {where: place for place, where in enumerate(shapes)}
        pairs = [(narrowed(query), self._index[(*at, q)]) for q, query in enumerate(heard.queries)]
        return self._knowledge.places([self._means.means(*each) for each in pairs], heard.queries[0].batch)
