"""Each statistic's spread and size: brute force over replaced records, with equality at the worst pair."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.statistic_records import FEATURES, OPTIONS, groups_of, hostile, points_of, problem_of, shape_of

from fedsim.common.errors import Refused
from fedsim.isolated.data import trace_in, trace_out
from fedsim.privacy.mechanism import check_unit
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.answerable import check_answerable
from fedsim.problems.glm import AbsoluteError, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.protocol.batch import FULL, Poisson
from fedsim.protocol.dryrun import Trace
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.moments import from_svec, svec
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.statistics import STATISTICS, size_of, statistic
from silos.vault.records import Records
from silos.vault.selections import PER_ONE
from silos.vault.terms import summed


def sums(name, rows, targets, clip, points=None):
    """The sum of each of many silos of two records, the second of which is common to all."""
    problem = problem_of(name)
    common = np.ones((1, FEATURES)), np.ones(1)
    silos = [
        (np.vstack([x, common[0]]), np.append(y, common[1]), np.array([group, 0]))
        for x, y, group in zip(rows, targets, groups_of(rows), strict=True)
    ]
    records = Records(silos, problem, torch.float64)
    (block,) = records.full(range(len(silos)))
    points = points_of(name) if points is None else points
    if name.startswith("gradient"):
        return records.clipped_sum(problem, block, points, clip)
    return summed(records.clipped_sum, shape_of(name), problem, block, points, clip)


@pytest.mark.parametrize("name", sorted(set(STATISTICS) - {"contributions"}))  # of persons
def test_replacing_a_record_moves_a_sum_by_the_spread_times_the_clip_at_most(name):
    known, clip = statistic(name), 0.25 if statistic(name).clipped else 1.0
    moved = sums(name, *hostile(name), clip).double()
    options = OPTIONS.get(name, ())
    allowed = known.spread_of(options) * clip
    if known.drawn:
        apart = (moved.unsqueeze(0) - moved.unsqueeze(1)).abs().max().item()  # of one score
        allowed = PER_ONE
    else:
        apart = torch.cdist(moved, moved, compute_mode="donot_use_mm_for_euclid_dist").max().item()
        assert moved.shape[1] == size_of(shape_of(name), problem_of(name).dimension, FEATURES)
    assert apart <= allowed * (1 + 1e-9)
    least = 0.9 if name == "minimiser" else 1 - 1e-6  # one of T steps short of its bound
    assert apart >= allowed * least  # a spread of less would be exceeded


def test_a_label_projection_protects_labels_and_not_features():
    rows, targets = hostile("gradient")
    moved = sums("label_projection", rows, targets, 0.25)
    assert torch.cdist(moved, moved).max() > 1.5 * 0.25 * statistic("label_projection").spread_of(())
    x, y = np.random.default_rng(4).standard_normal((2, 1, FEATURES)), np.array([[0.5], [-0.25]])
    loose = sums("label_projection", x, y, 1e9) / 2
    ones = np.ones((1, FEATURES))
    both = [(np.vstack([own, ones]), np.append(label, 1.0)) for own, label in zip(x, y, strict=True)]
    exact = [np.linalg.lstsq(*each, rcond=None)[0] for each in both]
    assert loose.numpy() == pytest.approx(np.stack(exact))
    plan = Plan(((Ask(FULL, (shape_of("label_projection"),)),),))
    assert plan.protects_labels_alone
    with pytest.raises(Refused, match="no label_dp: true"):
        replace(LIMITS, label_dp=False).check_plan(plan, 3, 3)
    replace(LIMITS, label_dp=True).check_plan(plan, 3, 3)
    records = Plan(((Ask(FULL, (shape_of("gradient"),)),),))
    with pytest.raises(Refused, match="account is of labels alone"):
        replace(LIMITS, label_dp=True).check_plan(records, 3, 3)
    with pytest.raises(Refused, match="in some queries, and labels alone in others"):
        LIMITS.check_plan(Plan(plan.rounds + records.rounds), 3, 3)


def test_an_off_diagonal_entry_counts_once_and_weighs_as_two():
    rows = torch.tensor([[3.0, 4.0, 1.0]], dtype=torch.float64)
    vector = svec(rows.T @ rows)
    assert vector.norm().item() == pytest.approx(26.0)
    assert torch.allclose(from_svec(vector), rows.T @ rows)
    flat = (rows.T @ rows)[tuple(torch.triu_indices(3, 3))]
    assert flat.norm() < 26.0 - 3  # the triangle alone is shorter than the matrix


def test_a_second_moment_is_that_of_clipped_vectors():
    rows = np.array([[[0.3, 0.2, 0.1]], [[30.0, 0.0, 40.0]]])
    moved = sums("second_moment", rows, np.array([[0.5], [0.0]]), 4.0)
    v = torch.tensor([0.3, 0.2, 0.1, 0.5], dtype=torch.float64)
    ones = torch.ones(4, dtype=torch.float64)
    assert torch.allclose(from_svec(moved[0]), v.outer(v) + ones.outer(ones))
    u = torch.tensor([0.6, 0.0, 0.8, 0.0], dtype=torch.float64) * 2
    assert torch.allclose(from_svec(moved[1]), u.outer(u) + ones.outer(ones))


def test_every_record_is_in_one_cell_and_padding_in_none():
    sizes, rng = (3, 7, 40), np.random.default_rng(1)
    silos = [(10 * rng.standard_normal((n, FEATURES)), np.zeros(n)) for n in sizes]
    silos[0][0][0] = np.nan  # a record that counts as the zero vector is a record
    problem = LinearRegression(FEATURES)
    records = Records(silos, problem, torch.float64)
    for block in records.full(range(3)):
        found = summed(records.clipped_sum, shape_of("histogram"), problem, block, (), 1.0)
        assert found.sum(1).tolist() == [sizes[member] for member in block.members]
        zeros = summed(records.clipped_sum, shape_of("sum"), problem, block, (), 1.0)
        clean = [np.nan_to_num(silos[member][0][:, 0]) for member in block.members]
        exact = [float((np.clip(x, -2, 3) + 2).sum() / 5) for x in clean]
        assert zeros.flatten().tolist() == pytest.approx(exact)


def test_a_minimiser_is_the_minimum_where_nothing_is_clipped():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((50, FEATURES)) * 0.3, rng.standard_normal(50) * 0.3
    problem = LinearRegression(FEATURES)
    records = Records([(x, y)], problem, torch.float64)
    (block,) = records.full([0])
    shape = QueryShape("minimiser", 0, 1.0, (0.5, 500.0, 3.0))
    found = summed(records.clipped_sum, shape, problem, block, (), 1e3)[0] / 50
    exact = np.linalg.solve(x.T @ x / 50 + 0.5 * np.eye(FEATURES), x.T @ y / 50)
    assert found.numpy() == pytest.approx(exact, abs=1e-9)


WRONG = [
    ("quantile", (0.0, 1.0, -1.0, 1.0, 9.0), "quantile lies between 0 and 1"),
    ("quantile", (0.0, 0.5, -1.0, 1.0), r"takes the options \(column, q, edge, edge, edge..\), got 4"),
    ("quantile", (0.0, 0.5, 1.0, 1.0, 5.0), "edges must ascend"),
    ("quantile", (7.0, 0.5, 0.0, 1.0, 5.0), "column 7 is none of 3"),
    ("capped_sum", (0.0, -1.0, 1.0, 5.0), "low is at least 0"),
    ("capped_sum", (0.0, 0.0, 1.0, 0.0), "cap above it"),
    ("presence", (3.0, 0.0, 1.0), "column 3 is none of 3"),
    ("histogram", (1.0, 0.0, 1.0, 1.0, 2.0), "edges must ascend"),
    ("sum", (0.0, math.nan, 1.0), "not finite"),
    ("sum", (0.0, 1.0), r"takes the options \(column, low, high\), got 2"),
    ("mistakes", (1.0,), "takes no options"),
    ("minimiser", (0.0, 5.0, 1.0), "must lie between 1e-6 and 2"),
    ("score_histogram", (1.0,), "bins is 1"),
    ("log_loss", (0.5,), "between 0 and 0.5"),
    ("second_moment", (2.0,), "must be 0 or 1"),
]


@pytest.mark.parametrize(("name", "options", "why"), WRONG)
def test_options_that_nothing_is_known_for_are_refused_before_records_are_read(name, options, why):
    with pytest.raises(Refused, match=why):
        LIMITS.check_ask(Ask(FULL, (QueryShape(name, statistic(name).points, 1.0, options),)), 3, 3)


@pytest.mark.parametrize("name", ["quantile", "choice", "minimiser"])
def test_statistics_without_a_price_for_samples_are_refused_on_them(name):
    with pytest.raises(Refused, match="no price for such batches"):
        LIMITS.check_ask(Ask(Poisson(0.5), (shape_of(name),)), 3, 3)


@pytest.mark.parametrize("name", ["second_moment", "sum", "histogram", "mistakes", "longer"])
def test_a_smaller_spread_than_2_has_no_price_on_batches_that_may_lack_the_record(name):
    """Adding a record moves such a sum by more than half of what replacing it does."""
    rows, targets = hostile(name)
    alone = sums(name, rows, targets, 1.0) - sums(name, np.full_like(rows, 0.0), 0 * targets, 1.0)
    if name == "sum":
        assert alone.abs().max() > statistic(name).spread_of(()) / 2
    with pytest.raises(Refused, match="no price for such batches"):
        check_unit(Plan(((Ask(Poisson(0.1), (shape_of(name),)),),)), GAUSSIAN)
    check_unit(Plan(((Ask(Poisson(0.1), (shape_of("gradient"),)),),)), GAUSSIAN)


def test_a_label_that_is_none_moves_a_label_projection_by_a_label_alone():
    x = np.random.default_rng(4).standard_normal((3, 1, FEATURES))
    x[:] = x[0]
    moved = sums("label_projection", x, np.array([[0.3], [math.nan], [1e13]]), 4.0)
    apart = torch.cdist(moved, moved).max().item()
    assert apart <= 4.0 * statistic("label_projection").spread_of(())


def test_what_a_problem_has_no_terms_for_is_refused_before_records_are_read():
    class Wild(LinearRegression):
        curvature = 1e-3

    for name, problem in [
        ("score_histogram", LinearRegression(3)),
        ("log_loss", LinearRegression(3)),
        ("mistakes", LinearRegression(3)),
        ("minimiser", AbsoluteError(3)),
        ("minimiser", SoftmaxRegression(3, 3)),
        ("minimiser", Wild(3)),
        ("choice", Wild(3)),
        ("label_projection", SoftmaxRegression(3, 3)),
        ("label_projection", LogisticRegression(3)),
    ]:
        with pytest.raises(Refused, match=f"{name} is for"):
            check_answerable(problem, [shape_of(name)])
    for name in STATISTICS:
        check_answerable(problem_of(name), [shape_of(name)])


def test_queries_that_take_long_or_much_memory_are_refused():
    with pytest.raises(Refused, match="takes 2 point"):
        LIMITS.check_ask(Ask(FULL, (QueryShape("choice", 101, 1.0),)), 3, 3)
    slow = Plan(((Ask(FULL, (QueryShape("minimiser", 0, 1.0, (0.1, 1000.0, 1.0)),)),),) * 100)
    with pytest.raises(Refused, match="answers hold more"):
        replace(LIMITS, max_planned_numbers=100_000_000).check_plan(slow, 3, 3)


@pytest.mark.parametrize("transform", [-1, -(10**9), 1.5, 4, 10**9])
def test_a_plan_states_a_transform_to_some_of_the_features(transform):
    asks = (Ask(FULL, (replace(shape_of("sum"), transform=transform),)),)
    named = f"sum: transform {transform} must be a whole number from 0 to 3"
    with pytest.raises(Refused, match=named):
        LIMITS.check_ask(*asks, 3, 3)
    if isinstance(transform, int):  # as a plug-in's process sends it
        trace = trace_in(*trace_out(Trace(Plan((asks,)), (False,), ((),), ((),))))
        with pytest.raises(Refused, match=named):
            LIMITS.check_plan(trace.plan, 3, 3)
    for fits in range(4):
        LIMITS.check_ask(Ask(FULL, (replace(shape_of("gradient"), transform=fits),)), 6, 3)
    with pytest.raises(Refused, match="gradient: transform 1 must be"):
        LIMITS.check_ask(Ask(FULL, (replace(shape_of("gradient"), transform=1),)), 7, 3)


def test_a_second_moment_beyond_the_dimension_that_a_silo_allows_is_refused():
    with pytest.raises(Refused, match="second_moment of dimension 5050 exceeds the silo's limit 5000"):
        replace(LIMITS, max_dimension=5000).check_ask(
            Ask(FULL, (QueryShape("second_moment", 0, 1.0, (0.0,)),)), 100, 100
        )
