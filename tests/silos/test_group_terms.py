"""Joints and costed gradients: by hand, by automatic differentiation, and how a group alone moves them."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from fedsim.algorithms.fair_minibatch_sgd import FairMinibatchSGD
from fedsim.common.errors import Refused
from fedsim.isolated.parts import trace_of
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.composite import Composite
from fedsim.problems.fairness import Fairness
from fedsim.problems.glm import LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import head
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Mlp
from fedsim.protocol.batch import FULL
from fedsim.protocol.groups import Cells
from fedsim.protocol.limits import LIMITS, check_table
from fedsim.protocol.plan import Ask, Plan, QueryShape, Terms
from fedsim.protocol.query import Query
from fedsim.simulation.host import MemoryLedger
from fedsim.testing.federations import open_gate, public_of
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out
from silos.vault.records import Records
from silos.vault.terms import summed

D = 4
PROBLEMS = {
    "logistic": (LogisticRegression(D), 2),
    "softmax": (SoftmaxRegression(D, 3), 3),
    "network": (NeuralNetwork(D, 3, model=Mlp(hidden=(4,))), 3),
}


def costed(records, problem, options, points, clip):
    (block,) = records.full(range(len(records.sizes)))
    shape = QueryShape("costed_gradient", 2, 1.0, options)
    return summed(records.clipped_sum, shape, problem, block, points, clip)


def joint(records, problem, options, w):
    (block,) = records.full(range(len(records.sizes)))
    return summed(records.clipped_sum, QueryShape("joint", 1, 1.0, options), problem, block, [w], 1.0)


def made(classes, silos=2, n=11, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(n, D)), rng.integers(0, classes, n), rng.integers(-1, 2, n)) for _ in range(silos)
    ]


def probabilities(problem, x, w):
    scores = problem.slope_scores(x, w) if isinstance(problem, NeuralNetwork) else problem.scores(x, w)
    return scores, head(problem).probabilities(scores)


PRECISION = {"network": 1e-6}  # of factors of exact products


@pytest.mark.parametrize("each", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("by_label", [0.0, 1.0], ids=["parity", "odds"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_costed_gradient_is_that_of_loss_and_costs(name, by_label, each):
    problem, classes = PROBLEMS[name]
    silos, cells = made(classes), Cells(2, classes, bool(by_label))
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(2, cells.size, dtype=torch.float64, generator=generator)
    w = torch.randn(2, problem.dimension, dtype=torch.float64, generator=generator)
    points = [w, table] if each else [w[0], table[0]]
    records = Records(silos, problem, torch.float64)
    found = costed(records, problem, (*cells.options, 99.0), points, None)
    for i, silo in enumerate(silos):
        x, y, group = map(torch.as_tensor, silo)
        at = (w[i] if each else w[0]).clone().requires_grad_()
        scores, share = probabilities(problem, x, at)
        own = (table[i] if each else table[0]).view(cells.shape)
        loss = head(problem).losses(scores, y.double()).sum()
        for r in range(len(y)):
            if group[r] >= 0:
                loss = loss + own[group[r], y[r] if by_label else 0] @ share[r]
        loss.backward()
        assert found[i].numpy() == pytest.approx(at.grad.numpy(), abs=PRECISION.get(name, 1e-10))


@pytest.mark.parametrize("name", PROBLEMS)
def test_costs_of_nothing_are_the_gradient_bit_for_bit(name):
    problem, classes = PROBLEMS[name]
    records, cells = Records(made(classes), problem, torch.float64), Cells(2, classes, True)
    w = torch.linspace(-1, 1, problem.dimension, dtype=torch.float64)
    found = costed(records, problem, (*cells.options, 0.0), [w, w.new_zeros(cells.size)], 0.5)
    (block,) = records.full(range(2))
    assert torch.equal(found, records.clipped_sum(problem, block, [w], 0.5))


@pytest.mark.parametrize("threshold", [0.0, 0.3])
@pytest.mark.parametrize("by_label", [0.0, 1.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_joint_is_the_sum_of_predictions_by_group(name, by_label, threshold):
    problem, classes = PROBLEMS[name]
    silos, cells = made(classes), Cells(2, classes, bool(by_label))
    w = torch.linspace(-1, 1, problem.dimension, dtype=torch.float64)
    found = joint(Records(silos, problem, torch.float64), problem, (*cells.options, threshold), w)
    for got, silo in zip(found, silos, strict=True):
        x, y, group = map(torch.as_tensor, silo)
        with torch.no_grad():
            share = probabilities(problem, x, w)[1].numpy()
        if threshold:
            chosen = share[:, 1] > threshold if classes == 2 else share.argmax(1)
            share = np.eye(classes)[chosen.astype(int)]
        expected = np.zeros(cells.shape)
        for r in range(len(y)):
            if group[r] >= 0:
                expected[group[r], y[r] if by_label else 0] += share[r]
        assert got.numpy() == pytest.approx(expected.ravel(), abs=PRECISION.get(name, 1e-12))


def test_scores_kept_from_a_joint_serve_one_gradient_at_the_same_point_only():
    problem, _ = PROBLEMS["logistic"]
    silos, cells = made(2), Cells(2, 2, False)
    fresh, used = Records(silos, problem, torch.float64), Records(silos, problem, torch.float64)
    w = torch.ones(D, dtype=torch.float64)
    table = torch.tensor([1.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    options = (*cells.options, 99.0)
    for at in (w, 2 * w):  # the second is another point than the kept one's
        joint(used, problem, (*cells.options, 0.0), w)
        assert torch.equal(
            costed(used, problem, options, [at, table], 0.5),
            costed(fresh, problem, options, [at, table], 0.5),
        )
    (block,) = used.full(range(2))
    assert not block.kept


def test_probabilities_that_are_none_keep_to_the_bound():
    class Wild(LogisticRegression):
        def probabilities(self, scores):
            return torch.stack([scores * 1e6, -scores], -1)

    silos = [(np.full((1, D), v), np.zeros(1), np.zeros(1, int)) for v in (-5.0, 0.0, 5.0, np.nan)]
    found = joint(
        Records(silos, Wild(D), torch.float64), Wild(D), (2.0, 2.0, 0.0, 0.0), torch.ones(D).double()
    )
    assert (found >= 0).all()
    assert (found.sum(1) <= 1 + 1e-12).all()


def test_labels_of_others_stay_in_their_silo_and_group():
    class Lenient(LogisticRegression):
        def accepts(self, target):
            return torch.ones_like(target, dtype=torch.bool)

    silos = [(np.ones((1, D)), np.array([y]), np.zeros(1, int)) for y in (0.0, 1.0, 3.0, -1.0, 1e9)]
    found = joint(
        Records(silos, Lenient(D), torch.float64), Lenient(D), (2.0, 2.0, 1.0, 0.0), torch.ones(D).double()
    )
    assert found.sum(1).tolist() == pytest.approx([1.0] * 5)
    assert not found[:, 4:].any()  # cells of the other group


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_a_change_of_the_group_alone_moves_a_term_by_its_reach_at_most_and_reaches_it(name):
    problem, classes = PROBLEMS[name]
    cells = Cells(2, classes, False)
    table = torch.zeros(cells.shape, dtype=torch.float64)
    table[0, 0, 0], table[1, 0, 1] = 1.5, 2.0
    most = cells.reach(table.flatten()) / 4 * (1 if classes == 2 else 2**0.5)
    x = np.full((1, D), 0.5)  # of norm 1
    worst = 0.0
    grid = np.linspace(-6, 6, 25 if classes == 2 else 9)
    for point in product(grid, repeat=problem.num_outputs):
        w = torch.tensor(np.repeat(np.array(point)[None] / (D * 0.5), D, 0).ravel())
        records = Records([(x, np.zeros(1), np.array([g])) for g in (-1, 0, 1)], problem, torch.float64)
        moved = costed(records, problem, (*cells.options, 99.0), [w, table.flatten()], None)
        worst = max(worst, float(torch.cdist(moved, moved).max()))
        shortened = costed(records, problem, (*cells.options, 99.0), [w, table.flatten()], 0.1)
        assert torch.cdist(shortened, shortened).max() <= min(most, 0.2) * (1 + 1e-9)
    assert 0.95 * most <= worst <= most * (1 + 1e-9)


def test_every_table_of_a_penalty_is_within_its_stated_reach():
    rng = np.random.default_rng(0)
    for notion, shares in product(("demographic_parity", "equalized_odds"), ((0.5, 0.5), (0.1, 0.6, 0.3))):
        fair = Fairness(notion, 1.5, shares, 2)
        largest = 0.0
        for _ in range(2000):
            w = torch.from_numpy(rng.normal(size=fair.cells.shape) * rng.choice([0.01, 1.0, 100.0]))
            w = fair.ascended(w, torch.zeros(fair.cells.size).double(), 1.0)
            largest = max(largest, fair.cells.reach(fair.table(w)))
        assert 0.3 * fair.reach < largest <= fair.reach


def test_a_table_beyond_its_reach_and_records_without_groups_are_refused():
    w = torch.zeros(D, dtype=torch.float64)
    asked = partial(Query, "costed_gradient", clip=1.0, options=(2.0, 2.0, 0.0, 1.0))
    check_table(asked((w, torch.tensor([0.0, 1.0, 0.0, 0.0]))))
    with pytest.raises(Refused, match=r"reach 3, and the plan states 1"):
        check_table(asked((w, torch.tensor([0.0, 2.0, 1.0, 0.0]))))
    with pytest.raises(Refused, match="whole numbers of groups"):
        LIMITS.check_plan(Plan(((Ask(FULL, (QueryShape("joint", 1, 1.0, (1.0, 2.0, 0.0, 0.0)),)),),)), D, D)


def test_a_gate_refuses_tables_of_another_size_or_beyond_what_the_plan_states():
    fair = Fairness("demographic_parity", 0.1, (0.5, 0.5), 2)
    problem = LogisticRegression(D, 1, Composite(fairness=fair))
    algorithm, silos = FairMinibatchSGD(3, 0.5, 1.0), made(2, silos=1)
    trace = trace_of(algorithm, problem, public_of([11]), 0, LIMITS)
    gate = Served(
        Gate(
            lay_out(silos, problem, torch.float64),
            problem,
            trace.plan,
            [Terms("silo0", 11, 1.0, 1e-5, range(3))],
            MECHANISMS["gaussian"],
            SeededEntropy(0, 0, ["silo0"], ["tables"]),
            [MemoryLedger()],
            LIMITS,
            torch.float64,
            trace.broadcasts,
        ),
        algorithm,
    )
    w, table = torch.zeros(D, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for wrong in (torch.zeros(8, dtype=torch.float64), torch.full((4,), torch.nan, dtype=torch.float64)):
        with pytest.raises(Refused, match="a point"):
            gate.answer(0, {"w": w, "table": wrong})
    assert gate.statements()[0].rounds == []  # it cost nothing
    gate.answer(0, {"w": w, "table": table})
    far = torch.tensor([0.0, 2 * fair.reach, 0.0, 0.0], dtype=torch.float64)
    with pytest.raises(Refused, match="a table of costs has reach"):
        gate.answer(1, {"w": w, "table": far})
    with pytest.raises(Refused, match="the plan asks by group, and the records have no attribute"):
        open_gate([own[:2] for own in silos], problem, algorithm, plan=trace.plan)
