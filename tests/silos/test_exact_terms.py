"""Equal units give equal bits, wherever they stand and whatever else is summed with them.

A unit stands among null units: records that count as zero vectors, have no label, raise, or have a loss of 0,
so that they add exactly 0, or whole numbers that are taken away again. What is left is the unit's own term,
which must have the same bits at every place, count, offset, batch, chunk, fold, cohort and number of threads.
Where a term jumps (a ReLU, a hinge, a threshold, a bin), the query is moved to two adjacent numbers between
which the unit alone jumps: then one bit more or less anywhere is a whole term.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

import silos.vault.network
from fedsim.privacy.registry import CLIP_ONLY
from fedsim.problems.given import described, given
from fedsim.problems.glm import (
    AbsoluteError,
    HingeLoss,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Lenet, Mlp, PairedMlp
from fedsim.protocol.contract import Query
from fedsim.protocol.copies import copied_queries
from fedsim.protocol.statistics import size_of
from fedsim.protocol.unit import RECORD, Person, Record
from fedsim.simulation.side_by_side import SideBySide
from silos.vault.gate import lay_out
from silos.vault.owners import Owners
from silos.vault.records import Records
from silos.vault.releases import Releases, RoundReleases

F64 = torch.float64
HUGE = 1e13  # longer than any record that counts, and no label
FEATURES = 13  # an odd number, so that every second row begins at 16 bytes
FAR = 1e4  # a point's entry is moved by at most so much to where the unit's term jumps


@dataclass(frozen=True)
class PlugInLoss(LogisticRegression):
    """A linear loss of another distribution."""

    def coefficient(self, scores, target, inverse_norm):
        return torch.sigmoid(scores) - target


@dataclass(frozen=True)
class Model:
    """A problem; its classes, 0 for a number; the length of records; and where its gradient has kinks."""

    make: Callable[[], Problem]
    classes: int
    features: int = FEATURES
    scale: float = 1.0
    kinks: bool = False
    raises: bool = False  # records whose first feature is 9
    every: int = 1  # which places the slow test tries, of networks that take long
    table: bool = False  # costs by group are for it

    @property
    def linear(self) -> bool:
        return not isinstance(self.problem, NeuralNetwork)

    @property
    def problem(self) -> Problem:
        return _made(self.make)

    def biases(self) -> list[int]:
        """Where each layer's biases begin in a network's flat vector."""
        sizes = [shape.numel() for shape in self.problem.shapes.values()]
        starts = np.cumsum([0, *sizes])[:-1].tolist()
        return [
            start for start, name in zip(starts, self.problem.shapes, strict=True) if name.endswith("bias")
        ]


@cache
def _made(make):
    return make()


def _network(features, outputs, model):
    return partial(NeuralNetwork, features, outputs, model=model)


def _graph(outputs=1):
    network = NeuralNetwork(FEATURES, outputs, model=Imported("support.network_modules:Looked"))
    return given(*described(network, F64), F64)


MODELS = {
    "logistic": Model(partial(LogisticRegression, FEATURES), 2, table=True),
    "softmax": Model(partial(SoftmaxRegression, FEATURES, 3), 3, table=True),
    "linear": Model(partial(LinearRegression, FEATURES), 0),
    "linear, long": Model(partial(LinearRegression, FEATURES), 0, scale=1e10),
    "hinge": Model(partial(HingeLoss, FEATURES), 2, kinks=True),
    "hinge, smoothed": Model(partial(HingeLoss, FEATURES, smoothing=1.0), 2),
    "absolute": Model(partial(AbsoluteError, FEATURES), 0, kinks=True),
    "mlp": Model(_network(FEATURES, 2, Mlp((64,))), 2, kinks=True, table=True, every=2),
    "mlp, deep": Model(_network(FEATURES, 1, Mlp((20, 11))), 0, kinks=True, every=2),
    "paired mlp": Model(_network(FEATURES, 2, PairedMlp(8)), 2, every=2),
    "lenet": Model(_network(256, 3, Lenet((1, 16, 16))), 3, 256, kinks=True, every=5),
    "plug-in's graph": Model(_graph, 0, kinks=True, raises=True, every=5),
    "plug-in's graph, classes": Model(partial(_graph, 2), 2, kinks=True, raises=True, every=7),
    "plug-in's loss": Model(partial(PlugInLoss, FEATURES), 2),
}

UNITS: dict[str, tuple[Record | Person, int]] = {
    "record": (RECORD, 1),
    "clip, 1": (Person("clip"), 1),
    "clip, 4": (Person("clip"), 4),
    "mean, 1": (Person("mean"), 1),
    "mean, 4": (Person("mean"), 4),
    "limit, 1": (Person("limit", 1), 1),
    "smooth, 1": (Person("smooth", 1), 1),
}
"""Units, and the unit's number of records: a power of two, whose parts of a count are exact."""


@dataclass(frozen=True)
class Place:
    """Where the unit stands: the `place`-th of nulls + 1, the first other of which has `heavy` records.

    `kind`: of null units. `before`, `behind`: silos in the cohort, of `others` records each. `batch`: of a
    batch that is drawn by index with so many nulls, in their order or not. `copies`: of a fold of runs.
    """

    nulls: int = 0
    place: int = 0
    heavy: int = 1
    kind: str = "long"
    before: int = 0
    behind: int = 0
    others: int = 3
    batch: int | None = None
    ordered: bool = True
    copies: int = 1
    chunk: int | None = None
    threads: int = 1


@dataclass(frozen=True)
class Asked:
    """A query that a number moves; where the term jumps as it goes from `span[0]` to `span[1]`, if it does.

    `kinds`: of null units that add nothing, or where it `counts`, whole numbers. `entry`: which number of the
    answer tells a jump, or all. `fractions`: whether only one record's answer is a term, not a rounded sum.
    `numbers`: where it is moved to, if it has no jump. `plain`: of records whose score is the number itself.
    """

    query: Callable[[float], Query]
    span: tuple[float, float] | None = None
    kinds: Sequence[str] = ("long", "unlabelled")
    entry: int | None = None
    counts: bool = False
    fractions: bool = False
    numbers: Sequence[float] = (0.0,)
    plain: bool = False

    @lru_cache(maxsize=8)  # noqa: B019  as long as the tests
    def taken(self, number: float) -> Query:
        return copied_queries((self.query(number),))[1][0]


@cache
def questions(name: str) -> dict[str, Asked]:
    """What is asked of a model, by name."""
    model = MODELS[name]
    problem, rng = model.problem, np.random.default_rng(crc32(name.encode()))
    if type(problem) is NeuralNetwork:
        w = problem.start(1).double()  # of a paired network where all scores are 0
        w += 0.1 * torch.from_numpy(rng.normal(size=w.shape))
    else:
        w = torch.from_numpy(rng.normal(size=problem.dimension) * 0.5)
    w2 = w + 1e-3 * torch.from_numpy(rng.normal(size=w.shape))
    last, hidden = (0, 0) if model.linear else (model.biases()[-1], model.biases()[-2])

    def at(entry: int, number: float) -> Tensor:
        moved = w.clone()
        moved[entry] += number
        return moved

    def asked(statistic: str, *points: Tensor, options=(), **more) -> Query:
        return Query(statistic, points, 1.0, options=tuple(options), **more)

    def moved(statistic: str, options=(), span=(-FAR, FAR), **more) -> Asked:
        own = {"counts": span is not None} | more
        return Asked(lambda t: asked(statistic, at(last, t), options=options), span, **own)

    zeros = (*Asked.kinds, *["raising"] * model.raises)
    found = {
        "gradient": Asked(lambda t: asked("gradient", w), kinds=zeros),
        "gradient_difference": Asked(lambda t: asked("gradient_difference", w, w2), kinds=zeros),
        "longer": Asked(
            lambda t: asked("longer", w, torch.tensor([t], dtype=F64)), (0.0, 1e9 * model.scale**2), zeros
        ),
        "sum": Asked(
            lambda t: asked("sum", options=(2, 0, 9 * model.scale)), kinds=("long",), fractions=True
        ),
        "second_moment": Asked(
            lambda t: asked("second_moment", options=(0,)), kinds=("long",), fractions=True
        ),
    }
    if model.kinks:
        entry = None if model.linear else hidden
        found["gradient at a kink"] = Asked(
            lambda t: asked("gradient", at(hidden, t)), (-FAR, FAR), zeros, entry
        )
    if model.linear:
        transform = torch.from_numpy(rng.normal(size=(4, model.features)))
        small = torch.from_numpy(rng.normal(size=4 * problem.num_outputs))
        found["gradient, transformed"] = Asked(lambda t: asked("gradient", small, transform=transform))
        edge = 1e6 * model.scale
        found["histogram, transformed"] = Asked(
            lambda t: asked("histogram", options=(1, 1, -edge, t, edge), transform=transform),
            (-edge / 2, edge / 2),
            counts=True,
        )
    if not model.classes:
        return found
    cells = (2, model.classes, 1)
    found["mistakes"] = moved("mistakes", kinds=zeros)
    if name not in ("hinge", "hinge, smoothed"):
        found |= {
            "log_loss": moved("log_loss", (BOUND,), None, kinds=("certain",), fractions=True),
            "brier": moved("brier", (), None, kinds=("certain",), fractions=True),
            "joint": moved("joint", (*cells, 0), None),
            "joint, classes": moved("joint", (*cells, 0.5)),
        }
        if model.classes == 2:
            found["score_histogram"] = moved("score_histogram", (50,), kinds=zeros)
    if name == "logistic":
        found |= _at_scores(asked, w)
    if name != "plug-in's loss":
        found["choice"] = Asked(lambda t: Query("choice", (at(last, t), w2), 1e3), (0.0, 1.0), counts=True)
    if model.table:
        table = torch.from_numpy(rng.normal(size=2 * model.classes) * 0.1)
        found["costed_gradient"] = Asked(
            lambda t: asked("costed_gradient", w, table, options=(2, model.classes, 0, 9))
        )
    return found


@cache
def _shifting() -> dict[float, float]:
    """Scores whose probability torch rounds by their place, to the lower of the two that it gives them."""
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=2**15))
    many, alone = scores.sigmoid(), torch.cat([score.sigmoid() for score in scores.split(1)])
    found = (many != alone).nonzero().flatten()[:8].tolist() or range(8)
    return {float(scores[i]): min(float(many[i]), float(alone[i])) for i in found}


def _at_scores(asked: Callable[..., Query], w: Tensor) -> dict[str, Asked]:
    """Questions that torch's sigmoid would answer by a record's place."""

    def at(score: float) -> Tensor:
        moved = w.clone()
        moved[0] = score
        return moved

    shifting = {"numbers": tuple(_shifting()), "plain": True}
    return {
        "joint at a score": Asked(lambda s: asked("joint", at(s), options=(2, 2, 0, 0)), **shifting),
        "joint, classes at a score": Asked(
            lambda s: asked("joint", at(s), options=(2, 2, 0, _shifting()[s])), counts=True, **shifting
        ),
        "longer at a score": Asked(
            lambda s: asked("longer", at(s), torch.tensor([_shifting()[s]], dtype=F64)), **shifting
        ),
        "brier at a score": Asked(
            lambda s: asked("brier", at(s)), kinds=("certain",), fractions=True, **shifting
        ),
        "gradient at a score": Asked(lambda s: asked("gradient", at(s)), **shifting),
    }


BOUND = next(b for b in np.arange(1, 100) / 1000 if (1 - b) - 1 + b > 5e-17)
"""1 - b is rounded up by many times what a logarithm errs by: log loss of a certain, right class is 0."""


@dataclass(frozen=True)
class Case:
    """A unit of so many records, the `which`-th at random, and what is asked of it."""

    model: str
    unit: Record | Person
    records: int
    asked: Asked
    which: int = 0
    _laid_out: dict[object, tuple[list[Any], Records]] = field(
        default_factory=dict, compare=False, init=False
    )

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(crc32(f"{self.model} {self.records} {self.which}".encode()))

    def of_unit(self) -> tuple[np.ndarray, np.ndarray]:
        """The unit's features and targets."""
        model, rng = MODELS[self.model], self.rng
        x = rng.normal(size=(self.records, model.features)) * model.scale
        x[:, [0, 2]] = abs(x[:, [0, 2]])  # records jump to one side; within the range of `sum`
        if model.raises:
            x[:, 0] = 1.0
        if self.asked.plain:
            return np.eye(1, model.features).repeat(self.records, 0), np.zeros(self.records)
        y = rng.integers(0, model.classes, self.records) if model.classes else rng.normal(size=self.records)
        return x, y.astype(float)

    def null(self, kind: str, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Features and target of a record that adds nothing, or a whole number."""
        model = MODELS[self.model]
        x = rng.normal(size=model.features) * model.scale
        if model.raises:
            x[0] = 2.0
        if kind == "long":
            return x * HUGE, 0.0
        if kind == "unlabelled":
            return x * 10, HUGE
        if kind == "raising":
            x[0] = 9.0
            return x, 0.0
        assert kind == "certain"
        x[3:] *= 1e7
        point = self.asked.taken(self.asked.numbers[0]).points[0]
        scores = model.problem.scores(torch.from_numpy(x)[None], point)
        scores = torch.stack([torch.zeros(1), scores], -1) if scores.dim() == 1 else scores
        first, second = scores[0].topk(2).values.tolist()
        assert first - second > 750  # the exponential of less is 0
        return x, float(scores.argmax(-1))

    def silo(self, where: Place, unit: bool = True) -> tuple[np.ndarray, ...]:
        """Features, targets, groups, and whose each record is; of the nulls alone without the unit."""
        rng, x, y, group, whose = np.random.default_rng(7), [], [], [], []
        for i in range(where.nulls + 1):
            if i == where.place:
                own, target = self.of_unit()
                if not unit:
                    continue
                x, y, group = [*x, own], [*y, target], [*group, np.zeros(len(own), int)]
            else:
                count = where.heavy if i == (0 if where.place else 1) else 1
                count = 1 if self.unit == RECORD else count
                rows = [self.null(where.kind, rng) for _ in range(count)]
                x.append(np.stack([each for each, _ in rows]))
                y.append(np.array([target for _, target in rows]))
                group.append(np.full(count, -1))
            whose.append(np.full(len(x[-1]), i))
        return tuple(np.concatenate(each) for each in (x, y, group, whose))

    def answer(self, where: Place, number: float) -> Tensor:
        """The unit's own part of its silo's answer; without signs of zeros."""
        asked = self.asked.taken(number)
        found = self._sum(where, asked)
        if self.asked.counts and where.nulls and where.batch != 0:
            found = found - self._sum(where, asked, unit=False)
        return found + 0.0

    def _sum(self, where: Place, asked: Query, unit: bool = True) -> Tensor:
        """As the gate asks for it, of the unit's silo; without the unit, of its null units."""
        silos, records = self._cohort(where, unit)
        problem, members = MODELS[self.model].problem, list(range(len(silos) * where.copies))
        run, releases = Releases.__new__(Releases), RoundReleases.__new__(RoundReleases)
        run.records, run.problem, run.mechanism, run.dtype = records, problem, CLIP_ONLY, F64
        run.public, run._transformed = None, None
        run.size = partial(size_of, dimension=problem.dimension, features=problem.num_features)
        releases._run, releases._members = run, members
        blocks = records.full(members)
        if where.batch is not None:
            blocks = records.batch(members, self._drawn(silos, where, unit))
        if where.copies > 1:  # the last run is asked for what the unit is, others elsewhere
            by = 1 + 0.37 * torch.arange(where.copies - 1, -1, -1).repeat_interleave(len(silos))[:, None]
            asked = replace(asked, points=tuple(point * by.double() for point in asked.points))
        with _chunks_of(where.chunk), _threads(where.threads):
            return releases._sum(asked, blocks)[(where.copies - 1) * len(silos) + where.before]

    def _cohort(self, where: Place, unit: bool) -> tuple[list[tuple[np.ndarray, ...]], Records]:
        """Every silo's features, targets, groups and whose each record is, and these laid out."""
        key = replace(where, batch=None, ordered=True, chunk=None, threads=1), unit
        if key in self._laid_out:
            return self._laid_out[key]
        model, rng, silos = MODELS[self.model], np.random.default_rng(3), list[Any]()
        for _ in range(where.before + where.behind):
            x = rng.normal(size=(where.others, model.features)) * 1000
            if model.raises:
                x[:, 0] = rng.integers(0, 8, where.others)
            zeros = np.zeros(where.others)
            silos.append((x, zeros, zeros.astype(int), np.arange(where.others)))
        silos.insert(where.before, self.silo(where, unit))
        tables, seeded = [own[:3] for own in silos], (0, 0, [str(i) for i in range(len(silos))])
        if where.copies > 1:
            records: Records = SideBySide(tables, model.problem, F64, where.copies)
        else:
            persons = Owners.of(self.unit, [own[3] for own in silos], seeded)
            records = lay_out(tables, model.problem, F64, persons)
        self._laid_out[key] = silos, records
        return silos, records

    def _drawn(self, silos: Sequence[tuple], where: Place, unit: bool) -> list[np.ndarray]:
        """Which units of each silo a batch has: in the unit's, it and some nulls."""
        rng, drawn = np.random.default_rng(where.nulls + 100 * (where.batch or 0)), []
        for i, own in enumerate(silos):
            if i != where.before:
                drawn.append(np.sort(rng.permutation(len(own[1]))[: 1 + i % 3]))
                continue
            beside = rng.permutation(np.delete(np.arange(where.nulls + 1), where.place))[: where.batch]
            taken = rng.permutation(np.append(beside, where.place))
            if where.ordered:
                taken = np.sort(taken)
            if not unit:
                taken = taken[taken != where.place]
                taken = taken - (taken > where.place)
            drawn.append(taken)
        return drawn

    def numbers(self) -> list[float]:
        """Where the query is moved to: 0, or the two numbers between which the lone unit's term jumps."""
        if self.asked.span is None:
            return list(self.asked.numbers)
        low, high = self.asked.span
        start = self._told(low)
        while low < (middle := low + (high - low) / 2) < high:
            low, high = (middle, high) if self._told(middle) == start else (low, middle)
        return [low, high]

    def _told(self, number: float) -> bytes:
        found = self.answer(Place(), number)
        if self.asked.entry is not None:
            return bytes([bool(found[self.asked.entry] != 0)])
        return found.numpy().tobytes()

    def jumping(self) -> "Case":
        """A copy with a unit whose term jumps, where one is to; what it lays out goes with it."""
        if self.asked.span is None:
            return replace(self)
        units = (replace(self, which=which) for which in range(20))
        return next(own for own in units if own._told(own.asked.span[0]) != own._told(own.asked.span[1]))

    def differing(self, places: Sequence[Place]) -> list[Place]:
        """Where the unit's term has other bits than alone."""
        case, different = self.jumping(), []
        for number in case.numbers():
            alone = case.answer(Place(), number)
            assert bool(alone.isfinite().all())
            different += [where for where in places if not torch.equal(case.answer(where, number), alone)]
        return different


@contextmanager
def _chunks_of(records: int | None) -> Iterator[None]:
    """So many records, or persons, are treated at a time; None: as many as usual."""
    if records is None:
        yield
        return

    usual = silos.vault.network.strategy

    def strategy(problem, dtype):
        return usual(problem, dtype)[0], records

    with ExitStack() as stack:
        for what, value in (
            ("silos.vault.network.strategy", strategy),
            ("silos.vault.person_sums.NUMBERS", records),
            ("fedsim.problems.network_pass.ROWS", records),
        ):
            stack.enter_context(patch(what, value))
        yield


@contextmanager
def _threads(count: int) -> Iterator[None]:
    if count == torch.get_num_threads() == 1:
        yield
        return
    before = torch.get_num_threads()
    with threadpool_limits(count, "blas"):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def places(case: Case, counts: Sequence[int], heavy: Sequence[int], cohorts: Sequence[int]) -> list[Place]:
    """Places of the unit that a case can have, at these counts of nulls and of silos in the cohort."""
    model, found = MODELS[case.model], list[Place]()
    for kind in case.asked.kinds:
        for nulls in counts:
            weights = heavy if nulls and case.unit != RECORD else (1,)
            most = 16 if kind == "raising" else nulls
            for place in sorted({0, min(1, nulls), nulls // 2, nulls}):
                found += [Place(min(nulls, most), min(place, most), weight, kind) for weight in weights]
        for beside in (0, 1, 7):
            placed = Place(16, 5, heavy[-1], kind, batch=beside)
            found += [placed, replace(placed, ordered=False), replace(placed, before=1, behind=1)]
        if case.unit != RECORD or not model.linear:
            found += [Place(16, place, heavy[-1], kind, chunk=size) for place in (0, 9) for size in (1, 7)]
        found.append(Place(counts[-1], counts[-1] // 2, 1, kind, threads=2))
    for silos_beside in cohorts:
        for records in (1, 2, 5, 8):
            beside = Place(others=records)
            found += [replace(beside, before=silos_beside), replace(beside, behind=silos_beside)]
    if case.unit == RECORD and model.linear:
        kind = case.asked.kinds[0]
        found += [Place(nulls, nulls, kind=kind, copies=runs) for nulls in (0, 1, 16) for runs in (2, 3, 4)]
    return list(dict.fromkeys(found))


def cases(only: Callable[[str, str, str], bool]) -> list[object]:
    """Cases by model, unit and question, as parameters."""
    found = []
    for model in MODELS:
        for name, (unit, records) in UNITS.items():
            for question, asked in questions(model).items():
                if not (asked.fractions and records > 1) and only(model, name, question):
                    own = Case(model, unit, records, asked)
                    found.append(pytest.param(own, id=f"{model}-{name}-{question}"))
    return found


QUICK = """
logistic-record-gradient  logistic-record-score_histogram  logistic-clip, 4-gradient_difference
logistic-record-gradient, transformed  logistic-clip, 1-longer  logistic-mean, 4-costed_gradient
logistic-clip, 1-joint at a score  logistic-clip, 4-joint, classes at a score
logistic-clip, 1-longer at a score  logistic-clip, 1-log_loss  logistic-smooth, 1-joint, classes
logistic-record-histogram, transformed  softmax-record-gradient  softmax-clip, 4-joint, classes
softmax-limit, 1-costed_gradient  softmax-mean, 4-longer  softmax-clip, 1-choice
linear-record-gradient_difference  linear, long-mean, 4-gradient  linear, long-clip, 4-longer
hinge-record-gradient at a kink  hinge-clip, 4-gradient at a kink
hinge-smooth, 1-gradient at a kink  hinge, smoothed-record-gradient
absolute-record-gradient at a kink  absolute-clip, 1-gradient at a kink
mlp-record-gradient at a kink  mlp-clip, 4-gradient at a kink  mlp-clip, 1-score_histogram
mlp-mean, 4-mistakes  mlp-mean, 1-longer  mlp-clip, 1-joint, classes  logistic-mean, 1-mistakes
mlp, deep-smooth, 1-gradient_difference  paired mlp-mean, 4-gradient  paired mlp-record-brier
lenet-clip, 1-gradient  plug-in's graph-record-gradient at a kink
plug-in's graph, classes-clip, 4-gradient  plug-in's loss-record-gradient
plug-in's loss-clip, 4-gradient_difference
"""


def quick() -> list[object]:
    """Of each way to a term some cases; of each some places."""
    wanted = {each.strip() for line in QUICK.split("\n") for each in line.split("  ") if each.strip()}
    found = cases(lambda *names: "-".join(names) in wanted)
    assert len(found) == len(wanted)
    return found


@pytest.mark.parametrize("case", quick())
def test_equal_units_give_equal_bits(case: Case) -> None:
    tried = places(case, (0, 1, 7, 40), (1, 4), (1, 5))
    assert case.differing(tried[::5]) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(lambda *names: True))
def test_equal_units_give_equal_bits_everywhere(case: Case) -> None:
    heavy = (1, 2, 4) if case.asked.counts else (1, 2, 3)
    tried = places(case, (0, 1, 2, 7, 16, 63, 130), heavy, (1, 2, 5, 9))
    assert case.differing(tried[:: MODELS[case.model].every]) == []


NARROW = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
BASE = {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ATEN_CPU_CAPABILITY": "default"}
KERNELS = {
    "AVX2": NARROW | {"NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL"},
    "baseline": BASE | {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL"},
    **{f"OpenBLAS {core}": {"OPENBLAS_CORETYPE": core} for core in ("Haswell", "SkylakeX", "Nehalem")},
}


@pytest.mark.slow
@pytest.mark.parametrize("variables", KERNELS.values(), ids=KERNELS)
def test_they_do_with_other_kernels(variables: dict[str, str]) -> None:
    """In a process of its own, since kernels are chosen where libraries load."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly"]
    own = ["-m", "not slow", "-o", "addopts=", __file__]
    found = subprocess.run([*command, *own], capture_output=True, text=True, env={**os.environ, **variables})
    assert found.returncode == 0, found.stdout[-2000:]
