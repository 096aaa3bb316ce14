"""What `fedsim.release` asks of the silos' records, and what the answers say.

An answer is a mean over all n records plus Gaussian noise of known standard deviation, or one silo's choice
of a grid point. So a value is a known function of answers; its standard error, of the noise alone, is exact
for means, sums, counts and cells, and of first order for quantiles, covariances and components.
"""

from __future__ import annotations

import math
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


class Value(NamedTuple):
    """A value in its column's units with its standard error; of a quantile also that of its rank, a share."""

    what: str
    value: float
    standard_error: float | None = None
    rank_error: float | None = None


Read = Callable[[list[Floats], list[float]], list[Value]]
"""Answers to items, and the standard deviation of the noise on each number of one, to values."""
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
    n: int  # records of all silos
    alone: bool  # whether one silo answers for itself

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


def _share(what: str, options: tuple[float, float, float], offset: float, factor: float) -> Asking:
    """offset + factor x the mean of a column held to [low, high], as a number in [0, 1]."""
    return [Item("sum", options)], lambda answers, noise: [
        Value(what, offset + factor * float(answers[0][0]), factor * noise[0])
    ]


class Mean(Asked):
    """The mean of a column of numbers, those beyond its declared range counting as its ends."""

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column = known.column(name)
        low, high = column.ends
        return _share("mean", (column.first, low, high), low, high - low)


@dataclass(frozen=True)
class Sum(Asked):
    """The sum of a column of numbers, those above `cap` counting as the cap."""

    cap: float = math.inf

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column = known.column(name)
        low, high = column.ends[0], min(self.cap, column.ends[1])
        if not low < high:
            raise column.wrong(self.cap, f"a cap above {low:g}, where its range begins")
        return _share("sum", (column.first, low, high), known.n * low, known.n * (high - low))


@dataclass(frozen=True)
class Count(Asked):
    """How many records have a category, or a number of at least so much."""

    of: str | float

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column, n = known.column(name), known.n
        if not isinstance(column.kind, CategoryColumn):
            low, high = column.ends
            if isinstance(self.of, str) or not low < self.of <= high:
                raise column.wrong(self.of, f"a number above {low:g}, at most {high:g}")
            below = math.nextafter(self.of, -math.inf)
            return _share(f"count from {self.of:g}", (column.first, below, self.of), 0, n)
        categories, what = column.kind.categories, f"count {self.of}"
        if str(self.of) not in categories:
            raise column.wrong(self.of, f"no such category; {suggest(self.of, categories)}")
        if column.first != TARGET:
            return _share(what, (column.first + categories.index(str(self.of)), 0.0, 1.0), 0, n)
        items, read = Histogram().ask(name, known)
        return items, lambda answers, noise: [each for each in read(answers, noise) if each.what == what]


@dataclass(frozen=True)
class Histogram(Asked):
    """How many records have each category, or lie in each of so many bins of the declared range."""

    bins: int = 10

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column = known.column(name)
        if isinstance(column.kind, CategoryColumn):
            labels, codes = list(column.kind.categories), np.arange(column.kind.width + 1)
            target = column.first == TARGET
            features = [TARGET] if target else (column.first + codes[:-1]).tolist()
            edges = codes - 0.5 if target else codes + 0.5  # the features' sum is of 1, 2, ..
        else:
            features, edges = [column.first], column.edges(self.bins)
            digits = 6 if len({f"{edge:g}" for edge in edges}) == len(edges) else 15
            labels = [f"{a:.{digits}g} to {b:.{digits}g}" for a, b in pairwise(edges)]

        def read(answers: list[Floats], noise: list[float]) -> list[Value]:
            counts = known.n * _of_all(answers[0])
            error = known.n * noise[0] * math.sqrt(1 - 1 / len(labels))
            return [Value(f"count {label}", float(k), error) for label, k in zip(labels, counts, strict=True)]

        return [Item("histogram", (len(features), *features, *edges.tolist()))], read


def _of_all(cells: Floats) -> Floats:
    """Shares of cells that add up to 1, which is public: what is missing is divided equally."""
    made: Floats = cells + (1 - cells.sum()) / len(cells)
    return made


class Quantiles(Asked):
    """Quantiles of a column of numbers: by a histogram of `bins` over several silos (64), each chosen from a
    grid of so many steps by one silo alone (1,024).
    """

    def __init__(self, *q: float, bins: int = 0) -> None:
        self.q, self.bins = q, bins

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        column = known.column(name)
        for q in self.q or (0.0,):
            if not is_level(q):
                raise column.wrong(q, "a quantile between 0 and 1, of at most four digits")
        if known.alone:
            return self._chosen(column, known.n)
        edges = column.edges(self.bins or 64)
        return [Item("histogram", (1, column.first, *edges.tolist()))], lambda answers, noise: [
            _inverted(q, edges, _of_all(answers[0]), noise[0]) for q in self.q
        ]

    def _chosen(self, column: Column, n: int) -> Asking:
        (low, high), steps = column.ends, len(column.edges(self.bins or 1024)) - 1

        def read(answers: list[Floats], noise: list[float]) -> list[Value]:
            ratio = np.exp(-epsilon_of(1 / (n * np.array(noise))) / 2)  # of chances of ranks one apart
            rank = float(np.sqrt(2 * ratio[0]) / (1 - ratio[0]) / n)
            values = [low + (high - low) * float(index[0]) / steps for index in answers]
            return [Value(f"quantile {q:g}", x, None, rank) for q, x in zip(self.q, values, strict=True)]

        return [Item("quantile", (column.first, q, low, high, steps + 1)) for q in self.q], read


def _inverted(q: float, edges: Floats, shares: Floats, noise: float) -> Value:
    """A quantile by the shares below each edge, made to rise. Their noise is a Brownian bridge; the error is
    half of how far, on the wider side, they are within two deviations of q, with that of a place in a bin.
    """
    bins, k = len(shares), np.arange(len(edges))
    below, deviation = np.append(0, shares.cumsum()), noise * np.sqrt(k * (bins - k) / bins)
    so_far = np.maximum.accumulate
    value = float(np.interp(q, (so_far(below) - so_far(-below[::-1])[::-1]) / 2, edges))
    least = np.interp(q, so_far(below + 2 * deviation), edges)
    most = np.interp(q, -so_far((2 * deviation - below)[::-1])[::-1], edges)
    width = np.diff(edges)[min(int(np.searchsorted(edges, value, side="right")), bins) - 1]
    error = math.hypot(max(most - value, value - least) / 2, width / math.sqrt(12))
    return Value(f"quantile {q:g}", value, error, float(np.interp(value, edges, deviation)))


class Moments(Asked):
    """Means, variances and covariances of columns, by default of all; of a category's indicators."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns

    def ask(self, name: str, known: Known) -> Asking:  # noqa: D102
        item, labels = _moment(name, self.columns, known)
        lower, upper = np.array(item.columns)[:, 1:].T
        half = (upper - lower) / 2

        def read(answers: list[Floats], noise: list[float]) -> list[Value]:
            # Noise of deviation s on svec has variance s^2 / 2 on N_ij and on means, E_i, and s^2 on N_ii. A
            # covariance errs by N_ij - m_i E_j - m_j E_i, and by a product of two errors.
            mean, covariance = _central(answers[0])
            off, units = noise[0] / math.sqrt(2), np.outer(half, half)
            errors = units * off * np.sqrt((1 + mean[:, None] ** 2 + mean**2) * (1 + np.eye(len(mean))))
            values = (lower + upper) / 2 + half * mean, half * off
            found = [Value(f"mean {a}", float(x), float(e)) for a, x, e in zip(labels, *values, strict=True)]
            for i, j in zip(*np.triu_indices(len(labels)), strict=True):
                what = f"variance {labels[i]}" if i == j else f"covariance {labels[i]}, {labels[j]}"
                found.append(Value(what, float(units[i, j] * covariance[i, j]), float(errors[i, j])))
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

        def read(answers: list[Floats], noise: list[float]) -> list[Value]:
            mean, covariance = _central(answers[0])
            variances, directions = np.linalg.eigh(covariance)
            found = [Value("largest variance of noise", noise[0] * math.sqrt(2 * len(labels)))]
            for k in range(1, self.count + 1):
                v = directions[:, -k] * np.sign(directions[np.abs(directions[:, -k]).argmax(), -k])
                error = noise[0] * math.hypot(1, math.sqrt(2) * float(v @ mean))
                found.append(Value(f"variance {k}", float(variances[-k]), error))
                found += [Value(f"direction {k}: {a}", float(x)) for a, x in zip(labels, v, strict=True)]
            return found

        return [item], read


def _moment(name: str, columns: Sequence[str], known: Known) -> tuple[Item, list[str]]:
    """The second moment of mapped columns and the constant one, and the features' names."""
    features = [each for each, column in known.columns.items() if column.first != TARGET]
    chosen = [known.column(each) for each in columns or features]
    mapped: list[tuple[int, float, float]] = []
    for column in chosen:
        if column.first == TARGET:
            raise InputError(f"release.{name}", column.name, "is the target; name features")
        ends = (-1.0, 1.0) if isinstance(column.kind, CategoryColumn) else column.ends
        mapped += [(column.first + k, *ends) for k in range(column.kind.width)]
    labels = [label for column in chosen for label in names_of(column.name, column.kind)]
    return Item("second_moment", (0.0,), 1.0 + len(chosen), columns=tuple(mapped)), labels


def _central(answer: Floats) -> tuple[Floats, Floats]:
    """Mean and covariance of mapped features, from their second moment and the constant one's."""
    made = from_svec(torch.from_numpy(answer)).numpy()
    return made[:-1, -1], made[:-1, :-1] - np.outer(made[:-1, -1], made[:-1, -1])
