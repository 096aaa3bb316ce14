"""The silos' clipped gradients beside Opacus's and a plain pass: `opacus_gradient.py OUT`; writes JSON.

fedsim and Opacus give every silo's sum of clipped per-record gradients of the same network, in one thread,
taking turns in one process; the results are compared first. Opacus does it in two ways: by hooks that keep
every record's gradient, and by ghost clipping, which needs a second backward pass instead. It gets one silo's
records at a time, since every silo's sum is wanted. The plain pass is forward and backward over all records
at once, without clipping. Runs in an environment that has opacus, with the repository on its path.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

warnings.filterwarnings("ignore")

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Lenet, Mlp
from silos.vault.records import Records, clipped_sum
from silos.vault.sums import Block

CLIP = 1.0
Step = Callable[[], Tensor]


def records(problem: NeuralNetwork, silos: int, count: int, dtype: torch.dtype) -> Block:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((silos, count, problem.num_features))
    y = rng.integers(problem.num_outputs, size=(silos, count)).astype(float)
    (block,) = Records(list(zip(x, y, strict=True)), problem, dtype).full(range(silos))
    return block


def module_at(problem: NeuralNetwork, point: Tensor) -> nn.Module:
    module = problem.model.build(problem.num_features, problem.num_outputs)
    module.to(point.dtype)
    nn.utils.vector_to_parameters(point, module.parameters())
    return module


def by_hooks(problem: NeuralNetwork, block: Block, point: Tensor) -> Step:
    module = GradSampleModule(module_at(problem, point), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), 1.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        expected_batch_size=None,
        loss_reduction="sum",
    )
    criterion = nn.CrossEntropyLoss(reduction="sum")

    def step() -> Tensor:
        sums = []
        for x, y in zip(block.features, block.target.long(), strict=True):
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.clip_and_accumulate()
            sums.append(torch.cat([p.summed_grad.flatten() for p in module.parameters()]))
        return torch.stack(sums)

    return step


def by_ghosts(problem: NeuralNetwork, block: Block, point: Tensor) -> Step:
    module = GradSampleModuleFastGradientClipping(
        module_at(problem, point), max_grad_norm=CLIP, use_ghost_clipping=True, loss_reduction="sum"
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(module.parameters(), 1.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        expected_batch_size=None,
        loss_reduction="sum",
    )
    criterion = DPLossFastGradientClipping(
        module, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum"
    )

    def step() -> Tensor:
        sums = []
        for x, y in zip(block.features, block.target.long(), strict=True):
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            sums.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
        return torch.stack(sums)

    return step


def plain(problem: NeuralNetwork, block: Block, point: Tensor) -> Step:
    module = module_at(problem, point)
    x, y = block.features.flatten(0, 1), block.target.flatten().long()

    def step() -> Tensor:
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y, reduction="sum").backward()
        return y

    return step


def seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def peak_mib(step: Step) -> float:
    """What torch's allocator holds at most during a call, above what was held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    held = highest = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    return highest / 2**20


def compare(
    problem: NeuralNetwork, silos: int, count: int, repetitions: int, dtype: torch.dtype
) -> dict[str, object]:
    block = records(problem, silos, count, dtype)
    point = problem.start(0).to(dtype)
    ours = partial(clipped_sum, problem, block, [point], CLIP)
    clipped = {"hooks": by_hooks(problem, block, point), "ghost": by_ghosts(problem, block, point)}
    for step in clipped.values():
        torch.testing.assert_close(step().double(), ours(), rtol=1e-3, atol=1e-3)
    steps = {"fedsim": ours, **clipped, "plain": plain(problem, block, point)}
    steps["plain"]()
    times = [[seconds(step) * 1e3 for step in steps.values()] for _ in range(repetitions)]
    milliseconds = dict(zip(steps, map(list, zip(*times, strict=True)), strict=True))
    return {"milliseconds": milliseconds, "peak_mib": {name: peak_mib(step) for name, step in steps.items()}}


def main() -> None:
    torch.set_num_threads(1)
    mlp = NeuralNetwork(50, 2, model=Mlp((64,)))
    cnn = NeuralNetwork(784, 10, model=Lenet((1, 28, 28)))
    residual = NeuralNetwork(256, 10, model=Imported("residual_cnn:Residual"))
    result = {
        "mlp float32": compare(mlp, 25, 1238, 7, torch.float32),
        "mlp float64": compare(mlp, 25, 1238, 7, torch.float64),
        "cnn float32": compare(cnn, 5, 200, 5, torch.float32),
        "residual float32": compare(residual, 5, 200, 5, torch.float32),
    }
    with open(sys.argv[1], "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
