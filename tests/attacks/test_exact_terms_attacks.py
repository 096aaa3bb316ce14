"""No number of a unit depends on what stands beside it: units on kinks and thresholds, to within an ulp.

A constructed case gives a problem, queries at hostile points, and worlds that differ in the first unit.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from support import kinked_modules
from support.kinks import moved, near, scores, tuned, worlds
from torch import Tensor

from fedsim.common import process
from fedsim.problems import exact, kinds
from fedsim.problems.glm import (
    AbsoluteError,
    HingeLoss,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Lenet, Mlp, PairedMlp
from fedsim.protocol.batch import FULL, Poisson, Subsample
from fedsim.protocol.contract import Query
from fedsim.protocol.statistics import statistic
from fedsim.protocol.unit import RECORD, Person
from fedsim.simulation.side_by_side import SideBySide
from silos.vault.network import layerwise

D = 13  # odd, so that every other row begins at an address that 16 does not divide
UNITS = [
    RECORD,
    *(Person(bound) for bound in ("clip", "mean")),
    *(Person(bound, 2) for bound in ("smooth", "limit")),
    *(Person(bound, relation="add_remove") for bound in ("clip", "mean")),
    Person("smooth", 2, relation="add_remove"),
]


def tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))


class Build:
    """Records and points of one size and seed."""

    scale = 1.0  # of a network's parameters

    def __init__(self, n: int, seed: int, d: int = D) -> None:
        self.n, self.d, self.rng = n, d, np.random.default_rng(seed)
        self.x, self.w = self.rng.normal(size=(n, d)), tensor(self.rng.normal(size=d))


Case = tuple[object, list[Query], np.ndarray, np.ndarray]
"""Problem, queries, and the records and targets of the units that are the same in all worlds."""

CASES: dict[str, Callable[[Build], Case]] = {}


def case(build):
    CASES[build.__name__] = build
    return build


def gradient(*points: Tensor, **more: object) -> Query:
    kind = "gradient" if len(points) == 1 else "gradient_difference"
    return Query(kind, points, more.pop("clip", 1.0), **more)


def spread(y: np.ndarray) -> np.ndarray:
    """A third each at, just above and just below these numbers."""
    third = np.arange(len(y)) % 3
    return np.select([third == 0, third == 1], [y, np.nextafter(y, np.inf)], np.nextafter(y, -np.inf))


# Linear models: kinks.


@case
def absolute_error(b):
    p = AbsoluteError(b.d)
    return p, [gradient(b.w)], b.x, spread(scores(p, b.x, b.w))


@case
def absolute_error_alike(b):
    p = AbsoluteError(b.d)
    x = np.repeat(b.x[:1], b.n, 0)
    return p, [gradient(b.w)], x, scores(p, x, b.w)


@case
def absolute_error_difference(b):
    p = AbsoluteError(b.d)
    other = tensor(np.nextafter(b.w.numpy(), 9))
    return p, [gradient(b.w, other)], b.x, spread(scores(p, b.x, b.w))


@case
def absolute_error_smoothed(b):
    p = AbsoluteError(b.d, smoothing=1e16)
    return p, [gradient(b.w)], b.x, spread(scores(p, b.x, b.w))


def far(b, length, problem, **more):
    x = b.x * length
    p = problem(b.d)
    w = b.w * (1e5 / length if length > 1e6 else 1)
    return p, [gradient(b.w * 1e5, **more), gradient(w, **more)], x, scores(p, x, b.w * 1e5).clip(-1e12, 1e12)


for _length in (1e8, 1e10, 1e12 / 8):
    for _problem in (AbsoluteError, LinearRegression):
        CASES[f"{_problem.__name__} of length {_length:.0e}"] = partial(far, length=_length, problem=_problem)
CASES["LinearRegression of length 1e-29"] = partial(far, length=1e-29, problem=LinearRegression)
CASES["AbsoluteError of length 1e10, small clip"] = partial(
    far, length=1e10, problem=AbsoluteError, clip=1e-6
)


@case
def hinge(b):
    p = HingeLoss(b.d)
    x = tuned(b.x, b.w, lambda x: scores(p, x, b.w), 1.0)
    return p, [gradient(b.w)], x, np.ones(b.n)


@case
def hinge_other_class(b):
    p = HingeLoss(b.d)
    x = tuned(b.x, b.w, lambda x: scores(p, x, b.w), -1.0)
    return p, [gradient(b.w)], x, np.zeros(b.n)


@case
def hinge_smoothed(b):
    p = HingeLoss(b.d, smoothing=1e15)
    x = tuned(b.x, b.w, lambda x: scores(p, x, b.w), 1.0)
    return p, [gradient(b.w)], x, np.ones(b.n)


def transformed(features, matrix):
    """As a silo transforms its records (`silos.vault.terms.Transformed`)."""
    return exact.scores(features, matrix.T.flatten(), len(matrix)).view(len(features), -1)


def kink_of_transformed(b, k):
    """Records whose k transformed features are at the kink."""
    m = tensor(b.rng.normal(size=(k, b.d)))
    p, w = AbsoluteError(b.d), tensor(b.rng.normal(size=k))
    inner = torch.cat([transformed(tensor(row[None]), m) for row in b.x]).numpy()
    return p, [gradient(w, transform=m)], b.x, spread(scores(AbsoluteError(k), inner, w))


@case
def transformed_kink(b):
    return kink_of_transformed(b, 5)


@case
def transformed_to_one_feature(b):
    return kink_of_transformed(b, 1)


@case
def transformed_to_almost_nothing(b):
    """Transformed records about as short as those that count as the zero vector."""
    m = tensor(b.rng.normal(size=(1, b.d)))
    size = float(transformed(tensor(b.x[:1]), m).abs())
    x = np.repeat(b.x[:1], b.n, 0)
    found = [m * (1e-30 / size) * (1 + k * 2**-53) for k in (-2, 0, 2)]
    return LogisticRegression(b.d), [gradient(b.w[:1], transform=each) for each in found], x, np.ones(b.n)


@case
def one_feature(b):
    p = AbsoluteError(1)
    x, w = b.x[:, :1].copy(), b.w[:1]
    return p, [gradient(w)], x, spread(scores(p, x, w))


@case
def many_features(b):
    p, x = AbsoluteError(1031), b.rng.normal(size=(b.n, 1031))
    w = tensor(b.rng.normal(size=1031))
    return p, [gradient(w)], x, spread(scores(p, x, w))


# Thresholds.


@case
def longer_logistic(b):
    """All of one record, whose length is the threshold."""
    p, x = LogisticRegression(b.d), np.repeat(b.x[:1], b.n, 0)
    length = (1 / (1 + np.exp(-scores(p, x, b.w)[0]))) * np.sqrt(np.vecdot(x[0], x[0]))
    ends = [own for k in range(-3, 4) for own in [length * (1 + k * 2**-52)]]
    return p, [Query("longer", (b.w, tensor(np.array([each]))), 1.0) for each in ends], x, np.zeros(b.n)


@case
def longer_softmax(b):
    p, x = SoftmaxRegression(b.d, 3), np.repeat(b.x[:1], b.n, 0)
    w = tensor(b.rng.normal(size=3 * b.d))
    soft = np.exp(scores(p, x[:1], w)[0])
    slope = soft / soft.sum() - np.array([1, 0, 0])
    length = float(np.linalg.norm(slope) * np.linalg.norm(x[0]))
    ends = [length * (1 + k * 2**-52) for k in range(-4, 5)]
    return p, [Query("longer", (w, tensor(np.array([each]))), 1.0) for each in ends], x, np.zeros(b.n)


@case
def longer_network(b):
    p = NeuralNetwork(b.d, 1, model=Mlp((7,)))
    w, x = p.start(0).double(), np.repeat(b.x[:1], b.n, 0)
    terms = layerwise(p, torch.float64, [w])(tensor(x[:1]), torch.zeros(1, dtype=torch.float64))
    length = float(sum(term.square for _, term in terms).sqrt())
    return p, [Query("longer", (w, tensor(np.array([each]))), 1.0) for each in near(length)], x, np.zeros(b.n)


@case
def mistakes_at_zero(b):
    p = LogisticRegression(b.d)
    x = tuned(b.x, b.w, lambda x: scores(p, x, b.w), 0.0)
    return p, [Query("mistakes", (b.w,), 1.0)], x, np.ones(b.n)


@case
def mistakes_of_equal_classes(b):
    """Two classes with equal scores, but for rounding."""
    p, w = SoftmaxRegression(b.d, 2), b.rng.normal(size=(b.d, 2))
    w[:, 1] = w[::-1, 0]
    x = b.x + b.x[:, ::-1]
    return p, [Query("mistakes", (tensor(w.flatten()),), 1.0)], x, np.ones(b.n)


def at_odds(p, b, share):
    """Records whose probability of class 1 is within an ulp of this share."""
    return tuned(b.x, b.w, lambda x: scores(p, x, b.w), float(np.log(share / (1 - share))))


@case
def score_histogram(b):
    p = LogisticRegression(b.d)
    bins = [float(own) for own in (2, 4, 10, 1000)]
    return (
        p,
        [Query("score_histogram", (b.w,), 1.0, options=(own,)) for own in bins],
        at_odds(p, b, 0.25),
        np.ones(b.n),
    )


@case
def score_histogram_of_one_record(b):
    p, x = LogisticRegression(b.d), np.repeat(b.x[:1], b.n, 0)
    points = [tensor(np.nextafter(b.w.numpy(), s)) for s in (-9, 9)]
    shares = [float(1 / (1 + np.exp(-scores(p, x[:1], w)[0]))) for w in points]
    queries = []
    for w, share in zip(points, shares, strict=True):
        for scale in (0.5, 0.25):
            at = w * (float(np.log(scale / (1 - scale))) / float(np.log(share / (1 - share))))
            queries += [
                Query("score_histogram", (tensor(np.nextafter(at.numpy(), s)),), 1.0, options=(4.0,))
                for s in (-9, 9)
            ]
    return p, queries, x, np.zeros(b.n)


@case
def joint_with_threshold(b):
    p = LogisticRegression(b.d)
    queries = [Query("joint", (b.w,), 1.0, options=(2.0, 2.0, 1.0, own)) for own in near(0.25)]
    return p, queries, at_odds(p, b, 0.25), np.ones(b.n)


@case
def joint_of_three_classes(b):
    p, w = SoftmaxRegression(b.d, 3), b.rng.normal(size=(b.d, 3))
    w[:, 1] = w[::-1, 0]
    x = b.x + b.x[:, ::-1]
    return p, [Query("joint", (tensor(w.flatten()),), 1.0, options=(2.0, 3.0, 1.0, 0.5))], x, np.ones(b.n)


@case
def histogram_edge(b):
    edges = sorted({float(own) for own in b.x[:7, 1]})
    x = b.x.copy()
    x[:, 1] = np.resize([near(own)[k] for own in edges for k in range(3)], b.n)
    return (
        LogisticRegression(b.d),
        [Query("histogram", (), 1.0, options=(1.0, 1.0, -99.0, *edges, 99.0))],
        x,
        np.ones(b.n),
    )


@case
def histogram_edge_transformed(b):
    m, x = tensor(b.rng.normal(size=(3, b.d))), np.repeat(b.x[:1], b.n, 0)
    edges = near(float(transformed(tensor(x[:1]), m)[0, 1]))
    queries = [
        Query("histogram", (), 1.0, options=(1.0, 1.0, -99.0, own, 99.0), transform=m) for own in edges
    ]
    return LogisticRegression(b.d), queries, x, np.ones(b.n)


@case
def histogram_of_two_columns(b):
    x = b.x.copy()
    x[:, 1], x[:, 2] = 0.1, 0.2
    edges = near(0.1 + 2 * 0.2)
    queries = [Query("histogram", (), 1.0, options=(2.0, 1.0, 2.0, -99.0, own, 99.0)) for own in edges]
    return LogisticRegression(b.d), queries, x, np.ones(b.n)


@case
def choice(b):
    p = LogisticRegression(b.d)
    return (
        p,
        [Query("choice", (b.w, tensor(np.nextafter(b.w.numpy(), 9))), own) for own in (1.0, 1e-3)],
        b.x,
        np.ones(b.n),
    )


@case
def choice_of_great_losses(b):
    p = LinearRegression(b.d)
    x = b.x * 1e8
    return p, [Query("choice", (b.w, -b.w), 1e-6)], x, scores(p, x, b.w)


@case
def quantile(b):
    x = b.x.copy()
    x[:, 1] = np.resize([own for each in np.linspace(-1, 1, 9) for own in near(each)], b.n)
    return (
        LogisticRegression(b.d),
        [Query("quantile", (), 1.0, options=(1.0, 0.25, *np.linspace(-1, 1, 9)))],
        x,
        np.ones(b.n),
    )


@case
def sums_moments_and_shares(b):
    p = LogisticRegression(b.d)
    queries = [
        Query("second_moment", (), 1.0, options=(1.0,)),
        Query("sum", (), 1.0, options=(2.0, -1.0, 1.0)),
        Query("log_loss", (b.w,), 1.0, options=(0.01,)),
        Query("brier", (b.w,), 1.0),
        Query("joint", (b.w,), 1.0, options=(2.0, 2.0, 1.0, 0.0)),
        Query("costed_gradient", (b.w, tensor(b.rng.normal(size=4))), 1.0, options=(2.0, 2.0, 0.0, 9.0)),
    ]
    return p, queries, b.x, (np.arange(b.n) % 2).astype(float)


# Losses of others.


@case
def loss_of_others(b):
    p = kinked_modules.Median(b.d)
    return p, [gradient(b.w)], b.x, spread(scores(p, b.x, b.w))


@case
def stepwise_loss_of_others(b):
    p = kinked_modules.Steps(b.d)
    return p, [gradient(b.w)], at_odds(p, b, 0.25), np.ones(b.n)


@case
def raising_loss_of_others(b):
    """The first unit's label, where it is 9, is beyond the table."""
    p = kinked_modules.Table(b.d)
    x = tuned(b.x, b.w, lambda x: scores(p, x, b.w), 1.0)
    return p, [gradient(b.w)], x, np.ones(b.n)


# Networks.


def network(b, p, *more):
    """Each hidden unit at the kink of a record of its own, by its bias as the silo computes the rest."""
    w = b.scale * 0.5 * tensor(b.rng.normal(size=p.dimension))
    parameters = p.parameters(w)
    name, bias = next(iter(parameters)), parameters[next(k for k in parameters if k.endswith("bias"))]
    inputs = exact.rounded(tensor(b.x)) @ exact.rounded_weight(parameters[name]).T
    units = torch.arange(len(bias)) % b.n
    bias.copy_(-inputs[units, torch.arange(len(bias))])
    up, down = w.clone(), w.clone()
    for point, end in ((up, np.inf), (down, -np.inf)):
        own = p.parameters(point)[next(k for k in parameters if k.endswith("bias"))]
        own.copy_(tensor(np.nextafter(own.numpy(), end)))
    classes = max(1, p.num_outputs)
    y = b.rng.integers(classes, size=b.n).astype(float) if classes > 1 else b.rng.normal(size=b.n)
    return p, [gradient(w), gradient(up), gradient(w, down), *more], b.x, y


@case
def mlp(b):
    return network(b, NeuralNetwork(b.d, 1, model=Mlp((64,))))


@case
def mlp_of_two_layers(b):
    return network(b, NeuralNetwork(b.d, 3, model=Mlp((31, 17))))


@case
def mlp_of_great_records(b):
    b.x *= 1e10
    b.scale = 1e-5
    return network(b, NeuralNetwork(b.d, 2, model=Mlp((64,))))


@case
def mlp_of_tiny_records(b):
    b.x *= 1e-29
    return network(b, NeuralNetwork(b.d, 2, model=Mlp((64,))))


@case
def paired_mlp(b):
    return network(b, NeuralNetwork(b.d, 2, model=PairedMlp(8)))


def images(b, x):
    p = NeuralNetwork(256, 3, model=Lenet((1, 16, 16)))
    w = p.start(0).double()
    zero = w.clone()
    for name, value in p.parameters(zero).items():
        if name.endswith("bias"):
            value.zero_()
    return p, [gradient(w), gradient(zero), gradient(w, zero)], x, (np.arange(b.n) % 3).astype(float)


@case
def images_of_one_colour(b):
    """Every window ties with every other."""
    return images(b, np.repeat(b.rng.normal(size=(b.n, 1)), 256, 1))


@case
def images_of_ties(b):
    return images(b, np.tile(b.rng.normal(size=(b.n, 1, 16)), (1, 16, 1)).reshape(b.n, 256))


@case
def black_images(b):
    """Sums of nothing but biases: with biases of zero all units are at their kink."""
    return images(b, np.zeros((b.n, 256)))


def module(b, attribute, d=6, outputs=3):
    p = NeuralNetwork(d, outputs, model=Imported(f"support.{attribute}"))
    w = p.start(0).double()
    x = b.rng.normal(size=(b.n, d))
    y = (np.arange(b.n) % outputs).astype(float)
    return p, [gradient(w), gradient(-w), gradient(w, 0.5 * w)], x, y


for _name in ("Wide", "Shared", "Own", "StepsFirst", "places"):
    CASES[f"module {_name}"] = partial(module, attribute=f"network_modules:{_name}")


@case
def raising_module(b):
    """One that looks up a feature; the first unit's, where it has 9, is beyond the table."""
    p = NeuralNetwork(b.d, 1, model=Imported("support.network_modules:Looked"))
    b.x[:, 0] = 1.0
    return network(b, p)


@case
def switched_module(b):
    """Most of it does nothing for made-up records; 1,701 sigmoids, not a multiple of a vector's numbers."""
    p = NeuralNetwork(5, 1, model=Imported("support.kinked_modules:switched"))
    x = np.zeros((b.n, 5))
    x[:, 0], x[:, 1] = 101.0, np.arange(b.n) % 9 == 7
    return p, [gradient(each) for each in kinked_modules.edges(p)], x, np.full(b.n, -1e3)


# What the first unit is: of one record, another, two, three, many, none; ordinary, wild, or not finite.


def fronts(b, x, y, unit) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    d = x.shape[1]
    one = b.rng.normal(size=(1, d)), y[:1].copy()
    wild = [np.full((1, d), each) for each in (0.0, 1e300, np.nan, 9.0, 1e-300)]
    if unit == RECORD:
        yield [
            one,
            *((each, y[:1].copy()) for each in wild),
            *((one[0], np.array([t])) for t in (np.nan, 9.0)),
        ]
        return
    several = [
        (np.repeat(one[0], k, 0) * np.arange(1, k + 1)[:, None], np.repeat(one[1], k)) for k in (2, 3, 7)
    ]
    broken = [(np.vstack([one[0], each]), np.repeat(one[1], 2)) for each in wild]
    broken.append((np.repeat(one[0], 2, 0), np.array([one[1][0], 9.0])))
    if unit.one_sided:
        yield from ([(np.empty((0, d)), np.empty(0)), each] for each in (one, *several, *broken))
    else:
        yield [one, *several, *broken]
        yield several[:2]


@pytest.fixture(autouse=True)
def one_thread():
    with process.one_thread():
        yield


def largest(name, n=65, seeds=(0,), units=UNITS, batch=FULL, most=None):
    """The furthest that a silo's sum moves over its price, and that another silo's does. From a batch that
    is no full one gradients alone; and not by a unit more or less, which draws other batches.
    """
    found, other = 0.0, 0.0
    for seed, unit in product(seeds, units):
        b = Build(n, seed)
        problem, queries, x, y = CASES[name](b)
        if batch != FULL:
            queries = [replace(each, batch=batch) for each in queries if statistic(each.statistic).gradient]
        for front, query in product(fronts(b, x, y, unit), queries[:most]):
            if batch == FULL or not getattr(unit, "one_sided", False):
                share, beside = moved(problem, worlds(x, y, front), unit, query, batch, _others(b, x, y))
                found, other = max(found, share), max(other, beside)
    return found, other


def _others(b, x, y):
    return [(x[k : 2 * k + 1], y[k : 2 * k + 1], np.arange(k + 1)) for k in (1, b.n // 2 - 1)]


LONG = {name for name in CASES if name.startswith(("module", "images", "black", "switched"))}


@pytest.mark.parametrize("name", sorted(set(CASES) - LONG))
def test_a_unit_moves_an_answer_by_its_price_and_other_silos_by_nothing(name):
    share, other = largest(name, 17, units=(UNITS[0], UNITS[1]), most=2)
    assert share <= 1 + 1e-9
    assert other == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("batch", [FULL, Poisson(0.5), Subsample(0.9)], ids=lambda batch: batch.sampler)
@pytest.mark.parametrize("name", CASES)
def test_no_construction_moves_it_further(name, batch):
    many = {"n": 17} if name in LONG else {"seeds": range(3)}
    share, other = largest(name, batch=batch, **many)
    assert share <= 1 + 1e-9
    assert other == 0.0


@pytest.mark.parametrize("name", ["absolute_error", "hinge", "mistakes_at_zero", "joint_with_threshold"])
def test_scores_that_are_rounded_by_their_place_are_found(name, monkeypatch):
    """The constructions have power, on a processor too whose kernels happen to round all rows alike."""
    own = exact.scores

    def by_place(features, w, outputs):
        found = own(features, w, outputs)
        return found + torch.arange(found.shape[-1]) % 3 * (found.abs() + 1) * 2**-52

    assert largest(name, 17, units=(Person("clip"),))[0] <= 1 + 1e-9
    monkeypatch.setattr(kinds.exact, "scores", by_place)
    assert largest(name, 129, units=(Person("clip"),))[0] > 1.2


@pytest.mark.parametrize("kind", [AbsoluteError, HingeLoss])
def test_runs_side_by_side_move_by_one_term_where_a_batch_lacks_a_record(kind):
    b = Build(33, 0)
    p = kind(b.d)
    x = tuned(b.x, b.w, lambda x: scores(p, x, b.w), 1.0)
    silos = [(own, np.ones(len(own))) for own in (x, x[:9])]
    records, points = (
        SideBySide(silos, p, torch.float64, 3),
        torch.stack([own for k in (1, -2, 0.5) for own in 2 * [b.w * k]]),
    )
    found = []
    for first in (0, 1):
        blocks = records.batch([0, 1], [np.arange(first, 33), np.arange(9)])
        total = torch.empty(6, b.d, dtype=torch.float64)
        for block in blocks:
            total[block.members] = records.clipped_sum(p, block, [points[block.members]], 1.0)
        found.append(total)
    apart = (found[0] - found[1]).norm(dim=1)
    assert float(apart[::2].max()) <= 1 + 1e-9
    assert float(apart[1::2].max()) == 0
