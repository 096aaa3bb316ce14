"""`longer` against a count by hand: of padded blocks, networks, persons, samples and odd records."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.helpers import open_gate, scripted

from fedsim.common.errors import Refused
from fedsim.problems import exact
from fedsim.problems.glm import AbsoluteError, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Mlp
from fedsim.protocol.batch import FULL, Fresh, Subsample, WithReplacement
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import Ask, Plan, QueryShape
from silos.vault.records import Records, clipped_sum
from silos.vault.terms import summed

SIZES = (3, 40, 9, 17)
FEATURES = 4
SHAPE = QueryShape("longer", 2, 1.0)


@dataclass(frozen=True)
class Cubed(LinearRegression):
    """A loss of another package, whose slopes overflow."""

    def coefficient(self, scores, target, inverse_norm):
        return (scores - target) ** 3


PROBLEMS = {
    "linear": LinearRegression(FEATURES),
    "absolute": AbsoluteError(FEATURES),
    "two classes": LogisticRegression(FEATURES),
    "three classes": SoftmaxRegression(FEATURES, 3),
    "another's": Cubed(FEATURES),
    "network": NeuralNetwork(FEATURES, 3, model=Mlp((5,))),
    "network of a number": NeuralNetwork(FEATURES, 1, model=Mlp((3,))),
}
every_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def silos(problem: Problem, sizes=SIZES):
    rng = np.random.default_rng(2)
    classes = 3 if problem.num_outputs == 3 else 2
    return [(rng.standard_normal((n, FEATURES)), rng.integers(0, classes, n).astype(float)) for n in sizes]


def points(problem: Problem):
    """Where gradients are neither all short nor all long."""
    w = torch.as_tensor(np.random.default_rng(3).normal(0, 0.5, problem.dimension))
    return w, torch.tensor([0.9], dtype=torch.float64)


def lengths(problem: Problem, x, y, w) -> list[float]:
    """Of each record's gradient: the sum of a silo that has no other record, unclipped."""
    found = []
    for own in zip(x, y, strict=True):
        records = Records([(own[0][None], own[1][None])], problem, torch.float64)
        (block,) = records.full([0])
        found.append(float(clipped_sum(problem, block, [w], None).norm()))
    return found


def counted(problem: Problem, data, at) -> torch.Tensor:
    records = Records(data, problem, torch.float64)
    total = torch.empty(len(data), 1, dtype=torch.float64)
    for block in records.full(range(len(data))):
        own = [each if each.dim() == 1 else each[block.members] for each in at]
        total[block.members] = summed(records.clipped_sum, SHAPE, problem, block, own, 1.0)
    return total


@every_problem
def test_it_counts_the_records_whose_gradient_is_longer(problem):
    data, (w, most) = silos(problem), points(problem)
    by_hand = [sum(length > 0.9 for length in lengths(problem, x, y, w)) for x, y in data]
    assert counted(problem, data, (w, most)).flatten().tolist() == by_hand
    assert 0 < sum(by_hand) < sum(SIZES)
    each = w * torch.arange(1, 5, dtype=w.dtype)[:, None], most * torch.arange(4, 0, -1)[:, None]
    alone = [counted(problem, [own], (each[0][i], each[1][i])).item() for i, own in enumerate(data)]
    assert counted(problem, data, each).flatten().tolist() == alone


@every_problem
def test_padding_and_records_that_add_nothing_are_not_longer(problem):
    data, (w, most) = silos(problem), points(problem)
    before = counted(problem, data, (w, most))
    odd = np.full((4, FEATURES), np.nan)
    odd[1], odd[2], odd[3] = 0.0, np.inf, 1.0
    targets = np.array([0.0, 0.0, 1.0, np.nan])
    more = [(np.vstack([x, odd]), np.append(y, targets)) for x, y in data]
    zero = float(lengths(problem, odd[1:2], targets[1:2], w)[0] > 0.9)  # a network's may be long
    assert counted(problem, more, (w, most)).tolist() == (before + zero).tolist()


def test_a_gradient_that_is_no_finite_number_is_not_longer():
    problem, most = Cubed(1), torch.tensor([1.0], dtype=torch.float64)
    w = torch.tensor([1e6], dtype=torch.float64)
    rows = np.array([[1e300], [1e6], [1e-7]])
    assert counted(problem, [(rows, np.zeros(3))], (w, most)).item() == 1  # overflows; long; short


@pytest.mark.parametrize("batch", [FULL, Fresh(0.5), Subsample(0.5), WithReplacement(0.5)], ids=str)
@every_problem
def test_a_gate_answers_the_share_of_a_batch_whatever_drew_it(problem, batch):
    """Beside the gradient at the same point, on the same draw: a clip of 0 leaves the share alone."""
    w, _ = points(problem)

    def silo(at, ask, memory):
        limits = torch.full_like(at[..., :1], -1.0), at.new_tensor([0.9])
        every, some, _ = ask(
            *(Query("longer", (at, limit), 1.0, batch) for limit in limits),
            Query("gradient", (at,), 0.5, batch),
        )
        return {"every": every, "some": some}

    shapes = (QueryShape("longer", 2, 1.0), QueryShape("longer", 2, 1.0), QueryShape("gradient", 1, 1.0))
    data = silos(problem)
    gate = open_gate(data, problem, scripted(silo), epsilon=np.inf, plan=Plan(((Ask(batch, shapes),),)))
    answers = gate.answer(0, {"w": w})
    assert answers["every"].flatten().tolist() == [1.0] * len(SIZES)
    shares = [np.mean(np.array(lengths(problem, x, y, w)) > 0.9) for x, y in data]
    if batch == FULL:
        assert answers["some"].flatten().tolist() == pytest.approx(shares)
    assert (answers["some"] >= 0).all()
    assert (answers["some"] <= 1).all()


def test_a_clip_of_another_size_is_refused():
    def silo(w, ask, memory):
        return {"g": ask(Query("longer", (w, w), 1.0))}

    problem = LinearRegression(FEATURES)
    plan = Plan(((Ask(FULL, (SHAPE,)),),))
    gate = open_gate(silos(problem), problem, scripted(silo), epsilon=np.inf, plan=plan)
    with pytest.raises(Refused, match=r"a point is \(4,\)"):
        gate.answer(0, {"w": points(problem)[0]})


def test_scores_are_computed_once_for_it_and_the_gradient_beside_it(monkeypatch):
    problem = LinearRegression(FEATURES)
    seen = []
    monkeypatch.setattr(
        "fedsim.problems.exact.scores", lambda *a, old=exact.scores: seen.append(1) or old(*a)
    )
    data, (w, most) = silos(problem, (5,)), points(problem)
    records = Records(data, problem, torch.float64)
    (block,) = records.full([0])
    summed(records.clipped_sum, SHAPE, problem, block, (w, most), 1.0)
    before = len(seen)
    clipped_sum(problem, block, [w], 1.0)
    assert (before, len(seen)) == (1, 1)
