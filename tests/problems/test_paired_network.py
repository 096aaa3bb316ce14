"""A network whose units start in pairs, and what its activations are for."""

from __future__ import annotations

import pytest
import torch

from fedsim.common.errors import InputError
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import PairedMlp


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
    model = PairedMlp(2000, activation, row_norm=0.01)  # type: ignore[arg-type]
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
    with pytest.raises(InputError, match="narrower"):
        NeuralNetwork(10**9, 2, model=PairedMlp(10**6)).start(0)
