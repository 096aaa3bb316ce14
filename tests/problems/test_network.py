"""Networks as problems: the flat vector, the start, what is refused."""

import pickle
from unittest.mock import ANY

import pytest
import torch
from support.refusals import refused
from torch import nn
from torch.nn.functional import cross_entropy

from fedsim.problems.composite import Composite
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Lenet, Mlp, PairedMlp
from fedsim.problems.regularisers import L2Ball


def imported(attribute: str, num_features: int = 6, num_outputs: int = 3) -> NeuralNetwork:
    return NeuralNetwork(num_features, num_outputs, model=Imported(f"support.network_modules:{attribute}"))


def test_the_flat_vector_is_the_modules_parameters() -> None:
    """At its start the problem scores and loses as the module itself does."""
    problem = NeuralNetwork(5, 3, model=Mlp((7, 4)))
    assert problem.dimension == 5 * 7 + 7 + 7 * 4 + 4 + 4 * 3 + 3
    module = problem.model.build(5, 3).double()
    w = torch.randn(problem.dimension, dtype=torch.float64)
    nn.utils.vector_to_parameters(w, module.parameters())
    x, y = torch.randn(9, 5, dtype=torch.float64), torch.arange(9) % 3
    scores = problem.scores(x, w)
    torch.testing.assert_close(scores, module(x).detach())
    expected = cross_entropy(module(x), y, reduction="none").detach()
    torch.testing.assert_close(problem.losses(scores, y.double()), expected)
    per_silo = problem.scores(x.view(3, 3, 5), torch.stack([w, 2 * w, w]))
    torch.testing.assert_close(per_silo[2], scores[6:])
    torch.testing.assert_close(per_silo[1], problem.scores(x[3:6], 2 * w))


def test_one_output_is_regression_and_scores_have_no_last_axis() -> None:
    problem = NeuralNetwork(4, 1, model=Mlp((3,)))
    w = problem.start(0).double()
    scores = problem.scores(torch.randn(6, 4, dtype=torch.float64), w)
    assert scores.shape == (6,)
    torch.testing.assert_close(problem.losses(scores, torch.zeros(6)), scores.square() / 2)
    assert problem.error_name.startswith("root mean squared error")


def test_the_cnn_of_the_thesis_has_its_published_size() -> None:
    """6 (25 + 1) + 16 (150 + 1) + 120 (256 + 1) + 84 (120 + 1) + 10 (84 + 1), for 28 x 28 pixels."""
    assert NeuralNetwork(784, 10, model=Lenet((1, 28, 28))).dimension == 44_426


def test_the_start_is_public_random_and_leaves_the_global_generator_alone() -> None:
    problem = NeuralNetwork(5, 3)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    start = problem.start(1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(start, NeuralNetwork(5, 3).start(1))
    assert not torch.equal(start, problem.start(2))
    first = start[: 5 * 64]
    assert (
        float(first.abs().max()) <= 5**-0.5
    )  # torch's own rule for nn.Linear: uniform within 1 / sqrt(inputs)
    assert float(first.std()) == pytest.approx((5 * 3) ** -0.5, rel=0.1)


def test_the_public_part_is_the_composites() -> None:
    problem = NeuralNetwork(5, 3, Composite(0.1, 0.2, L2Ball(1.0)))
    w = torch.randn(2, problem.dimension)
    assert torch.equal(problem.prox(w, 0.5), problem.composite.prox(w, 0.5))
    assert torch.equal(problem.project(w), problem.composite.project(w))
    assert torch.equal(problem.public_gradient(w), problem.composite.public_gradient(w))


def test_a_problem_travels_to_another_process() -> None:
    problem = imported("Tokens")
    assert problem.dimension > 0
    copy = pickle.loads(pickle.dumps(problem))
    assert copy == problem
    x = torch.ones(2, 6, dtype=torch.float64)
    w = problem.start(0).double()
    assert torch.equal(copy.scores(x, w), problem.scores(x, w))


@pytest.mark.parametrize("name", ["without_arguments", "dropout_and_groups"])
def test_dropout_is_off(name: str) -> None:
    problem = imported(name)
    x, w = torch.rand(4, 6, dtype=torch.float64), problem.start(0).double()
    assert torch.equal(problem.scores(x, w), problem.scores(x, w))


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        ("batch_norm", "BatchNorm1d"),
        ("Centred", "mixes the records"),
        ("Rounded", "mixes the records"),
        ("Random", "must not be random"),
        ("Counting", "changes its buffers"),
        ("Strict", "whatever a record's values are"),
        ("frozen", "frozen parameters"),
        ("lazy", "lazy parameters"),
        ("no_parameters", "no parameters"),
    ],
)
def test_a_module_that_is_no_function_of_each_record_is_refused(attribute: str, reason: str) -> None:
    with refused("scenario.problem.model", ANY, reason):
        assert imported(attribute).module


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("network_modules", "package.module:attribute"),
        ("no_such_package:thing", "cannot be imported"),
        ("support.network_modules:nothing", "has no attribute 'nothing'"),
        ("support.network_modules:not_a_module", "class or function"),
        ("support.network_modules:a_number", "must return a torch.nn.Module, not float"),
        ("support.network_modules:failing", "no disk"),
    ],
)
def test_a_wrong_path_is_named(path: str, reason: str) -> None:
    with refused("scenario.problem.model.path", path, reason):
        assert NeuralNetwork(6, 3, model=Imported(path)).module


def test_a_module_of_another_size_is_refused() -> None:
    with refused("scenario.problem.model", ANY, "5 features"):
        assert imported("without_arguments", 5).module
    with refused("scenario.problem.model", ANY, "(records, 2)", "(3, 3)"):
        assert imported("without_arguments", 6, 2).module


@pytest.mark.parametrize("image", [(1, 28, 27), (1, 8, 8)])
def test_an_image_that_does_not_fit_is_refused(image: tuple[int, int, int]) -> None:
    features = 784 if image[2] == 27 else 64
    with refused("scenario.problem.model.image", list(image)):
        assert NeuralNetwork(features, 10, model=Lenet(image)).module


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_scores_start_at_zero_and_differ_by_seed_elsewhere(outputs: int) -> None:
    problem = NeuralNetwork(12, outputs, model=PairedMlp(8))
    x, w = torch.randn(20, 12), problem.start(3)
    assert problem.scores(x, w).abs().max() < 1e-5
    assert torch.equal(w, problem.start(3))
    assert not torch.equal(w, problem.start(4))


def test_rows_of_a_pair_are_equal_and_those_of_two_pairs_orthogonal() -> None:
    problem = NeuralNetwork(12, 2, model=PairedMlp(8, row_norm=0.3, output_weight=2.0))
    values = problem.parameters(problem.start(0))
    rows, out = values["0.weight"], values["2.weight"]
    torch.testing.assert_close(rows[:4] @ rows[:4].T, 0.09 * torch.eye(4))
    assert torch.equal(rows[:4], rows[4:])
    assert torch.equal(out[:, :4], -out[:, 4:])
    assert torch.equal(out.abs(), torch.full((2, 8), 2.0))
    assert torch.equal(out[0], -out[1])
    assert not values["0.bias"].any()
    assert not values["2.bias"].any()


def test_more_pairs_than_dimensions_still_have_rows_of_the_norm() -> None:
    rows = NeuralNetwork(3, 2, model=PairedMlp(20)).module.get_parameter("0.weight")
    torch.testing.assert_close(rows.norm(dim=1), torch.full((20,), 0.1, dtype=torch.float64))


def kernel(activation: str, cosine: float) -> float:
    """The tangent kernel of the first layer's weights at two records of norm 1 at this angle."""
    model = PairedMlp(2000, activation, row_norm=0.01)
    problem = NeuralNetwork(2, 2, model=model)
    x = torch.tensor([[1.0, 0.0], [cosine, (1 - cosine**2) ** 0.5]], dtype=torch.float64)
    slopes = []
    for record in x:
        w = problem.start(0).double().requires_grad_()
        (slope,) = torch.autograd.grad(problem.slope_scores(record[None], w)[0, 0], w)
        slopes.append(slope[:4000])
    first, second = slopes
    return float(first @ second / first.norm() / second.norm())


@pytest.mark.parametrize("cosine", [-0.6, 0.0, 0.5])
def test_the_kernel_of_the_square_is_the_squared_cosine_and_relus_has_a_linear_part(cosine: float) -> None:
    """What is said of noise rests on it: the s^3 is small where rows are."""
    assert kernel("square_plus_cube", cosine) == pytest.approx(cosine**2, abs=0.03)
    angle = float(torch.arccos(torch.tensor(cosine)))
    assert kernel("relu", cosine) == pytest.approx(cosine * (1 - angle / torch.pi), abs=0.03)


def test_an_odd_width_and_one_that_does_not_fit_are_refused() -> None:
    with refused("scenario.problem.model.hidden", 10**6, "narrower"):
        NeuralNetwork(10**9, 2, model=PairedMlp(10**6)).start(0)
