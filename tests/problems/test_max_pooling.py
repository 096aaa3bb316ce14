"""Pooling by channels against torch's own: every bit of values and gradients."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from fedsim.problems.network_layers import Layers, plain_layers


def chain(*layers: nn.Module) -> Layers:
    found = plain_layers(nn.Sequential(nn.Unflatten(1, (3, 9, 8)), *layers).double(), 3 * 9 * 8)
    assert found is not None
    return found


def images() -> Tensor:
    """Ties within windows, all of them negative in some, and what is not a number."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 3, (20, 3, 9, 8), generator=rng).double()
    x[0, 0, 2, 3], x[1, 1, 0, 0], x[2, 2, 4, 4] = torch.nan, torch.inf, -torch.inf
    return x


@pytest.mark.parametrize(
    "numbers",
    [
        {"kernel_size": 2},
        {"kernel_size": (2,)},
        {"kernel_size": (3, 2)},
        {"kernel_size": (1, 4)},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 2, "padding": 1},
        {"kernel_size": 2, "dilation": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("relu", [False, True])
def test_pooling_gives_torchs_numbers_and_gradients(numbers, relu):
    layers = [*([nn.ReLU()] if relu else []), nn.MaxPool2d(**numbers)]
    x = images().requires_grad_()
    found = chain(*layers).scores({}, x.flatten(1))
    expected = max_pool2d(torch.relu(x) if relu else x, **numbers)
    slopes = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    got, wanted = (torch.autograd.grad(y, x, slopes)[0] for y in (found, expected))
    assert torch.equal(got, wanted)
