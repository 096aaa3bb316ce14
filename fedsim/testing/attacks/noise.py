"""The noise itself: of the stated size and law, and new in every answer.

A silo whose records all count as zero answers with noise alone, whatever the batch. Over the standard
deviation that the plan was priced for, its numbers are standard normal and independent. No test fits
anything to them. The alarm rate is shared out evenly over the tests (Bonferroni); the rows of a test are
taken together by Sidak's formula, 1 - (1 - p)^k for the least of k p-values.

Noise on a grid, or rounded to a type, is not quite normal: `step` bounds the distance of neighbouring values,
in standard deviations. Then a value has a probability of at most 0.4 step (the normal density is below 0.4),
and the distribution function differs from the normal one by at most that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from fedsim.data.source import NO_LABEL
from fedsim.protocol.contract import Query
from fedsim.protocol.statistics import size_of, statistic
from fedsim.testing.attacks.canaries import alike, num_units
from fedsim.testing.attacks.cohorts import Heard, Tap
from fedsim.testing.attacks.likelihood import single, term
from fedsim.testing.attacks.search import Attack
from fedsim.testing.attacks.setting import Setting, beside

_COORDINATES, _ANSWERS = 64, 300
_NUMBERS, _FEWEST, _LEAST, _MOST = 400_000, 128, 16, 1024
"""Numbers to test the noise by (0.99 of it is then off by nine deviations), and how many clones say them."""
_DENSITY = 0.4


class _Test(NamedTuple):
    """The probability of what was seen or worse, if the noise is right; what was; the fault."""

    p: float
    seen: float
    fault: str


@dataclass(frozen=True)
class Measured:
    """Noise over what is stated, and what is wrong with it."""

    ratio: float = 1.0  # measured over stated standard deviation, of all answers together
    repeated: float = 0.0  # the largest correlation between two answers' noise
    faults: tuple[str, ...] = ()  # in words; empty unless its probability by chance is below the alarm rate
    p_values: dict[str, float] = field(default_factory=dict)  # of the tests, by name

    @property
    def p(self) -> float:
        """The p-value of all tests together (Bonferroni)."""
        return min(1.0, len(self.p_values) * min(self.p_values.values(), default=1.0))


def measure(setting: Setting, silo: int, chosen: Attack, alarm: float) -> Measured:
    """Judge the noise of a silo's clones; right noise is called wrong with probability `alarm`."""
    return judged(*_standardised(setting, silo, chosen), alarm)


def judged(noise: np.ndarray, step: float, alarm: float) -> Measured:
    """Test noise over its stated standard deviation, (answers, clones, coordinates)."""
    if not noise.size:
        return Measured()
    noise = np.nan_to_num(noise, nan=1e9, posinf=1e9, neginf=-1e9)
    answers, clones, _ = noise.shape
    pooled, own = noise.reshape(1, -1), noise.reshape(answers, -1)
    tests = {
        "law": _law(pooled, step, "the noise"),
        "law by answer": _law(own, step, "answer {}"),
        "size": _size(pooled, step, "the noise"),
        "size by answer": _size(own, step, "answer {}"),
        "size by vector": _size(noise.reshape(answers * clones, -1), step, "one vector"),
        "largest": _largest(noise),
        "zeros": _zeros(noise, step),
        "repeats": _repeats(noise, step),
        "between answers": _correlation(own),
        "between clones": _correlation(noise.transpose(1, 0, 2).reshape(clones, -1)),
    }
    repeated = max(tests["between answers"].seen, tests["between clones"].seen)
    faults = tuple(test.fault for test in tests.values() if test.p < alarm / len(tests))
    return Measured(tests["size"].seen, repeated, faults, {name: test.p for name, test in tests.items()})


def _of_all(p: float, count: int) -> float:
    """Sidak: of the least of so many."""
    return float(-special.expm1(count * special.log1p(-min(1.0, p))))


def _law(rows: np.ndarray, step: float, who: str) -> _Test:
    """Kolmogorov and Smirnov's exact law of the largest distance from the normal distribution function."""
    n = rows.shape[1]
    normal, share = special.ndtr(np.sort(rows, axis=1)), np.arange(n + 1) / n
    distances = np.maximum(normal - share[:-1], share[1:] - normal).max(1)
    place = int(distances.argmax())
    distance = float(distances[place])
    p = float(stats.kstwo.sf(max(0.0, distance - _DENSITY * step), n))
    fault = f"{who.format(place)} is not normal: {distance:.3g} from its distribution function"
    return _Test(_of_all(p, len(rows)), distance, fault)


def _size(rows: np.ndarray, step: float, who: str) -> _Test:
    """The sum of a row's squares is chi-square, numbers moved by a step at most; too much is wrong too."""
    far, n = np.abs(rows), rows.shape[1]
    less = stats.chi2.cdf(np.square(far + step).sum(1), n)
    p = 2 * np.minimum(less, stats.chi2.sf(np.square(np.maximum(0, far - step)).sum(1), n))
    place = int(p.argmin())
    ratio = float(np.sqrt(np.square(rows[place]).mean()))
    fault = f"{who.format(place)} has {ratio:.3g} times the noise that is stated"
    return _Test(_of_all(float(p[place]), len(rows)), ratio, fault)


def _largest(noise: np.ndarray) -> _Test:
    """The largest of N is at most m with probability (2 Phi(m) - 1)^N; two-sided."""
    most = float(np.abs(noise).max())
    inside = noise.size * special.log1p(-2 * special.ndtr(-most))  # the logarithm
    p = 2 * min(math.exp(inside), -math.expm1(inside))
    fault = f"the largest of {noise.size:,} numbers of noise is {most:.3g} standard deviations"
    return _Test(min(1.0, p), most, fault)


def _zeros(noise: np.ndarray, step: float) -> _Test:
    """At most three values lie within a step of zero; their count is binomial."""
    count = int((np.abs(noise) <= step).sum())
    p = float(stats.binom.sf(count - 1, noise.size, min(1.0, 3 * _DENSITY * step)))
    return _Test(p, count, f"{count:,} of {noise.size:,} numbers have no noise")


def _repeats(noise: np.ndarray, step: float) -> _Test:
    """The number of equal pairs among C(N, 2) is Poisson, with a mean of at most 0.4 step each."""
    _, counts = np.unique(noise, return_counts=True)
    pairs = float((counts * (counts - 1.0) / 2).sum())
    p = float(stats.poisson.sf(pairs - 1, noise.size * (noise.size - 1) / 2 * _DENSITY * step))
    return _Test(p, pairs, f"{pairs:,.0f} pairs of numbers of noise are equal")


def _correlation(rows: np.ndarray) -> _Test:
    """The square of two rows' correlation about zero has the law Beta(1/2, (n - 1) / 2)."""
    count, n = rows.shape
    if min(count, n) < 2:
        return _Test(1.0, 0.0, "")
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(length > 0, length, 1)
    products = np.abs(unit @ unit.T)
    np.fill_diagonal(products, 0)
    largest = min(1.0, float(products.max()))
    p = float(stats.beta.sf(largest**2, 0.5, (n - 1) / 2))
    fault = f"the noise of two answers has correlation {largest:.3g}"
    return _Test(_of_all(p, count * (count - 1) // 2), largest, fault)


def _standardised(setting: Setting, silo: int, chosen: Attack) -> tuple[np.ndarray, float]:
    """Noise over its stated standard deviation, (answers, clones, coordinates), and its step."""
    tap, terms = Tap(), setting.admitted[silo].terms
    silent = beside(setting, silo, "silent", chosen.first)
    clones = clones_of(setting, silo)
    streams = [f"noise/{silo}/{clone}" for clone in range(clones)]
    gate = setting.gate(tap, [silo] * clones, [silent] * clones, streams)
    found: list[np.ndarray] = []
    step = float(torch.finfo(setting.resolved.dtype).eps)
    for r in terms.rounds:
        if r not in setting.kind_of or len(found) >= _ANSWERS:
            continue
        gate.answer(r, chosen.broadcasts[setting.kind_of[r]])
        for heard in tap.take():
            rows, coarse = _over_stated(setting, silo, heard)
            found, step = found + rows, max(step, coarse)
    return np.stack(found) if found else np.empty((0, 0, 0)), step


def _coordinates(setting: Setting, silo: int) -> int:
    """The number of coordinates tested of each answer: more where there are few answers."""
    few = _NUMBERS // (_FEWEST * _answers(setting, silo))
    problem, queries = setting.resolved.problem, setting.resolved.trace.plan.queries
    smallest = min(size_of(query, problem.dimension, problem.num_features) for query in queries)
    return min(smallest, max(_COORDINATES, few))


def _answers(setting: Setting, silo: int) -> int:
    return min(_ANSWERS, max(1, setting.admitted[silo].releases))


def clones_of(setting: Setting, silo: int) -> int:
    """The number of clones whose noise is tested."""
    wanted = _NUMBERS // (_answers(setting, silo) * _coordinates(setting, silo))
    return max(_LEAST, min(_MOST, max(_FEWEST, wanted)) // setting.together)


def _over_stated(setting: Setting, silo: int, heard: Heard) -> tuple[list[np.ndarray], float]:
    """Answers over the noise that is stated, and the coarsest of their steps."""
    rows, steps, coordinates = [], [0.0], _coordinates(setting, silo)
    for query, answer in zip(heard.queries, heard.answers, strict=True):
        size = query.batch.size(setting.admitted[silo].terms.n)
        multiplier, step = _stated(setting, silo, query)
        sigma = multiplier * setting.sensitivity(query).reshape(-1, 1) / size
        if bool((sigma > 0).all()):
            rows.append(((answer.double() - _quiet(setting, silo, query))[:, :coordinates] / sigma).numpy())
            steps.append(step)
    return rows, max(steps)


def _quiet(setting: Setting, silo: int, query: Query) -> Tensor | float:
    """The silo's mean where all records count as zero: not zero for a statistic that counts them."""
    if statistic(query.statistic).gradient:
        return 0.0
    own = setting.data[silo]
    nothing = alike((np.full(own.features.shape[1], np.nan), float("nan"), NO_LABEL), 1)
    share = num_units(own, setting.unit) / setting.admitted[silo].terms.n
    return term(setting, nothing, single(query)) * share


def _stated(setting: Setting, silo: int, query: Query) -> tuple[float, float]:
    """The multiplier of a query's noise, as priced, and its step on a grid.

    With secure aggregation the price is that of the silo's heaviest batch; as every bit is whole, there is
    more noise than that, by a known factor.
    """
    admitted, sums = setting.admitted[silo], setting.resolved.sums
    z, share = query.noise_ratio * admitted.noise_multiplier, admitted.terms.share
    if sums is None or share is None:
        return z, 0.0
    mechanism = sums.mechanism
    reach = mechanism.reach(share.weight(query.batch) * share.clip)
    common = query.noise_ratio * (admitted.terms.noise_multiplier or 0.0)
    z = max(z, common * mechanism.reach(1.0) / reach)
    if mechanism.transport == "messages":
        return z, 0.0
    step = mechanism.step(1.0) / (z * reach)
    return z * math.sqrt(mechanism.surplus(step, setting.together)), step
