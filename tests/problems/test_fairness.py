"""The penalty of fair training: its dual and primal forms, and its least value."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedsim.algorithms.fair_minibatch_sgd import FairMinibatchSGD
from fedsim.problems.composite import Composite
from fedsim.problems.fairness import Fairness
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import QueryShape
from silos.vault.records import Records
from silos.vault.terms import summed


def primal(joint, pi):
    """D_pi of p(r, j), its constant left out."""
    return float((joint**2 / joint.sum(0) / np.array(pi)[:, None]).sum())


def tables(count, groups, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(groups * classes, 0.7), count).reshape(count, groups, classes)


def test_the_best_dual_is_the_primal_and_no_other_dual_is_more():
    rng = np.random.default_rng(1)
    for joint in tables(50, 3, 2):
        pi = tuple(rng.dirichlet([3.0, 3.0, 3.0]))
        fair = Fairness("demographic_parity", 1.0, pi, 2)
        share = torch.from_numpy(joint)

        def dual(w, share=share, pi=pi):
            root = torch.tensor(pi).double().rsqrt()[:, None]
            return float((2 * w * share * root - w.square() * share.sum(0)).sum())

        best = fair.ascended(fair.start(share), share.flatten(), None)[:, 0]
        if share.sum(0).min() < 1e-3:
            continue  # its floor
        assert dual(best) == pytest.approx(primal(joint, pi), abs=1e-6)
        for _ in range(20):
            assert dual(best + 0.1 * torch.from_numpy(rng.normal(size=(3, 2)))) <= dual(best) + 1e-12


@pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds", "equal_opportunity"])
@pytest.mark.parametrize("step", [0.5, None])
def test_runs_side_by_side_have_each_their_own_dual_and_table(notion, step):
    fair = Fairness(notion, 1.0, (0.3, 0.7), 2)
    joints = torch.from_numpy(tables(5, 1, fair.cells.size)).flatten(1)
    start = fair.ascended(fair.start(joints), joints[0], None)
    together = fair.ascended(start, joints, step)
    for joint, dual, table in zip(joints, together, fair.table(together), strict=True):
        alone = fair.ascended(start, joint, step)
        assert torch.equal(dual, alone)
        assert torch.equal(table, fair.table(alone))


def test_slow_ascent_comes_to_the_best_dual():
    joint = torch.from_numpy(tables(1, 2, 2)[0]).flatten()
    fair = Fairness("demographic_parity", 1.0, (0.5, 0.5), 2)
    w = fair.start(joint)
    for _ in range(2000):
        w = fair.ascended(w, joint, 0.5)
    assert w.numpy() == pytest.approx(fair.ascended(w, joint, None).numpy(), abs=1e-8)


def test_the_penalty_is_least_exactly_at_independence_whatever_the_reference():
    rng = np.random.default_rng(2)
    for joint in tables(10_000, 3, 2):
        pi = rng.dirichlet([1.0, 1.0, 1.0]) * 0.97 + 0.01
        product = joint.sum(1, keepdims=True) * joint.sum(0)
        least = (joint.sum(1) ** 2 / pi).sum()
        assert primal(product, pi) == pytest.approx(least)
        assert primal(joint, pi) >= least * (1 - 1e-12)
        if np.abs(joint - product).max() > 0.02:
            assert primal(joint, pi) > least


def test_at_the_true_shares_the_penalty_is_chi_squared():
    for joint in tables(20, 2, 2):
        groups, classes = joint.sum(1, keepdims=True), joint.sum(0)
        chi = ((joint - groups * classes) ** 2 / (groups * classes)).sum()
        assert primal(joint, groups[:, 0]) - 1 == pytest.approx(chi, rel=1e-9)


def test_opportunity_costs_nobody_of_class_0():
    fair = Fairness("equal_opportunity", 2.0, (0.5, 0.5), 2)
    joint = torch.rand(fair.cells.size, generator=torch.Generator().manual_seed(0)).double()
    costs = fair.table(fair.ascended(fair.start(joint), joint, None)).view(fair.cells.shape)
    assert (costs[:, 0] == 0).all()
    assert (costs[:, 1] != 0).all()


@pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
def test_training_without_noise_comes_to_the_optimum_of_the_primal(notion):
    rng = np.random.default_rng(0)
    n, d = 400, 3
    group = rng.integers(0, 2, n)
    x = np.hstack([rng.normal(size=(n, d - 1)) + 0.8 * group[:, None], np.ones((n, 1))])
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ [1.0, -0.5, -0.6]))).astype(float)
    pi, weight = (0.4, 0.6), 0.3
    fair = Fairness(notion, weight, pi, 2)
    problem = LogisticRegression(d, 1, Composite(fairness=fair))
    records = Records([(x, y, group)], problem, torch.float64)
    (block,) = records.full([0])

    def ask(*queries):
        return tuple(
            summed(
                records.clipped_sum,
                QueryShape(q.statistic, len(q.points), 1.0, q.options),
                problem, block, q.points, q.clip,
            ) / n
            for q in queries
        )  # fmt: skip

    algorithm = FairMinibatchSGD(6000, 0.5, 1e9, None, last_iterate=True)
    run = algorithm.server(torch.zeros(d).double(), problem, None, None)
    step = next(run)
    for _ in range(algorithm.num_rounds - 1):
        message = algorithm.silo(problem, step.broadcast, ask, {})
        step = run.send({name: value[0] for name, value in message.items()})
    model = step.answer.numpy()

    def objective(w):
        score = x @ w
        share = np.stack([1 / (1 + np.exp(score)), 1 / (1 + np.exp(-score))], 1)
        loss = np.mean(np.logaddexp(0, score) - y * score)
        for label in [0, 1] if notion == "equalized_odds" else [None]:
            own = np.ones(n, bool) if label is None else y == label
            joint = np.stack([share[own & (group == r)].sum(0) for r in range(2)]) / own.sum()
            loss += weight * own.mean() * primal(joint, pi)
        return loss

    best = minimize(
        objective,
        np.zeros(d),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 10_000},
    )
    assert objective(model) == pytest.approx(best.fun, abs=1e-8)
    assert model == pytest.approx(best.x, abs=1e-4)


def test_weight_0_asks_at_the_points_of_minibatch_sgd():
    problem = LogisticRegression(2, 1, Composite(fairness=Fairness("demographic_parity", 0.0, (0.5, 0.5), 2)))
    run = FairMinibatchSGD(3, 0.5, 1.0, last_iterate=True).server(torch.zeros(2), problem, None, None)
    w = torch.zeros(2)
    step = next(run)
    for _ in range(2):
        assert torch.equal(step.broadcast["w"], w)
        assert not step.broadcast["table"].any()
        g = torch.tensor([1.0, -2.0]) + w
        w = w - 0.5 * g
        step = run.send({"g": g, "joint": torch.full((4,), 0.25)})
    asked = []
    FairMinibatchSGD(3, 0.5, 1.0).silo(problem, step.broadcast, lambda *q: asked.extend(q) or (0, 0), {})
    assert isinstance(asked[1], Query)
    assert asked[1].batch == FULL
    assert asked[1].options[-1] == 0.0
