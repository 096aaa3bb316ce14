"""The statistics that a silo releases: a function of one record each, whose terms are clipped and summed.

**Guarantee.** A term has norm <= clip and any two terms are at most spread x clip apart, so that replacing
one record moves the sum by at most that, in L2. Two terms may be opposite (spread 2), have
an inner product of at least 0 (sqrt 2), or be numbers in [0, clip] (1). The noise is noise_ratio x z x spread
x clip, so that every release costs mu = 1 / (noise_ratio z), whatever the statistic is.

Two kinds are no noisy sums. `quantile` and `choice` draw an index by the exponential mechanism from scores
that a record moves by at most 1; at mu it is as private as a Gaussian release, and by its own price more so
(`fedsim.privacy.exponential`). A unit that is added moves scores less far apart (`added`).
`minimiser` is output perturbation: n times the result of T contractive steps on the clipped loss, which a
record moves by at most 2 clip / lambda (`silos.vault.terms`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple

from fedsim.common.errors import Refused
from fedsim.protocol.groups import MOST_CELLS, Cells

MOST_STEPS = 1_000  # of a minimiser
MOST_MODELS = 100  # of a choice
TARGET = -1  # the target, as a column
OPPOSITE = 2.0  # the spread of terms that may be opposite, such as gradients


@dataclass(frozen=True, slots=True)
class QueryShape:
    """Everything in a query that sets its cost; points and clip are free: noise scales with the clip."""

    statistic: str
    points: int
    noise_ratio: float
    options: tuple[float, ...] = ()  # public numbers, such as the edges of a histogram
    transform: int = 0  # k, where records are transformed to k features; 0 where they are as they are

    def __repr__(self) -> str:
        """All of it, as `Plan.digest` names a query."""
        more = [f", {name}={value!r}" for name in ("options", "transform") if (value := getattr(self, name))]
        told = f"statistic={self.statistic!r}, points={self.points}, noise_ratio={self.noise_ratio!r}"
        return f"QueryShape({told}{''.join(more)})"


class Shapes(NamedTuple):
    """What the sizes of a query follow from."""

    dimension: int  # d, of the model
    features: int  # of a record, the constant one included
    options: tuple[float, ...]  # the query's


@dataclass(frozen=True)
class Statistic:
    """A per-record function that silos own: where it is evaluated, what it gives and how far it moves."""

    name: str
    points: int  # models, (d,) each, that a query names; for `choice` at least so many
    size: Callable[[Shapes], int]  # numbers in an answer
    spread: float | Callable[[tuple[float, ...]], float]  # the largest distance of two terms, over the clip
    options: tuple[str, ...] = ()  # the names of a query's options; one that ends with .. stands for several
    wrong: Callable[[Shapes], str] = lambda shapes: ""  # what is wrong with options, if anything
    clipped: bool = True  # whether queries choose a clip; else a term is bounded by itself and the clip is 1
    drawn: bool = False  # whether it is a choice by the exponential mechanism
    # of a choice: half of how far apart a unit that is added moves two scores; one that is replaced, 1
    added: Callable[[tuple[float, ...]], float] = lambda options: 1.0
    sampled: bool = True  # whether batches may be drawn at random
    # whose replacement moves it by the spread: a record, or its label alone, its features being known
    unit: Literal["record", "label"] = "record"
    needs: frozenset[str] = frozenset()  # of a problem, as `fedsim.problems.answerable` reads them off
    most_points: int = 0  # where a query may name more points than `points`
    second: Callable[[Shapes], int] = lambda shapes: shapes.dimension  # numbers of its second point
    work: Callable[[QueryShape], int] = lambda shape: 1  # gradients that take as long as an answer, about
    squares: bool = False  # whether terms are made of products of features
    by_group: bool = False  # whether it asks for a record's group
    gradient: bool = False  # whether terms are gradients, of records as they are

    def spread_of(self, options: tuple[float, ...]) -> float:
        """The spread at these options: over the clip, L2 sensitivity of the sum under replace-one."""
        return self.spread(options) if callable(self.spread) else self.spread

    def check(self, shapes: Shapes) -> None:
        """Refuse options that no record could be used with, or that no price is known for."""
        many = bool(self.options) and self.options[-1].endswith("..")
        count, least = len(shapes.options), len(self.options)
        if count < least or (count > least and not many):
            wanted = f"takes the options ({', '.join(self.options)})" if self.options else "takes no options"
            raise Refused(f"{self.name} {wanted}, got {count} numbers")
        if not all(map(math.isfinite, shapes.options)):
            raise Refused(f"{self.name}: an option is not finite")
        if found := self.wrong(shapes):
            raise Refused(f"{self.name}: {found}")


def svec_size(side: int) -> int:
    """How many numbers a symmetric matrix has as a vector.

    >>> svec_size(3)
    6
    """
    return side * (side + 1) // 2


def _column(shapes: Shapes, column: float) -> str:
    if column == int(column) and TARGET <= column < shapes.features:
        return ""
    return f"column {column:g} is none of {shapes.features} features, nor {TARGET} for the target"


def _range(low: float, high: float) -> str:
    return "" if low < high else f"the range from {low:g} to {high:g} is empty"


def _second_moment(shapes: Shapes) -> str:
    (with_target,) = shapes.options
    return "" if with_target in (0, 1) else f"with_target is {with_target:g}; it must be 0 or 1"


def _sum(shapes: Shapes) -> str:
    column, low, high = shapes.options
    return _column(shapes, column) or _range(low, high)


def _capped_sum(shapes: Shapes) -> str:
    column, low, high, cap = shapes.options
    held = "" if low >= 0 and cap > 0 else f"low is {low:g}, cap {cap:g}; low is at least 0, cap above it"
    return held or _column(shapes, column) or _range(low, high)


def _edges(edges: tuple[float, ...]) -> str:
    ascend = len(edges) - 1 <= MOST_CELLS and all(a < b for a, b in pairwise(edges))
    return "" if ascend else f"edges must ascend, of at most {MOST_CELLS} cells"


def _histogram(shapes: Shapes) -> str:
    count, edges = shapes.options[0], histogram_edges(shapes.options)
    if not (count == int(count) and count >= 1) or len(edges) < 3:
        return "it takes a number of columns, those columns, and the edges of two cells or more"
    columns = shapes.options[1 : 1 + int(count)]
    return _edges(edges) or next(filter(None, (_column(shapes, column) for column in columns)), "")


def histogram_edges(options: tuple[float, ...]) -> tuple[float, ...]:
    """The edges among a histogram's options."""
    return options[1 + int(max(0, options[0])) :]


def _ends(shapes: Shapes) -> str:
    ascending = all(a < b for a, b in pairwise((0.0, *shapes.options)))
    return "" if ascending and len(shapes.options) <= MOST_CELLS else "ends of cells are ascending numbers"


def _bins(shapes: Shapes) -> str:
    (bins,) = shapes.options
    return "" if bins == int(bins) and 2 <= bins <= MOST_CELLS // 2 else f"bins is {bins:g}; from 2"


def _bound(shapes: Shapes) -> str:
    (bound,) = shapes.options
    return "" if 0 < bound < 0.5 else f"bound is {bound:g}; it must lie between 0 and 0.5"


def is_level(q: float) -> bool:
    """Whether it is between 0 and 1 and has at most six digits, so that ranks are whole numbers of parts."""
    return 0 < q < 1 and 10**6 % Fraction(repr(float(q))).denominator == 0


def _quantile(shapes: Shapes) -> str:
    column, q, *edges = shapes.options
    if not is_level(q):
        return f"q is {q:g}; a quantile lies between 0 and 1, and has at most six digits"
    return _edges(tuple(edges)) or _column(shapes, column)


def _minimiser(shapes: Shapes) -> str:
    regularisation, steps, radius = shapes.options
    if not 1e-6 <= regularisation <= 2:  # a spread of 1 at least, as every other's
        return f"regularisation is {regularisation:g}; it must lie between 1e-6 and 2"
    if not (steps == int(steps) and 1 <= steps <= MOST_STEPS):
        return f"steps is {steps:g}; it must be from 1 to {MOST_STEPS}"
    return "" if radius > 0 else f"radius is {radius:g}; it must be above 0"


def _cells(shapes: Shapes) -> str:
    whole = all(number == int(number) for number in shapes.options[:3])
    if not (whole and min(shapes.options[:2]) >= 2 and shapes.options[2] in (0, 1)):
        return "it takes whole numbers of groups and classes, from 2, and whether its table is by label"
    if (size := Cells.of(shapes.options).size) > MOST_CELLS:
        return f"a table of {size} cells; at most {MOST_CELLS}"
    return ""


def _joint(shapes: Shapes) -> str:
    threshold = shapes.options[3]
    return _cells(shapes) or ("" if 0 <= threshold < 1 else f"threshold is {threshold:g}; from 0 to below 1")


def _costed(shapes: Shapes) -> str:
    reach = shapes.options[3]
    return _cells(shapes) or ("" if reach >= 0 else f"reach is {reach:g}; it must be at least 0")


def _one(shapes: Shapes) -> int:
    return 1


def _of_model(shapes: Shapes) -> int:
    return shapes.dimension


def _moments(shapes: Shapes) -> int:
    return svec_size(shapes.features + int(shapes.options[0]))


_ROOT2 = math.sqrt(2.0)
_OWN, _PROBABILITIES = frozenset({"fedsim's loss"}), frozenset({"classes", "probabilities"})
_TWO = _PROBABILITIES | {"two classes"}

GRADIENT = Statistic("gradient", 1, _of_model, OPPOSITE, gradient=True)
GRADIENT_DIFFERENCE = Statistic("gradient_difference", 2, _of_model, OPPOSITE, gradient=True)  # 1st - 2nd
# of loss + sum_j table[group, j] F_j at (w, table), F the predicted probabilities; nothing where there is no
# group. `reach` bounds the table (`Cells.reach`)
_TABLE = ("groups", "classes", "by_label")
COSTED_GRADIENT = Statistic(
    "costed_gradient",
    2,
    _of_model,
    OPPOSITE,
    (*_TABLE, "reach"),
    _costed,
    needs=_OWN | _PROBABILITIES,
    second=lambda s: Cells.of(s.options).size,
    by_group=True,
    gradient=True,
)
LONGER = "longer"

STATISTICS = {
    each.name: each
    for each in (
        GRADIENT,
        GRADIENT_DIFFERENCE,
        COSTED_GRADIENT,
        # F in the row of the record's group, or of its group and label; 0 where there is no group. With a
        # threshold t the predicted class, which of two is class 1 where its probability is above t
        Statistic(
            "joint",
            1,
            lambda s: Cells.of(s.options).size,
            _ROOT2,
            (*_TABLE, "threshold"),
            _joint,
            False,
            needs=_PROBABILITIES,
            by_group=True,
        ),
        # whether the gradient at the first point is longer than the second, which is one number
        Statistic(LONGER, 2, _one, 1.0, clipped=False, second=_one),
        # v v^T of v = x, or (x, y), |v|^2 <= clip: the upper triangle, off-diagonals times sqrt 2
        Statistic("second_moment", 0, _moments, _ROOT2, ("with_target",), _second_moment, squares=True),
        # a column held to [low, high], as a number in [0, 1]
        Statistic("sum", 0, _one, 1.0, ("column", "low", "high"), _sum, clipped=False),
        # the sum of a unit's records, held to [low, high] from 0 on, and to at most the cap, over it
        Statistic("capped_sum", 0, _one, 1.0, ("column", "low", "high", "cap"), _capped_sum, clipped=False),
        # whether a unit has a record from low to high, as 0 or 1
        Statistic("presence", 0, _one, 1.0, ("column", "low", "high"), _sum, clipped=False),
        # the cell of x_1 + 2 x_2 + .. over the columns: one number, or a category of indicators; what lies
        # beyond the edges is in the first or last cell
        Statistic(
            "histogram",
            0,
            lambda shapes: len(histogram_edges(shapes.options)) - 1,
            _ROOT2,
            ("columns", "column", "edge", "edge", "edge.."),
            _histogram,
            clipped=False,
        ),
        # the cell of a unit's number of records, each cell up to its end; the last has all who have more
        Statistic("contributions", 0, lambda s: len(s.options), _ROOT2, ("end", "end.."), _ends, False),
        # the cell of (class, bin of the probability of class 1), two classes
        Statistic(
            "score_histogram", 1, lambda s: 2 * int(s.options[0]), _ROOT2, ("bins",), _bins, False, needs=_TWO
        ),
        Statistic("mistakes", 1, _one, 1.0, clipped=False, needs=frozenset({"classes"})),
        # of a probability held to [bound, 1 - bound], over its largest value
        Statistic("log_loss", 1, _one, 1.0, ("bound",), _bound, clipped=False, needs=_PROBABILITIES),
        # half the squared distance to the class
        Statistic("brier", 1, _one, 1.0, clipped=False, needs=_PROBABILITIES),
        # the cell between edges that has the quantile; what lies beyond them is in the first or last cell
        Statistic(
            "quantile",
            0,
            _one,
            1.0,
            ("column", "q", "edge", "edge", "edge.."),
            _quantile,
            clipped=False,
            drawn=True,
            # a rank moves by the unit's share less q: by q or 1 - q, up on one side and down on the other
            added=lambda options: max(options[1], 1 - options[1]),
            sampled=False,
        ),
        # which of the models has the smallest sum of losses, each held to [0, clip]; a unit lowers all scores
        Statistic(
            "choice",
            2,
            _one,
            1.0,
            drawn=True,
            added=lambda options: 0.5,
            sampled=False,
            needs=_OWN,
            most_points=MOST_MODELS,
            work=lambda shape: shape.points,
        ),
        Statistic(
            "minimiser",
            0,
            _of_model,
            lambda options: 2 / options[0],
            ("regularisation", "steps", "radius"),
            _minimiser,
            sampled=False,
            needs=_OWN | {"one linear output", "a known curvature"},
            work=lambda shape: int(shape.options[1]),
        ),
        # n times the row of X^+ of a record, of norm <= clip, times its target, held to [-1, 1]
        Statistic(
            "label_projection",
            0,
            _of_model,
            OPPOSITE,
            sampled=False,
            unit="label",
            squares=True,
            needs=frozenset({"one linear output", "a number as target"}),
        ),
    )
}


def shapes_of(shape: QueryShape, dimension: int, features: int) -> Shapes:
    """What a query's sizes follow from, for a model of d numbers on so many features.

    A query with a transform, of a linear model, is about k features, and a model of k numbers an output.
    """
    if not shape.transform:
        return Shapes(dimension, features, shape.options)
    return Shapes(dimension // features * shape.transform, shape.transform, shape.options)


def size_of(shape: QueryShape, dimension: int, features: int) -> int:
    """How many numbers the answer to a query holds; the query has been checked."""
    return statistic(shape.statistic).size(shapes_of(shape, dimension, features))


def point_sizes(shape: QueryShape, dimension: int, features: int) -> list[int]:
    """How many numbers each of a query's points holds."""
    shapes, known = shapes_of(shape, dimension, features), statistic(shape.statistic)
    return [known.second(shapes) if i == 1 else shapes.dimension for i in range(shape.points)]


class Extent(NamedTuple):
    """What noise on a grid is priced by: sizes of the largest and smallest answer, the smallest spread."""

    largest: int
    smallest: int
    spread: float = OPPOSITE


def groups_asked(shapes: Iterable[QueryShape]) -> list[str]:
    """The statistics among them that ask for records' groups, sorted."""
    return sorted({each.statistic for each in shapes if statistic(each.statistic).by_group})


def statistic(name: str) -> Statistic:
    """The statistic of this name; Refused if silos own none."""
    if name not in STATISTICS:
        raise Refused(f"statistic {name[:40]!r} is not one of {', '.join(STATISTICS)}")
    return STATISTICS[name]
