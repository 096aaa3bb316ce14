"""Clip bound and sensitivity: what one record can do to an answer before noise."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.helpers import alike, asking, divisor, open_gate, problems, scripted, silos_of
from torch import Tensor

from fedsim.problems.glm import (
    AbsoluteError,
    GeneralisedLinear,
    HingeLoss,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from fedsim.protocol.batch import Batch, Fresh, Full, Poisson, Subsample
from fedsim.protocol.contract import Query
from fedsim.simulation.side_by_side import SideBySide
from silos.vault.records import Records, clipped_sum
from silos.vault.sums import weighted_sum

D = 3
ROUNDING = 1e-9
HELD_BACK = {torch.float64: 1e-9, torch.float32: 1.1e-4}  # of the clip, for rounding
HOSTILE = [0.0, -0.0, 5e-324, 1e-200, 1e-162, 1e-45, 1e-23, 1e12, -1e12, 1e13, 1e19, 3e38, -1.7e308]
HOSTILE += [np.nan, np.inf, -np.inf]

every_problem = pytest.mark.parametrize("name", list(problems(1)))
SMOOTHED = {
    f"{kind.__name__} of smoothness {beta:g}": kind(D, smoothing=beta)
    for kind in (HingeLoss, AbsoluteError)
    for beta in (1e-3, 0.5, 100.0)
}
every_statistic = pytest.mark.parametrize("num_points", [1, 2], ids=["gradient", "gradient_difference"])
every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)

numbers = st.one_of(st.sampled_from(HOSTILE), st.floats(-10, 10), st.floats())
records = st.lists(numbers, min_size=D, max_size=D)
targets = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0, 0.5, *HOSTILE]), st.floats())
entries = st.one_of(st.floats(-1e6, 1e6), st.floats(-3, 3), st.sampled_from([0.0, 1e6, -1e6]))
point_pairs = st.lists(entries, min_size=6 * D, max_size=6 * D)
clips = st.one_of(st.just(0.0), st.floats(-6, 6).map(lambda power: 10**power), st.sampled_from([1e-6, 1e6]))


def contribution(
    problem: GeneralisedLinear,
    record: tuple[list[float], float],
    points: list[Tensor],
    clip: float | Tensor,
    dtype: torch.dtype,
    drawn: bool = False,
) -> Tensor:
    """One record's summand, as if its silo held no other; in float64 so that its norm cannot overflow."""
    kept = Records([(np.array([record[0]]), np.array([record[1]]))], problem, dtype)
    (block,) = kept.batch([0], [np.array([0])]) if drawn else kept.full([0])
    return clipped_sum(problem, block, points, clip).double().squeeze(0)


@pytest.mark.parametrize("name", [*problems(1), *SMOOTHED])
@every_statistic
@every_dtype
@settings(derandomize=True, max_examples=50)
@given(x=records, y=targets, entries=point_pairs, clip=clips, drawn=st.booleans())
@example(x=[1e12, 1e12, 0.0], y=1.0, entries=[1e6] * 6 * D, clip=1.0, drawn=False)
@example(x=[1e11, -1e11, 3.0], y=1e12, entries=[1e6, -1e6] * 3 * D, clip=1e-6, drawn=False)
@example(x=[np.nan, 1.0, 0.0], y=0.0, entries=[0.0] * 6 * D, clip=1e6, drawn=True)
@example(x=[1.0, 1.0, 1.0], y=np.inf, entries=[0.0] * 6 * D, clip=1.0, drawn=False)
@example(x=[2.7e-162, 0.0, 0.0], y=1e12, entries=[0.0] * 6 * D, clip=1e-6, drawn=False)
@example(x=[2.7e-19, 0.0, 0.0], y=1e12, entries=[0.0] * 6 * D, clip=1e-6, drawn=False)
def test_no_record_adds_more_than_the_clip(name, num_points, dtype, x, y, entries, clip, drawn):
    problem = (problems(D) | SMOOTHED)[name]
    flat = torch.tensor(entries, dtype=dtype)
    points = [flat[k * 3 * D :][: problem.dimension] for k in range(num_points)]
    term = contribution(problem, (x, y), points, clip, dtype, drawn)
    assert term.isfinite().all()
    assert float(term.norm()) <= clip * (1 + ROUNDING)


@every_problem
@every_statistic
@every_dtype
@pytest.mark.parametrize("clip", [1e-6, 1e-3, 1.0, 1e3])
def test_a_long_term_is_shortened_to_the_clip_and_not_below(name, num_points, dtype, clip):
    """A bound that cut too much would hold as well; the direction stays."""
    problem = problems(D)[name]
    x = [3e4, -4e4, 1e4]
    points = [torch.zeros(problem.dimension, dtype=dtype), torch.zeros(problem.dimension, dtype=dtype)]
    points[1][0] = 1e-3
    points = points[:num_points]
    whole = contribution(problem, (x, 1.0), points, 1e6, dtype)
    term = contribution(problem, (x, 1.0), points, clip, dtype)
    assert float(whole.norm()) > 1e3
    assert float(term.norm()) == pytest.approx(clip, rel=HELD_BACK[dtype])
    torch.testing.assert_close(term / term.norm(), whole / whole.norm(), rtol=1e-4, atol=1e-4)


@every_problem
@every_statistic
def test_a_short_term_is_the_gradient_itself(name, num_points):
    problem = problems(D)[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=D)
    points = [torch.from_numpy(rng.normal(size=problem.dimension)) for _ in range(num_points)]
    term = contribution(problem, (x.tolist(), 1.0), points, 1e3, torch.float64)
    signed = []
    for point in points:
        w = point.clone().requires_grad_()
        row = torch.from_numpy(x).reshape(1, -1)
        loss = problem.losses(problem.scores(row, w), torch.ones(1, dtype=torch.float64)).sum()
        signed.append(torch.autograd.grad(loss, w)[0])
    expected = signed[0] if num_points == 1 else signed[0] - signed[1]
    torch.testing.assert_close(term, expected, rtol=1e-10, atol=1e-12)


@every_dtype
def test_with_clip_zero_nothing_is_left_even_of_a_vanishing_gradient(dtype):
    """With clip 0 the noise is 0 as well: whatever passed would be released exactly.

    Here the record is classified with so large a margin that the squares of its coefficients underflow.
    """
    margin = 400.0 if dtype == torch.float64 else 60.0
    problem = SoftmaxRegression(2, 2)
    point = torch.tensor([0.0, 0.0, margin / 2, -margin / 2], dtype=dtype)
    term = contribution(problem, ([0.123456, 1.0], 0.0), [point], 0.0, dtype)
    assert term.tolist() == [0.0] * 4


def test_a_clip_of_each_silos_own_bounds_that_silo():
    problem = LogisticRegression(D)
    data = [(np.full((2, D), 100.0), np.ones(2)), (np.full((5, D), 100.0), np.ones(5))]
    records = Records(data, problem, torch.float64)
    clip = torch.tensor([[0.5], [3.0]], dtype=torch.float64)
    zero = torch.zeros(D, dtype=torch.float64)
    for block in records.full([0, 1]):
        total = clipped_sum(problem, block, [zero], clip[block.members])
        for member, row in zip(block.members, total, strict=True):
            expected = float(clip[member]) * records.sizes[member]
            assert float(row.norm()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float64, 1e-9), (torch.float32, 3e-4)], ids=str)
def test_the_sum_of_many_records_moves_by_at_most_2c(dtype, kept):
    """Rounding of a long sum is part of its sensitivity: terms alone within the clip are not enough."""
    n, clip = 200_000, 0.7
    rng = np.random.default_rng(0)
    length = rng.uniform(10, 100, (n, 1))
    problem = LogisticRegression(1)
    point = torch.zeros(1, dtype=dtype)

    def total(y):
        records = Records([(length, y)], problem, dtype)
        return float(clipped_sum(problem, records.full([0])[0], [point], clip))

    label = (rng.random(n) < 0.2).astype(float)
    before = total(label)
    for i in rng.integers(n, size=5):
        other = label.copy()
        other[i] = 1 - other[i]
        assert 2 * clip * (1 - kept) <= abs(total(other) - before) <= 2 * clip * (1 + 1e-9)


@every_dtype
@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("drawn", [False, True], ids=["full", "drawn"])
def test_no_data_makes_rounding_move_a_sum_by_more_than_2c(dtype, copies, drawn):
    """Terms that swing just above a power of two, each rounded down there, and not where the sum is 2 less.

    In one float32 sum of 2,048 this adds 3% to the sensitivity.
    """
    n, unit = 2048, 2.0**-13
    swing = np.resize([0.5 + 1.5 * unit, -0.5 + 1.5 * unit], n - 1025)
    terms = np.concatenate([np.ones(1024), [0.25], swing])
    problem = LinearRegression(5)
    x = np.zeros((n, 5))
    x[:, 0] = 1

    def total(terms):
        silos = [(x, -terms)]
        records = SideBySide(silos, problem, dtype, copies) if copies else Records(silos, problem, dtype)
        (block,) = records.batch([0], [np.arange(n)]) if drawn else records.full(range(copies or 1))
        return records.clipped_sum(problem, block, [torch.zeros(5, dtype=dtype)], 1.0)

    other = terms.copy()
    other[0] = -1
    moved = (total(terms) - total(other)).norm(dim=1)
    assert (moved <= 2 * (1 + 1e-12)).all()
    assert (moved >= 2 * (1 - 3e-4)).all()


@every_problem
@pytest.mark.parametrize(
    "bad", [([np.nan, 1, 1], 1.0), ([1, 1, 1], np.nan), ([np.inf, 0, 0], 0.0), ([1, 1, 1], np.inf)]
)
def test_a_record_that_is_not_finite_counts_as_the_zero_vector(name, bad):
    problem = problems(D)[name]
    (good,) = silos_of(problem, [5])
    features, target = good[0].copy(), good[1].copy()
    features[2], target[2] = bad
    zeroed = good[0].copy()
    zeroed[2] = 0
    algorithm = scripted(asking(clip=0.5))
    w = {"w": torch.full((problem.dimension,), 0.3, dtype=torch.float64)}
    answers = [
        open_gate([silo], problem, algorithm, epsilon=np.inf).answer(0, w)["g"]
        for silo in ((features, target), (zeroed, good[1]))
    ]
    assert answers[0].isfinite().all()
    assert torch.equal(answers[0], answers[1])


@dataclass(frozen=True)
class Broken(SoftmaxRegression):
    """A problem whose coefficient is not finite for label 1; one output or several."""

    value: float = math.nan

    def accepts(self, target: Tensor) -> Tensor:
        return target == target

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        bad = target == 1
        bad = bad if scores.dim() == target.dim() else bad.unsqueeze(-1)
        return torch.where(bad, self.value, torch.full_like(scores, 0.1))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [None, 0.0, 2.0], ids=repr)
def test_a_term_that_is_not_finite_spoils_no_sum_whatever_the_statistic(outputs, value, clip):
    """Records and points of today's problems cannot make one; the sum must not rest on that."""
    problem = Broken(2, outputs, value=value)
    point = torch.zeros(problem.dimension, dtype=torch.float64)

    def total(*targets):
        records = Records([(np.ones((len(targets), 2)), np.array(targets))], problem, torch.float64)
        return clipped_sum(problem, records.full([0])[0], [point], clip)

    spoilt = total(0.0, 1.0, 0.0)
    assert spoilt.isfinite().all()
    assert float((spoilt - total(0.0, 0.0)).norm()) <= (1e-12 if clip is None else clip * (1 + 1e-9))


@every_dtype
@pytest.mark.parametrize("columns", [1, 3])
def test_a_weight_that_is_not_finite_counts_as_zero_whatever_its_row(dtype, columns):
    """Sums are looked at in place of weights: rows with zero features and infinities of both signs, too."""
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(2, 40, 5))).to(dtype)
    features[:, 3], features[:, 4, :4] = 0, 0
    for bad in ([math.nan] * 3, [math.inf, -math.inf, math.inf], [-math.inf, math.nan, math.inf]):
        weights = torch.from_numpy(rng.normal(size=(2, columns, 40))).to(dtype)
        zeroed = weights.clone()
        for row, value in zip((3, 4, 5), bad, strict=True):
            weights[0, 0, row], zeroed[0, 0, row] = value, 0
        expected = zeroed.double() @ features.double()
        torch.testing.assert_close(weighted_sum(weights, features), expected, rtol=1e-5, atol=1e-5)


N = 4
BATCHES: list[Batch] = [Full(), Subsample(0.5), Subsample(0.01), Poisson(0.4), Fresh(0.25)]
CLIP = 0.7
ROUNDS = 4


def _long(problem: GeneralisedLinear, num_points: int, sign: float) -> tuple[np.ndarray, float]:
    """A record whose clipped term is `sign` times nearly the same vector of length C.

    The gradient at 0 changes sign with x. A gradient difference keeps the sign of x.(a - b), so the
    long part of x stands almost at right angles to a - b.
    """
    if num_points == 1:
        return np.array([sign * 1e6, 0.0, 0.0]), 1.0
    return np.array([1.0, sign * 1e3, 0.0]), 1.0


def _replacements(problem: GeneralisedLinear, num_points: int) -> Iterator[tuple[np.ndarray, float]]:
    rng = np.random.default_rng(3)
    yield _long(problem, num_points, -1.0)
    yield np.full(D, 1e11), 0.0
    yield np.zeros(D), 0.0
    yield np.full(D, np.nan), 1.0
    yield np.array([np.inf, 0, 1]), np.nan
    yield rng.normal(size=D) * 10, 1.0


@every_problem
@every_statistic
@pytest.mark.parametrize("batch", BATCHES, ids=repr)
def test_replacing_a_record_moves_the_answer_by_at_most_2c_over_k_and_by_that_much(name, num_points, batch):
    """Every record of a silo against every replacement, on the same draws of the batch."""
    problem = problems(D)[name]
    far = torch.zeros(problem.dimension, dtype=torch.float64)
    if num_points == 2:
        far[0] = 1

    def half(w, ask, memory):
        points = (w, far)[:num_points] if num_points == 1 else (far, w)
        statistic = "gradient" if num_points == 1 else "gradient_difference"
        return {"g": ask(Query(statistic, points, CLIP, batch))}

    (silo,) = silos_of(problem, [N], seed=4)
    for i in range(N):
        silo[0][i], silo[1][i] = _long(problem, num_points, 1.0)
    silos = [silo]
    for i in range(N):
        for record, target in (*_replacements(problem, num_points), (silo[0][i], 1 - silo[1][i])):
            x, y = silo[0].copy(), silo[1].copy()
            x[i], y[i] = record, target
            silos.append((x, y))
    zeros = [torch.zeros(problem.dimension, dtype=torch.float64)] * ROUNDS
    answers = alike(silos, problem, scripted(half, ROUNDS), *zeros)
    torch.testing.assert_close(alike([silo], problem, scripted(half, ROUNDS), *zeros), answers[:, :1])
    largest = float((answers - answers[:, :1]).norm(dim=-1).max())
    sensitivity = 2 * CLIP / divisor(batch, N)
    assert 0.98 * sensitivity <= largest <= sensitivity * (1 + 1e-9)
