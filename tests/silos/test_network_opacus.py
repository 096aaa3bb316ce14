"""Norms and clipped sums against Opacus, an implementation by others."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, unfold

from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Lenet, Mlp
from fedsim.problems.network_pass import _patches
from silos.vault import network
from silos.vault.records import Records, clipped_sum

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    grad_sample = pytest.importorskip("opacus.grad_sample", reason="Opacus is the oracle of these tests")

NETWORKS = {
    "mlp": NeuralNetwork(5, 3, model=Mlp((8, 4))),
    "cnn": NeuralNetwork(784, 10, model=Lenet((1, 28, 28))),
    "small cnn": NeuralNetwork(256, 10, model=Lenet((1, 16, 16))),
    "embedding and layer norm": NeuralNetwork(6, 3, model=Imported("support.network_modules:Tokens")),
    "sum over places": NeuralNetwork(6, 3, model=Imported("support.network_modules:Wide")),
    "places": NeuralNetwork(6, 3, model=Imported("support.network_modules:places")),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_norms_and_clipped_sums_are_those_of_opacus(name):
    problem = NETWORKS[name]
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 8, (6, problem.num_features))
    y = rng.integers(problem.num_outputs, size=6).astype(float)
    w = problem.start(3).double()

    module = problem.model.build(problem.num_features, problem.num_outputs).double()
    nn.utils.vector_to_parameters(w, module.parameters())
    oracle = grad_sample.GradSampleModule(module, loss_reduction="sum")
    features, target = torch.from_numpy(x), torch.from_numpy(y)
    cross_entropy(oracle(features), target.long(), reduction="sum").backward()
    terms = torch.cat([p.grad_sample.flatten(1) for p in module.parameters()], dim=1)
    expected = terms.norm(dim=1)

    make, _ = network.strategy(problem, torch.float64)
    found = make(problem, torch.float64, [w])(features, target)
    norms = sum((term.square for _, term in found), start=torch.zeros(6)).sqrt()
    torch.testing.assert_close(norms, expected, rtol=1e-6, atol=1e-9)

    clip = float(expected.median())
    (block,) = Records([(x, y)], problem, torch.float64).full([0])
    got = clipped_sum(problem, block, [w], clip)[0]
    torch.testing.assert_close(
        got, (terms * (clip / expected).clamp_max(1)[:, None]).sum(0), rtol=1e-5, atol=1e-6
    )


# What a convolution sees at every place, against torch's own `unfold`.


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ((5, 5), (1, 1), (0, 0), (1, 1)),
        ((3, 2), (2, 1), (1, 0), (1, 2)),
        ((3, 3), (1, 3), (2, 1), (2, 1)),
        ((1, 1), (2, 2), (0, 0), (1, 1)),
    ],
)
def test_patches_are_those_of_unfold(kernel, stride, padding, dilation, flipped):
    x = torch.randn(6, 3, 11, 9, generator=torch.Generator().manual_seed(0))
    x = x.transpose(2, 3).contiguous().transpose(2, 3) if flipped else x
    found = _patches(x, kernel, stride, padding, dilation)
    assert torch.equal(found.flatten(2), unfold(x, kernel, dilation, padding, stride))
