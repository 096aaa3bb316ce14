"""What `fedsim.release` asks of the silos' records, and what the answers say.

An answer is a mean over all n units, records or persons, plus Gaussian noise of known standard deviation, or
one silo's choice of a cell. So a value is a known function of answers; its standard error, of the noise
alone, is exact for means, sums, counts and cells, and of first order for quantiles, covariances, components
and ratios. Where n stands for a private number of persons, answers are sums over n: sums, counts and cells
are right as they are, and means are ratios to a noisy number of persons (`Units`).
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from fedsim.algorithms.release import Item
from fedsim.common.errors import InputError, suggest
from fedsim.data.schema import CategoryColumn, Input, NumberColumn, names_of
from fedsim.data.source import Floats
from fedsim.privacy.exponential import epsilon_of
from fedsim.protocol.groups import MOST_CELLS
from fedsim.protocol.moments import from_svec
from fedsim.protocol.statistics import TARGET, is_level
from fedsim.protocol.unit import RECORD, Unit


class Value(NamedTuple):
    """A value in its column's units with its standard error; of a quantile also that of its rank, a share. Of
    one silo's quantile the rank's alone, which is that of some value within half a step of this one.
    """

    what: str
    value: float
    standard_error: float | None = None
    rank_error: float | None = None
    half_step: float | None = None


class Units(NamedTuple):
    """How many there are over `Known.n`, and its standard error, which is 0 where the number is public."""

    share: float = 1.0
    error: float = 0.0


Read = Callable[[list[Floats], list[float], Units], list[Value]]
"""Answers to items, the standard deviation of the noise on each number of one, and the units, to values."""
Asking = tuple[list[Item], Read]


class Column(NamedTuple):
    """A column's name, its first feature (TARGET: the target) and what it holds."""

    name: str
    first: int
    kind: Input

    @property
    def ends(self) -> tuple[float, float]:
        """The declared range. InputError if there is none."""
        if isinstance(self.kind, NumberColumn):
            return self.kind.lower, self.kind.upper
        has = "categories, which Histogram() and Count(one of them) count"
        without = "no declared range: declare one in the schema, or as ranges of fedsim.Arrays"
        raise self.wrong(self.name, f"has {has if isinstance(self.kind, CategoryColumn) else without}")

    def edges(self, bins: int) -> Floats:
        """Of so many bins of equal width on its scale."""
        if bins not in range(2, MOST_CELLS + 1):
            raise self.wrong(bins, f"from 2 to {MOST_CELLS} bins")
        log = isinstance(self.kind, NumberColumn) and self.kind.scale == "log"
        return (np.geomspace if log else np.linspace)(*self.ends, bins + 1)

    def wrong(self, value: object, hint: str) -> InputError:
        """An error about what is asked of it."""
        return InputError(f"release.{self.name}", value, hint)


class Known(NamedTuple):
    """What is public about the records."""

    columns: dict[str, Column]
    n: int  # units of all silos, or the number that stands for them
    alone: bool  # whether one silo answers for itself
    unit: Unit = RECORD

    def column(self, name: str) -> Column:
        """InputError if there is no such column."""
        if name not in self.columns:
            raise InputError(f"release.{name}", name, f"no such column; {suggest(name, self.columns)}")
        return self.columns[name]


class Asked(ABC):
    """Something that may be asked under a name, a column's but for moments and components."""

    @abstractmethod
    def ask(self, name: str, known: Known) -> Asking:
        """The items, and how their answers are read; InputError if it has no sense."""


def _number(what: str, item: Item, factor: float, offset: float = 0.0, mean: bool = False) -> Asking:
    """offset + factor x an answer of one number; `mean`: of that over the units."""

    def read(answers: list[Floats], noise: list[float], units: Units) -> list[Value]:
        share, error = units if mean else Units()
        ratio = float(answers[0][0]) / share
        return [Value(what, offset + factor * ratio, factor * math.hypot(noise[0], ratio * error) / share)]

    return [item], read


_MOST = sys.float_info.max


def number_of_persons(n: int) -> Asking:
    """How many persons have a record of any target, where n stands for their number."""
    return _number("number", Item("presence", (TARGET, -_MOST, _MOST)), n)


class Mean(Asked):
    """The mean of a column of numbers, those beyond its declared range counting as its ends."""

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column = known.column(name)
        low, high = column.ends
        return _number("mean", Item("sum", (column.first, low, high)), high - low, low, True)


@dataclass(frozen=True)
class Sum(Asked):
    """The sum of a column of numbers, those above `cap` counting as the cap. Of persons, who need a cap and a
    column from 0 on, the sum of each one's own sum, one above `cap` counting as the cap.
    """

    cap: float = math.inf

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column = known.column(name)
        (low, end), high, n = column.ends, min(self.cap, column.ends[1]), known.n
        if known.unit != RECORD:
            if low < 0:
                raise column.wrong(low, "a range from 0 on, to add up a person's values; or ask for Mean()")
            if not 0 < self.cap < math.inf:
                raise column.wrong(self.cap, "the most that a person's sum counts as, such as Sum(cap=100)")
            item = Item("capped_sum", (column.first, low, end, self.cap))
            return _number(f"sum, of a person at most {self.cap:g}", item, n * self.cap)
        if not low < high:
            raise column.wrong(self.cap, f"a cap above {low:g}, where its range begins")
        return _number("sum", Item("sum", (column.first, low, high)), n * (high - low), n * low)


@dataclass(frozen=True)
class Count(Asked):
    """How many records have a category, or a number of at least so much; or persons, with one such record."""

    of: str | float

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column = known.column(name)
        if isinstance(column.kind, CategoryColumn):
            categories, what = column.kind.categories, str(self.of)
            if what not in categories:
                raise column.wrong(self.of, f"no such category; {suggest(self.of, categories)}")
            code, target = categories.index(what), column.first == TARGET
            place, low, high = (TARGET, code - 0.5, code + 0.5) if target else (column.first + code, 0.5, 1.5)
        else:
            least, most = column.ends
            if isinstance(self.of, str) or not least < self.of <= most:
                raise column.wrong(self.of, f"a number above {least:g}, at most {most:g}")
            place, low, high, what = column.first, self.of, _MOST, f"from {self.of:g}"
        told = "persons with" if known.unit != RECORD else "count"
        return _number(f"{told} {what}", Item("presence", (place, low, high)), known.n)


@dataclass(frozen=True)
class Histogram(Asked):
    """How many records have each category, or lie in each of so many bins of the declared range; of persons,
    the sum over them of the share of her records, so that all cells add up to their number.
    """

    bins: int = 10

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column = known.column(name)
        if isinstance(column.kind, CategoryColumn):
            labels, codes = list(column.kind.categories), np.arange(len(column.kind.categories) + 1)
            target = column.first == TARGET
            features = [TARGET] if target else (column.first + codes[:-1]).tolist()
            edges = codes - 0.5 if target else codes + 0.5  # the features' sum is of 1, 2, ..
        else:
            features, edges = [column.first], column.edges(self.bins)
            digits = 6 if len({f"{edge:g}" for edge in edges}) == len(edges) else 15
            labels = [f"{a:.{digits}g} to {b:.{digits}g}" for a, b in pairwise(edges)]
        word = "persons' shares" if known.unit != RECORD else "count"
        labels = [f"{word} {label}" for label in labels]

        def read(answers: list[Floats], noise: list[float], units: Units) -> list[Value]:
            counts = known.n * _of_all(answers[0], units)
            error = known.n * noise[0] * (1 if units.error else math.sqrt(1 - 1 / len(labels)))
            return [Value(what, float(k), error) for what, k in zip(labels, counts, strict=True)]

        return [Item("histogram", (len(features), *features, *edges.tolist()))], read


def _of_all(cells: Floats, units: Units) -> Floats:
    """Shares of cells that add up to 1 where that is public: what is missing is divided equally."""
    made: Floats = cells if units.error else cells + (1 - cells.sum()) / len(cells)
    return made


class Quantiles(Asked):
    """Quantiles of a column of numbers: by a histogram of `bins` over several silos (64), each chosen from so
    many cells by one silo alone (a 16th of its units, from 64 to 4,096: finer ones hold less than the noise).
    """

    def __init__(self, *q: float, bins: int = 0) -> None:
        self.q, self.bins = q, bins

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column = known.column(name)
        for q in self.q or (0.0,):
            if not is_level(q):
                raise column.wrong(q, "a quantile between 0 and 1, of at most six digits")
        edges = column.edges(self.bins or (min(max(64, known.n // 16), MOST_CELLS) if known.alone else 64))
        if known.alone:
            return self._chosen(column, edges, known)
        return [Item("histogram", (1, column.first, *edges.tolist()))], lambda answers, noise, units: [
            _inverted(q, edges, answers[0], noise[0], units) for q in self.q
        ]

    def _chosen(self, column: Column, edges: Floats, known: Known) -> Asking:
        def read(answers: list[Floats], noise: list[float], units: Units) -> list[Value]:
            # Chances fall by exp(-epsilon / 2) a rank: of evenly spread values 39 in 40 are within 2.
            rank = math.log(40) / float(epsilon_of(1 / (known.n * noise[0]))) / (known.n * units.share)
            ends = [edges[int(index[0]) :][:2] for index in answers]
            halves = [known.unit.half_range("quantile", item.options) for item in items]
            return [
                Value(f"quantile {q:g}", float(own.mean()), None, rank * half, float(own[1] - own[0]) / 2)
                for q, own, half in zip(self.q, ends, halves, strict=True)
            ]

        items = [Item("quantile", (column.first, q, *edges.tolist())) for q in self.q]
        return items, read


def _inverted(q: float, edges: Floats, cells: Floats, noise: float, units: Units) -> Value:
    """A quantile: where what is below an edge, made to rise, is q of all cells' sum. The difference has the
    noise of a Brownian bridge where the sum is public; the error is half of how far, on the wider side, it is
    within two deviations of 0, with half a bin, where all of its values may be equal.
    """
    cells, bins, k = _of_all(cells, units), len(cells), np.arange(len(edges))
    variance = k * (1 - q) ** 2 + (bins - k) * q**2 if units.error else k * (bins - k) / bins
    below, deviation = np.append(0, cells.cumsum()) - q * cells.sum(), noise * np.sqrt(variance)
    so_far = np.maximum.accumulate
    value = float(np.interp(0, (so_far(below) - so_far(-below[::-1])[::-1]) / 2, edges))
    least = np.interp(0, so_far(below + 2 * deviation), edges)
    most = np.interp(0, -so_far((2 * deviation - below)[::-1])[::-1], edges)
    own = min(int(np.searchsorted(edges, value, side="right")), bins) - 1
    error = math.hypot(max(most - value, value - least) / 2, (edges[own + 1] - edges[own]) / 2)
    rank = math.hypot(float(np.interp(value, edges, deviation)), max(0.0, cells[own]) / 2) / units.share
    return Value(f"quantile {q:g}", value, error, rank)


class Moments(Asked):
    """Means, variances and covariances of columns, by default of all; of a category's indicators."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        item, labels = _moment(name, self.columns, known)
        lower, upper = np.array(item.columns)[:, 1:].T
        half = (upper - lower) / 2

        def read(answers: list[Floats], noise: list[float], units: Units) -> list[Value]:
            # Noise of deviation s on svec has variance s^2 / 2 on N_ij and on means, E_i, and s^2 on N_ii. A
            # covariance errs by N_ij - m_i E_j - m_j E_i, and by a product of two errors; all by the units'.
            mean, covariance = _central(answers[0], units)
            off, by = noise[0] / math.sqrt(2) / units.share, units.error / units.share
            scale, slope = np.outer(half, half), covariance - np.outer(mean, mean)
            own = off * np.sqrt((1 + mean[:, None] ** 2 + mean**2) * (1 + np.eye(len(mean))))
            errors = scale * np.hypot(own, by * slope)
            values = (lower + upper) / 2 + half * mean, half * np.hypot(off, by * mean)
            found = [Value(f"mean {a}", float(x), float(e)) for a, x, e in zip(labels, *values, strict=True)]
            for i, j in zip(*np.triu_indices(len(labels)), strict=True):
                what = f"variance {labels[i]}" if i == j else f"covariance {labels[i]}, {labels[j]}"
                found.append(Value(what, float(scale[i, j] * covariance[i, j]), float(errors[i, j])))
            return found

        return [item], read


class Components(Asked):
    """Directions of largest variance of columns, by default of all, each mapped from its range to [-1, 1]."""

    def __init__(self, count: int, *columns: str) -> None:
        self.count, self.columns = count, columns

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        item, labels = _moment(name, self.columns, known)
        if type(self.count) is not int or self.count not in range(1, len(labels) + 1):
            hint = f"from 1 to {len(labels)} components, of so many features"
            raise InputError(f"release.{name}", self.count, hint)

        def read(answers: list[Floats], noise: list[float], units: Units) -> list[Value]:
            mean, covariance = _central(answers[0], units)
            variances, directions = np.linalg.eigh(covariance)
            own, by = noise[0] / units.share, units.error / units.share
            found = [Value("largest variance of noise", own * math.sqrt(2 * len(labels)))]
            for k in range(1, self.count + 1):
                v = directions[:, -k] * np.sign(directions[np.abs(directions[:, -k]).argmax(), -k])
                at = float(v @ mean)
                error = math.hypot(own, own * math.sqrt(2) * at, by * (float(variances[-k]) - at**2))
                found.append(Value(f"variance {k}", float(variances[-k]), error))
                found += [Value(f"direction {k}: {a}", float(x)) for a, x in zip(labels, v, strict=True)]
            return found

        return [item], read


def _moment(name: str, columns: Sequence[str], known: Known) -> tuple[Item, list[str]]:
    """The second moment of mapped columns and the constant one, and the features' names."""
    features = [each for each, column in known.columns.items() if column.first != TARGET]
    chosen = [known.column(each) for each in columns or features]
    mapped, labels = list[tuple[int, float, float]](), list[str]()
    for column in chosen:
        if column.first == TARGET:
            raise InputError(f"release.{name}", column.name, "is the target; name features")
        ends = (-1.0, 1.0) if isinstance(column.kind, CategoryColumn) else column.ends
        own = names_of(column.name, column.kind, intercept=False)
        mapped += [(column.first + k, *ends) for k in range(len(own))]
        labels += own
    return Item("second_moment", (0.0,), 1.0 + len(chosen), columns=tuple(mapped)), labels


def _central(answer: Floats, units: Units) -> tuple[Floats, Floats]:
    """Mean and covariance of mapped features, from their second moment and the constant one's."""
    made = from_svec(torch.from_numpy(answer)).numpy() / units.share
    return made[:-1, -1], made[:-1, :-1] - np.outer(made[:-1, -1], made[:-1, -1])
