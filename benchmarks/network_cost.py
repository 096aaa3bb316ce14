"""What clipping every record's gradient costs over the plain gradient of the same batch: `make bench`.

Two-layer perceptron 50-64-2, 25 silos x 1,238 records, full batch, one thread, one process: the silos'
clipped sums against one unclipped forward and backward pass over all records; both take turns. Peak
memory is what torch's CPU allocator holds at most above what it held before, by its own profiler: the
records themselves are held before and not counted. The convolutional network is printed as information.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Lenet, Mlp
from silos.gate import hold
from silos.statistics import clipped_sum

CLIP = 1.0
Step = Callable[[], object]


def steps(problem: NeuralNetwork, silos: int, records: int, dtype: torch.dtype) -> tuple[Step, Step]:
    """(clipped sums of every silo, plain forward and backward pass over all records at once)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((silos, records, problem.num_features))
    y = rng.integers(problem.num_outputs, size=(silos, records)).astype(float)
    (block,) = hold(list(zip(x, y, strict=True)), problem, dtype).full(range(silos))
    point = problem.start(0).to(dtype)
    features, target = block.features.flatten(0, 1), block.target.flatten().long()
    module = NeuralNetwork(problem.num_features, problem.num_outputs, model=problem.model).module.to(dtype)

    def clipped() -> Tensor:
        return clipped_sum(problem, block, [point], CLIP)

    def plain() -> None:
        module.zero_grad()
        cross_entropy(module(features), target, reduction="sum").backward()

    return clipped, plain


def seconds(step: Step) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def peak(step: Step) -> float:
    """Megabytes that a call holds at most, above what was held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    held = highest = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    return highest / 1e6


def measure(title: str, problem: NeuralNetwork, silos: int, records: int, repetitions: int) -> None:
    """Print time and peak memory of both, and their ratios."""
    for dtype in (torch.float64, torch.float32):
        clipped, plain = steps(problem, silos, records, dtype)
        clipped(), plain()
        times = np.array([(seconds(clipped), seconds(plain)) for _ in range(repetitions)]) * 1e3
        ratio = np.percentile(times[:, 0] / times[:, 1], [5, 50, 95])
        memory = peak(clipped), peak(plain)
        print(
            f"{title}, {silos} x {records}, {str(dtype).removeprefix('torch.')}: "
            f"clipped {np.median(times[:, 0]):.1f} ms, plain {np.median(times[:, 1]):.1f} ms, "
            f"ratio {ratio[1]:.2f} [{ratio[0]:.2f}, {ratio[2]:.2f}] over {repetitions} repetitions; "
            f"peak {memory[0]:.1f} MB, plain {memory[1]:.1f} MB, ratio {memory[0] / memory[1]:.2f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    torch.set_num_threads(1)
    count = parser.parse_args().repetitions
    measure("MLP 50-64-2", NeuralNetwork(50, 2, model=Mlp((64,))), 25, 1238, count)
    measure("CNN 1x28x28", NeuralNetwork(784, 10, model=Lenet((1, 28, 28))), 5, 200, max(3, count // 3))
