"""The pair of records and the broadcasts that would tell most, found without noise and without the silo.

Only candidates' own terms are looked at, so what is found is a choice of attack. What it attains, and whether
a silo's answer really moves by no more than it should, is then tried on the silo (`sensitivity`, `servers`).
Candidates are made of public numbers and one record of the silo's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from math import hypot, inf, isfinite

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.common.seeds import generator
from fedsim.data.source import NO_LABEL
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork
from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.groups import Cells
from fedsim.protocol.plan import Plan, QueryShape, Terms
from fedsim.protocol.rows import Rows
from fedsim.protocol.statistics import COSTED_GRADIENT
from fedsim.testing.attacks.canaries import Record, alike, record_of, replaced, whose
from fedsim.testing.attacks.cohorts import Heard, Tap, Wiretap, cohort
from fedsim.testing.attacks.setting import Broadcast, Kind, Setting, beside, others
from silos.front.served import Served

_BALANCING_STEPS = 150
_HUGE = (1e3, 1e6, 1e11, 1e30)
_MOST_POINTS = 60
Labelled = tuple[np.ndarray, float]  # features (f,) and target of a record


def targets(problem: Problem, classes: int) -> tuple[list[float], list[float]]:
    """Targets that the loss is defined for, the two most opposed first, and others."""
    invalid = [float("nan"), float("inf"), -1.0, 0.5, float(classes or 2), 1e9, 1e300, -float("inf")]
    if bool(problem.accepts(torch.tensor(0.5, dtype=torch.float64))):
        return [1e3, -1e3, 0.0, 1.0, -1.0, 1e9, -1e9], [float("nan"), float("inf"), 1e300]
    return [0.0, 1.0, float(max(classes, 2) - 1)], invalid


def records(setting: Setting, own: Labelled, clip: float) -> list[Labelled]:
    """Records, valid and others, for the place of `own`, the most promising first, for this largest clip."""
    valid, invalid = targets(setting.resolved.problem, setting.resolved.outline.num_classes)
    vectors = list(_vectors(own[0], clip, setting.resolved.scenario.seed))
    opposed = [(x, y) for x in vectors for y in valid[:2]]
    others = [(own[0], y) for y in valid[2:] + invalid] + [(_unit(own[0], -1) * clip, y) for y in invalid]
    mixed = zip_longest(opposed, [*others, (own[0], -own[1]), (2 * own[0], own[1])])
    return [own, *(record for record in chain.from_iterable(mixed) if record is not None)]


def _vectors(x: np.ndarray, clip: float, seed: int) -> Iterator[np.ndarray]:
    """Feature vectors: opposite along an axis, within the declared range [-1, 1], huge, and not finite."""
    rng = generator("audit records", seed, len(x))
    last, first = _unit(x, -1), _unit(x, 0)
    spread = rng.standard_normal(len(x))
    spread /= np.linalg.norm(spread)
    yield from (4 * clip * last, -4 * clip * last, -x, np.zeros_like(x))
    yield from (np.sign(rng.standard_normal(len(x))), 1e9 * x, _with(x, 0, -1.0), _with(x, 0, float("nan")))
    # At two points of `last` the gradients of these two differ oppositely.
    yield from (1e5 * first + last, last - 1e5 * first)
    yield from (4 * clip * spread, -4 * clip * spread, np.ones_like(x), -np.ones_like(x))
    yield from (np.full_like(x, float("inf")), _with(x, 0, -float("inf")), 1e300 * x)
    for length in (2 * clip, 16 * clip, 64 * clip, 1e3 * max(1.0, clip)):
        yield from (length * direction for direction in (last, -last, spread, -spread))
    yield from (length * first + last for length in (1e3, -1e3, 30.0, -30.0))
    for size in _HUGE:
        yield from (x * size, np.full_like(x, -size))
    yield from (np.full_like(x, float("nan")), _with(x, -1, float("inf")), 1e-300 * x)


def _with(x: np.ndarray, place: int, value: float) -> np.ndarray:
    changed = x.copy()
    changed[place] = value
    return changed


def _unit(x: np.ndarray, place: int) -> np.ndarray:
    return _with(np.zeros_like(x), place, 1.0)


def vectors(setting: Setting, kind: Kind, more: Sequence[Tensor]) -> list[Tensor]:
    """Parameter vectors to attack at, (d,): near and far, along an axis and along an honest run."""
    problem, dtype, d = setting.resolved.problem, setting.resolved.dtype, setting.resolved.problem.dimension
    rng = generator("audit points", setting.resolved.scenario.seed, d)
    start, zero = setting.start(), torch.zeros(d, dtype=dtype)
    found = [start, zero, *more]
    for place in (d - problem.num_outputs, 0):  # of a linear model's last and of its first feature
        for size in (1.0, 50.0, 1e6):
            axis = zero.clone()
            axis[place] = size
            found.append(axis)
    normal = torch.as_tensor(rng.standard_normal((2, d))).to(dtype)
    found += [normal[0], 30 * normal[1], 1e6 * normal[0].sign()]
    seen = [each[name] for each in kind.seen[-2:] for name, size in kind.arrays if size == d]
    found += [point.to(dtype) for point in seen if not torch.equal(point, start)]
    return found


def broadcasts(setting: Setting, kind: Kind, points: Sequence[Tensor]) -> list[Broadcast]:
    """Broadcasts to try in a round of this kind: one of an honest run, and every name at each of `points`.
    Where there are several names, one is at the point and the others opposite, at zero, or at the start; a
    table of costs by group is zero, or as far as the plan lets it reach.
    """
    if len(kind.names) == 1:
        made: list[Mapping[str, Tensor]] = [{kind.names[0]: point} for point in points]
        return [*made, *kind.seen[-1:]][:_MOST_POINTS]
    queries = [query for ask in kind.asks for query in ask.queries if query.statistic == COSTED_GRADIENT.name]
    costs = [table for query in queries for table in _tables(query, setting.resolved.dtype)]
    made = [
        {other: table if other == name else point for other in kind.names}
        for point in points
        for table in costs
        for name, size in kind.arrays
        if size == len(table)
    ]
    for point in () if costs else points:
        for rest in (-point, torch.zeros_like(point), setting.start()):
            for leading in kind.names:
                made.append({name: point if name == leading else rest for name in kind.names})
    return [*kind.seen[-1:], *made][:_MOST_POINTS]


def _tables(query: QueryShape, dtype: torch.dtype) -> list[Tensor]:
    cells, reach = Cells.of(query.options), query.options[3]
    found = torch.zeros(3, *cells.shape, dtype=dtype)
    found[1, 0, :, 0], found[2, 0, :, 0] = reach, -reach
    return list(found.flatten(1))


def balanced(setting: Setting, own: Labelled) -> tuple[list[Labelled], list[Tensor]]:
    """For a classifying network: records that differ in their class alone, and points at which these two
    classes are equally likely and the others are not, so that the gradients are exactly opposite.

    Found by gradient steps on the parameters, without any silo.
    """
    problem = setting.resolved.problem
    if not isinstance(problem, NeuralNetwork) or problem.num_outputs < 2:
        return [], []
    found_records, found_points = [], []
    for scale in (1.0, 30.0):
        x = scale * np.where(np.isfinite(own[0]), own[0], 0.0)
        point = _balance(problem, torch.as_tensor(x), 3.0 * setting.start().double())
        if point is not None:
            found_records += [(x, 0.0), (x, 1.0)]
            found_points.append(point.to(setting.resolved.dtype))
    return found_records, found_points


def _balance(problem: NeuralNetwork, x: Tensor, start: Tensor) -> Tensor | None:
    wanted = torch.zeros(1, problem.num_outputs, dtype=torch.float64)
    wanted[0, :2] = 0.5
    w = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([w], lr=0.05)
    for _ in range(_BALANCING_STEPS):
        loss = torch.nn.functional.cross_entropy(problem.slope_scores(x.double().unsqueeze(0), w), wanted)
        if not bool(loss.isfinite()):
            return None
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return w.detach()


_PATHS = 4  # ways of an honest silo method through a round of several asks that a choice is averaged over


@dataclass(frozen=True)
class Attack:
    """The two units that differ, and the broadcasts of a malicious server."""

    first: Rows  # the unit of one world
    second: Rows  # that of the other
    broadcasts: tuple[Broadcast, ...]  # by kind of round, what it sends
    # by kind, how far the two terms are from each other, over the sensitivity: 1 is the most there can be
    ratios: tuple[float, ...]
    canaries: tuple[Rows, ...]  # every candidate unit, the most promising ones first
    points: tuple[tuple[Broadcast, ...], ...]  # by kind, candidate broadcasts that silos accept, likewise

    def worlds(self, setting: Setting, silo: int) -> tuple[Rows, Rows]:
        """The silo's neighbouring data sets."""
        data = beside(setting, silo, others(setting, silo), self.first)
        place = setting.place(silo)
        return replaced(data, self.first, place), replaced(data, self.second, place)


def search(setting: Setting, silo: int, allowed: Callable[[Record], bool] = lambda _: True) -> Attack:
    """Choose among all allowed pairs and points those of the largest sum of squared distances."""
    data = setting.data[silo]
    there = record_of(data, int(np.searchsorted(whose(data), setting.place(silo))))
    own = there[:2]
    pair_records, pair_points = balanced(setting, own)
    pairs = [*pair_records, *records(setting, own, _largest_clip(setting, there))]
    if setting.groups_alone:  # a claim about records as they are
        allowed = held(setting)
        most = setting.longest
        pairs = [(x * (most / hypot(*x)) if most < hypot(*x) < inf else x, y) for x, y in pairs]
    codes = (0, 1, NO_LABEL) if setting.resolved.outline.groups else (NO_LABEL,)
    valid = [record for pair in pairs for code in codes if allowed(record := (*pair, code))]
    every = setting.canaries(silo, valid)
    tried = _usable(setting, silo, every)
    total, found = torch.zeros(len(tried), len(tried), dtype=torch.float64), []
    for kind in setting.kinds:
        points = broadcasts(setting, kind, vectors(setting, kind, pair_points))
        accepted, squares = _distances(setting, silo, kind, points, tried)
        total += len(kind.rounds) * kind.weight * squares.amax(0)
        found.append((accepted, squares))
    total[torch.from_numpy(~setting.related(tried))] = -1.0
    a, b = divmod(int(total.argmax()), len(tried))
    a, b = sorted((a, b), key=lambda each: len(tried[each].target))  # the others may be copies of the first
    best = [(points, squares, int(squares[:, a, b].argmax())) for points, squares in found]
    chosen = tried[a], tried[b]
    return Attack(
        *chosen,
        tuple(points[at] for points, _, at in best),
        tuple(float(squares[at, a, b]) ** 0.5 for _, squares, at in best),
        (*chosen, *(canary for canary in every if not any(canary is one for one in chosen))),
        tuple(_ordered(points, squares, at) for points, squares, at in best),
    )


def held(setting: Setting) -> Callable[[Record], bool]:
    """Whether a silo may hold a record at all: finite, with a target that the loss is defined for."""
    problem, classes = setting.resolved.problem, setting.resolved.outline.num_classes

    def held(record: Record) -> bool:
        features, target, _ = record
        if not np.isfinite(features).all() or not isfinite(target):
            return False
        named = classes == 0 or (target == int(target) and 0 <= target < classes)
        return named and bool(problem.accepts(torch.tensor(target, dtype=torch.float64)))

    return held


def _usable(setting: Setting, silo: int, every: list[Rows]) -> list[Rows]:
    """The units whose term can be computed; a plug-in problem may raise on others."""

    def works(some: list[Rows]) -> bool:
        try:
            return all(_hear(setting, silo, kind, kind.seen[-1:], some, 0) for kind in setting.kinds)
        except Refused:
            raise
        except Exception:
            return False

    return every if works(every) else [canary for canary in every if works([canary])]


def _ordered(points: Sequence[Broadcast], squares: Tensor, best: int) -> tuple[Broadcast, ...]:
    """The chosen point, then others in turn: the most telling one left, and the next in the list."""
    by_size = squares.flatten(1).amax(1).argsort(descending=True).tolist()
    turns = [place for pair in zip(by_size, range(len(points)), strict=True) for place in pair]
    return tuple(points[place] for place in dict.fromkeys([best, *turns]))


def _largest_clip(setting: Setting, own: Record) -> float:
    """The largest clipping norm of the plan's queries, at broadcasts of an honest run."""
    clips = [1e-6]
    for kind in setting.kinds:
        for heard in _hear(setting, 0, kind, [kind.seen[-1]], [alike(own, 1)], 0):
            clips += [float(torch.as_tensor(query.clip).max()) for each in heard[1] for query in each.queries]
    return max(clips)


def _distances(
    setting: Setting, silo: int, kind: Kind, points: Sequence[Broadcast], tried: Sequence[Rows]
) -> tuple[list[Broadcast], Tensor]:
    """The broadcasts that are accepted; (distance over sensitivity)^2, (broadcasts, records, records)."""
    paths = _PATHS if sum(len(ask.queries) for ask in kind.asks) > 1 else 1
    totals: dict[int, Tensor] = {}
    for path in range(paths):
        for place, heard in _hear(setting, silo, kind, points, tried, path):
            square = sum((_square(setting, each) for each in heard), torch.zeros(()))
            totals[place] = totals.get(place, torch.zeros(())) + square / (paths * kind.weight)
    if not totals:
        raise Refused("the silos accept none of the broadcasts that the audit would try")
    return [points[place] for place in totals], torch.stack(list(totals.values()))


def _square(setting: Setting, heard: Heard) -> Tensor:
    """Sum over an ask's queries of (distance / (sensitivity ratio))^2 between all pairs of members."""
    total = torch.zeros(())
    for query, answer in zip(heard.queries, heard.answers, strict=True):
        scale = setting.scale(query).reshape(-1, 1) * query.noise_ratio
        scaled = torch.where(scale > 0, answer.double() / scale, 0.0)
        total = total + torch.cdist(scaled, scaled).square()
    return total


def _hear(
    setting: Setting, silo: int, kind: Kind, points: Sequence[Broadcast], tried: Sequence[Rows], path: int
) -> list[tuple[int, list[Heard]]]:
    """(place, asks) of the points that are accepted, for silos of one unit each.

    In a round of several asks the silo method goes on from noise of its size, the same for all records.
    """
    rng = generator("audit path", setting.resolved.scenario.seed, silo, path)
    tap = Tap(full=True, tell=lambda k, heard: _noise_alone(setting, silo, kind.asks[k].batch, heard, rng))
    gate, found = in_full(setting, kind, tap, tried, len(points)), []
    for place, broadcast in enumerate(points):
        try:
            gate.answer(place, broadcast)
        except Refused:
            tap.take()
            continue
        found.append((place, tap.take()))
    return found


def in_full(
    setting: Setting, kind: Kind, tap: Tap, data: Sequence[Rows], rounds: int, terms: Sequence[Terms] = ()
) -> Served:
    """A gate without noise over silos with these data, for so many rounds of the kind in full batches."""
    plan = Plan((tuple(replace(ask, batch=FULL) for ask in kind.asks),) * rounds, setting.unit)
    wiretap, arrays = Wiretap(setting.resolved.gate_algorithm, tap), [kind.arrays] * rounds
    return cohort(setting.resolved, wiretap, plan, data, terms=terms, broadcasts=arrays)


def _noise_alone(
    setting: Setting, silo: int, batch: Batch, heard: Heard, rng: np.random.Generator
) -> tuple[Tensor, ...]:
    admitted = setting.admitted[silo]
    size = batch.size(admitted.terms.n)
    answers = []
    for query, answer in zip(heard.queries, heard.answers, strict=True):
        sigma = query.noise_ratio * admitted.noise_multiplier * setting.sensitivity(query) / size
        drawn = torch.as_tensor(rng.standard_normal(answer.shape[1]))
        answers.append((sigma * drawn).expand_as(answer).to(answer.dtype).clone())
    return tuple(answers)
