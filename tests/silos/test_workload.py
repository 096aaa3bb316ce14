"""How long a round may take, counted from public numbers: what is refused, and what it depends on."""

import pytest
import torch
from torch import Tensor, nn

from fedsim.privacy.grid import GridGaussian
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.problems.given import GivenNetwork
from fedsim.problems.glm import LogisticRegression, SoftmaxRegression
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_form import graph_of
from fedsim.problems.network_models import Lenet, Mlp
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.statistics import Extent
from fedsim.protocol.unit import RECORD, Person
from silos.front import workload

GRADIENT, DIFFERENCE = QueryShape("gradient", 1, 1.0), QueryShape("gradient_difference", 2, 1.0)
ONE = Ask(FULL, (GRADIENT,))


class Net(nn.Module):
    """tanh steps one after the other, and a look-up at a fixed place or at one that a record names."""

    def __init__(self, steps: int, by_record: bool | None = None) -> None:
        super().__init__()
        self.layer, self.steps, self.by_record = nn.Linear(4, 1), steps, by_record
        self.register_buffer("order", torch.arange(4))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = torch.tanh(x)
        if self.by_record is not None:
            x = x + self.order[x[0].long() if self.by_record else self.order]
        return self.layer(x)


def given(module: nn.Module) -> GivenNetwork:
    graph = graph_of(module.double().eval(), 4, 1, torch.float64)
    shapes = tuple((name, tuple(value.shape)) for name, value in module.named_parameters())
    return GivenNetwork(4, 1, parameter_shapes=shapes, program=graph.record)


def seconds(problem, records=10_000, asks=(ONE,), mechanism=None, unit=RECORD):
    """Of a plan of one round."""
    plan, noise = Plan((tuple(asks),), unit), mechanism or SiloGaussian()
    return workload.seconds(plan, [0], problem, records, noise, torch.float64)


PROBLEMS = {
    "logistic": LogisticRegression(5),
    "softmax": SoftmaxRegression(5, 3),
    "mlp": NeuralNetwork(5, 2, model=Mlp()),
    "lenet": NeuralNetwork(784, 10, model=Lenet((1, 28, 28))),
    "graph": given(Net(3)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_seconds_add_up_over_records_points_queries_and_asks(name):
    problem = PROBLEMS[name]
    one = seconds(problem, 2_000_000)
    assert seconds(problem, 4_000_000) == pytest.approx(2 * one, rel=1e-2)
    assert seconds(problem, 2_000_000, [Ask(FULL, (GRADIENT, GRADIENT))]) == pytest.approx(2 * one, rel=1e-9)
    assert seconds(problem, 2_000_000, [Ask(FULL, (GRADIENT,))] * 3) == pytest.approx(3 * one, rel=1e-9)
    assert one < seconds(problem, 2_000_000, [Ask(FULL, (DIFFERENCE,))]) <= 2 * one


@pytest.mark.parametrize(
    ("batch", "size"), [(Fresh(0.01), 100), (Subsample(0.1), 1_000), (Poisson(0.1), 2_050)]
)
def test_a_batch_counts_by_its_size_and_one_of_persons_by_all_records(batch, size):
    problem = PROBLEMS["mlp"]
    assert seconds(problem, asks=[Ask(batch, (GRADIENT,))]) == pytest.approx(seconds(problem, size), rel=1e-9)
    whole = seconds(problem, unit=Person())
    assert seconds(problem, asks=[Ask(batch, (GRADIENT,))], unit=Person()) == pytest.approx(whole, rel=1e-9)


def test_steps_count_and_so_do_look_ups_that_a_record_can_make_fail():
    few, many = given(Net(3)), given(Net(300))
    assert seconds(many, 1) > 20 * seconds(few, 1)
    constant, by_record = given(Net(3, by_record=False)), given(Net(3, by_record=True))
    assert seconds(by_record) > 20 * seconds(constant)  # one call a record, at worst


def test_exact_noise_counts_by_its_numbers():
    problem = SoftmaxRegression(5_000, 10)
    exact = seconds(problem, 2, mechanism=GridGaussian(Extent(50_000, 50_000)))
    assert exact - seconds(problem, 2) == pytest.approx(50_000 * 2e-5, rel=0.01)


def test_the_longest_round_of_those_that_are_taken_part_in_counts():
    plan = Plan(((ONE,), (ONE, ONE, ONE), (ONE, ONE)))
    for rounds, count in (([0], 1), ([0, 2], 2), ([0, 1, 2], 3), ([], 0)):
        found = workload.seconds(plan, rounds, PROBLEMS["mlp"], 100, SiloGaussian(), torch.float64)
        assert found == pytest.approx(count * seconds(PROBLEMS["mlp"], 100))
