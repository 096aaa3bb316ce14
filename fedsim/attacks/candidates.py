"""Records and points that a hostile party would try. Made of public numbers and one record of the silo's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest

import numpy as np
import torch
from torch import Tensor

from fedsim.attacks.bench import Record
from fedsim.attacks.setting import Broadcast, Kind, Setting
from fedsim.common.seeds import generator
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork

_BALANCING_STEPS = 150
_HUGE = (1e3, 1e6, 1e11, 1e30)
_MOST_POINTS = 60


def targets(problem: Problem, classes: int) -> tuple[list[float], list[float]]:
    """Targets that the loss is defined for, the two most opposed first, and others."""
    invalid = [float("nan"), float("inf"), -1.0, 0.5, float(classes or 2), 1e9, 1e300, -float("inf")]
    if bool(problem.accepts(torch.tensor(0.5, dtype=torch.float64))):
        return [1e3, -1e3, 0.0, 1.0, -1.0, 1e9, -1e9], [float("nan"), float("inf"), 1e300]
    return [0.0, 1.0, float(max(classes, 2) - 1)], invalid


def records(setting: Setting, own: Record, clip: float) -> list[Record]:
    """Records to put in the place of `own`, the most promising ones first; valid ones and others.

    Args:
        clip: the largest clip of the plan.
    """
    valid, invalid = targets(setting.resolved.problem, setting.resolved.outline.num_classes)
    vectors = list(_vectors(own[0], clip, setting.resolved.scenario.seed))
    opposed = [(x, y) for x in vectors for y in valid[:2]]
    others = [(own[0], y) for y in valid[2:] + invalid] + [(_unit(own[0], -1) * clip, y) for y in invalid]
    mirrored = [(own[0], -own[1]), (2 * own[0], own[1])]
    mixed = (pair for pair in zip_longest(opposed, [*others, *mirrored]))
    return [own, *(record for record in chain.from_iterable(mixed) if record is not None)]


def _vectors(x: np.ndarray, clip: float, seed: int) -> Iterator[np.ndarray]:
    """Feature vectors: opposite along an axis, within the declared range [-1, 1], huge, and not finite."""
    rng = generator("audit records", seed, len(x))
    last, first = _unit(x, -1), _unit(x, 0)
    spread = rng.standard_normal(len(x))
    spread /= np.linalg.norm(spread)
    yield from (4 * clip * last, -4 * clip * last, -x, np.zeros_like(x))
    yield from (np.sign(rng.standard_normal(len(x))), 1e9 * x, _with(x, 0, -1.0), _with(x, 0, float("nan")))
    yield from (
        1e5 * first + last,
        last - 1e5 * first,
    )  # at two points of `last` their gradients differ oppositely
    yield from (4 * clip * spread, -4 * clip * spread, np.ones_like(x), -np.ones_like(x))
    yield from (np.full_like(x, float("inf")), _with(x, 0, -float("inf")), 1e300 * x)
    for length in (2 * clip, 16 * clip, 64 * clip, 1e3 * max(1.0, clip)):
        for direction in (last, spread):
            yield length * direction
            yield -length * direction
    for length in (1e3, 30.0):
        yield length * first + last
        yield -length * first + last
    for size in _HUGE:
        yield x * size
        yield np.full_like(x, -size)
    yield from (np.full_like(x, float("nan")), _with(x, -1, float("inf")), 1e-300 * x)


def _with(x: np.ndarray, place: int, value: float) -> np.ndarray:
    changed = x.copy()
    changed[place] = value
    return changed


def _unit(x: np.ndarray, place: int) -> np.ndarray:
    unit = np.zeros_like(x)
    unit[place] = 1.0
    return unit


def vectors(setting: Setting, kind: Kind, more: Sequence[Tensor]) -> list[Tensor]:
    """Parameter vectors to attack at, (d,): near and far, along an axis and along an honest run."""
    problem, dtype, d = setting.resolved.problem, setting.resolved.dtype, setting.resolved.problem.dimension
    rng = generator("audit points", setting.resolved.scenario.seed, d)
    start, zero = setting.start(), torch.zeros(d, dtype=dtype)
    outputs = getattr(problem, "num_outputs", 1)
    found = [start, zero, *more]
    for place in (d - outputs, 0):  # a linear model's parameters of the last and of the first feature
        for size in (1.0, 50.0, 1e6):
            axis = zero.clone()
            axis[place] = size
            found.append(axis)
    normal = torch.as_tensor(rng.standard_normal((2, d))).to(dtype)
    found += [normal[0], 30 * normal[1], 1e6 * normal[0].sign()]
    seen = [broadcast[name] for broadcast in kind.seen[-2:] for name in kind.names]
    found += [point.to(dtype) for point in seen if not torch.equal(point, start)]
    return found


def broadcasts(setting: Setting, kind: Kind, points: Sequence[Tensor]) -> list[Broadcast]:
    """What a server could send in a round of this kind: what it did, and every name at each of `points`.

    Where there are several names, one is at the point and the others opposite, at zero, or at the start.
    """
    if len(kind.names) == 1:
        made: list[Mapping[str, Tensor]] = [{kind.names[0]: point} for point in points]
        return [*made, *kind.seen[-1:]][:_MOST_POINTS]
    made = []
    for point in points:
        for rest in (-point, torch.zeros_like(point), setting.start()):
            for leading in kind.names:
                made.append({name: point if name == leading else rest for name in kind.names})
    return [*kind.seen[-1:], *made][:_MOST_POINTS]


def balanced(setting: Setting, own: Record) -> tuple[list[Record], list[Tensor]]:
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
        scores = problem.slope_scores(x.double().unsqueeze(0), w)
        loss = torch.nn.functional.cross_entropy(scores, wanted)
        if not bool(loss.isfinite()):
            return None
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return w.detach()
