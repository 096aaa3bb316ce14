"""What one sum of clipped terms over all silos costs, and what it cost in another checkout: see `--help`.

The sum is asked for as the gate asks for it, and has no noise. Each checkout has a process of its own, of one
thread, with the same made-up records, and they take turns; times are the processor's. A case `over a plain
pass` is divided by the forward and backward pass of the mean loss of the same records, which the same process
times in the same turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.common.process import keep_to_one_thread
from fedsim.problems.given import described, given
from fedsim.problems.glm import HingeLoss, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Lenet, Mlp, Model
from fedsim.protocol.unit import Person
from silos.vault.gate import lay_out
from silos.vault.owners import ALONE, Owners

TURNS, LEAST = 10, 0.05  # seconds that the sums of a turn take at least, in both checkouts
CLIP = 1.0
IMAGE = (3, 32, 32)


class PlugIn(nn.Module):
    """A network that is no chain of layers, so that a silo takes its graph."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(num_features, 64), nn.Linear(64, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of records (records, features)."""
        scores: Tensor = self.last(torch.relu(self.first(x)))
        return scores


@dataclass(frozen=True)
class PlugInLoss(LogisticRegression):
    """A linear loss of another distribution."""

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """The derivative of the logistic loss."""
        return torch.sigmoid(scores) - target


def cnn(channels: Sequence[int], hidden: int) -> nn.Module:
    """3 x 3 convolutions with pooling, and two linear layers."""
    layers: list[nn.Module] = [nn.Unflatten(1, IMAGE)]
    for inputs, outputs in zip((IMAGE[0], *channels), channels, strict=False):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    numbers = channels[-1] * (IMAGE[1] >> len(channels)) ** 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(numbers, hidden), nn.ReLU(), nn.Linear(hidden, 10))


small_cnn, large_cnn = partial(cnn, (32, 64), 240), partial(cnn, (64, 128, 256), 2200)  # 1.0, 9.4 million


def network(num_features: int, num_outputs: int, model: Model) -> Problem:
    """A network of fedsim's, or a chain of layers."""
    return NeuralNetwork(num_features, num_outputs, model=model)


def graph() -> Problem:
    """The plug-in's network as a silo has it."""
    problem = network(13, 1, Imported("sum_cost:PlugIn"))
    return given(*described(problem, torch.float64), torch.float64)


@dataclass(frozen=True)
class Case:
    """A problem, the silos' size, and classes (0 for a number); records of a person, if units."""

    problem: Callable[[], Problem]
    silos: int
    records: int
    classes: int = 2
    dtype: torch.dtype = torch.float64
    person: int = 0
    plain: bool = False  # whether beside a plain pass


WIDE, LARGE, FLOAT32 = (25, 1238), (5, 64, 10), torch.float32
BIG: dict[str, Callable[[], Problem]] = {
    "MLP of 4 M": partial(network, 3072, 10, Mlp((1024, 1024))),
    "CNN of 1 M": partial(network, 3072, 10, Imported("sum_cost:small_cnn")),
    "CNN of 9 M": partial(network, 3072, 10, Imported("sum_cost:large_cnn")),
}
LENET = partial(network, 784, 10, Lenet((1, 28, 28)))
CASES: dict[str, Case] = {
    "logistic": Case(partial(LogisticRegression, 50), *WIDE),
    "softmax": Case(partial(SoftmaxRegression, 50, 10), *WIDE, 10),
    "persons": Case(partial(LogisticRegression, 50), *WIDE, person=3),
    "hinge": Case(partial(HingeLoss, 50), *WIDE),
    "MLP": Case(partial(network, 50, 2, Mlp((64,))), *WIDE),
    "LeNet": Case(LENET, 5, 40, 10),
    "LeNet, float32": Case(LENET, 5, 40, 10, FLOAT32),
    "plug-in's graph": Case(graph, 1, 317, 0),
    "plug-in's loss": Case(partial(PlugInLoss, 13), 1, 317),
    "plug-in's loss, 25 silos": Case(partial(PlugInLoss, 50), *WIDE),
    **{f"{name}, float64": Case(own, *LARGE) for name, own in BIG.items()},
    **{f"{name}, float32": Case(own, *LARGE, FLOAT32) for name, own in BIG.items()},
    **{
        f"CNN of 9 M over a plain pass, {str(dtype)[6:]}": Case(
            BIG["CNN of 9 M"], 5, 16, 10, dtype, plain=True
        )
        for dtype in (torch.float64, FLOAT32)
    },
}


def made(case: Case) -> tuple[Problem, list[tuple[np.ndarray, np.ndarray]], Tensor]:
    """The case's problem, its silos' records, and a point."""
    problem, rng, silos = case.problem(), np.random.default_rng(0), []
    for _ in range(case.silos):
        x = rng.standard_normal((case.records, problem.num_features)) / problem.num_features**0.5
        y = rng.integers(case.classes, size=case.records) if case.classes else x.sum(1)
        silos.append((x, y.astype(float)))
    w = torch.from_numpy(rng.standard_normal(problem.dimension) * 0.1)
    if type(problem) is NeuralNetwork:  # with its module
        w = problem.start(0)
    return problem, silos, w.to(case.dtype)


def summing(case: Case) -> Iterator[Callable[[float], object]]:
    """What takes the sum at a point so many times as long, and a plain pass, where the case has one."""
    problem, silos, w = made(case)
    codes = [np.arange(case.records) // case.person for _ in silos] if case.person else []
    records = lay_out(silos, problem, case.dtype, Owners(Person("clip"), codes) if codes else ALONE)
    blocks = records.full(list(range(case.silos)))
    take: Callable[..., Tensor] = records.clipped_sum
    if codes:
        take = partial(records.unit_sum, None, size=problem.dimension)
    yield lambda by: [take(problem, block, [w * by], CLIP) for block in blocks]
    if case.plain:
        assert isinstance(problem, NeuralNetwork)
        module = deepcopy(problem.module).to(case.dtype)
        x, y = (torch.from_numpy(np.concatenate(own)).to(case.dtype) for own in zip(*silos, strict=True))
        parameters = list(module.parameters())
        loss = nn.CrossEntropyLoss()
        yield lambda by: torch.autograd.grad(loss(module(x * by), y.long()), parameters)


def work() -> None:
    """Read `[case, turn, calls]` in JSON, a line at a time; answer with milliseconds of a sum, and of a plain
    pass. The first turn of a case makes its records, which is not timed.
    """
    keep_to_one_thread()
    name, ways = "", list[Callable[[float], object]]()
    for line in sys.stdin:
        asked, turn, calls = json.loads(line)
        if asked != name:
            name, ways = asked, list(summing(CASES[asked]))
        times = []
        for way in ways:
            start = time.process_time()
            for call in range(calls):
                way(1 + 1e-3 * turn + 1e-6 * call)  # elsewhere each time: nothing is kept from the last
            times.append(1e3 * (time.process_time() - start) / calls)
        print(json.dumps(times), flush=True)


Ask = Callable[[str, int, int], list[float]]


@contextmanager
def worker(checkout: Path) -> Iterator[Ask]:
    """A process that has the checkout's fedsim, and what asks it."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, __file__, "--worker"]
    with subprocess.Popen(
        command,
        env={**os.environ, **threads, "PYTHONPATH": str(checkout.resolve())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pipes = process.stdin, process.stdout

        def ask(*asked: object) -> list[float]:
            print(json.dumps(asked), file=pipes[0], flush=True)
            line = pipes[1].readline()
            if not line:
                raise SystemExit(f"{checkout}: its process has ended")
            found: list[float] = json.loads(line)
            return found

        try:
            yield ask
        finally:
            process.stdin.close()


def turns(asks: Mapping[str, Ask], name: str, count: int) -> dict[str, np.ndarray]:
    """Each checkout's milliseconds of each turn, (turns, 1 or 2)."""
    first = [ask(name, 0, 1) and ask(name, 0, 1) for ask in asks.values()]
    calls = int(max(1, np.ceil(1e3 * LEAST / min(each[0] for each in first))))
    found: dict[str, list[list[float]]] = {key: [] for key in asks}
    for turn in range(1, count + 1):
        for key in list(asks)[:: 1 if turn % 2 else -1]:
            found[key].append(asks[key](name, turn, calls))
    return {key: np.array(own) for key, own in found.items()}


def shown(name: str, found: Mapping[str, np.ndarray]) -> str:
    """A case's row: milliseconds, over a plain pass, and this checkout's over the other's."""
    cells = [f"{name:38}"]
    for own in found.values():
        cells.append(f"{np.median(own[:, 0]):9.2f} {own[:, 0].min():9.2f}")
        if own.shape[1] > 1:
            cells.append(f"{np.median(own[:, 0]) / np.median(own[:, 1]):5.2f} x plain")
    if len(found) > 1:
        this, other = (own[:, 0] for own in found.values())
        each = np.quantile(this / other, (0.25, 0.75))
        cells.append(f"{np.median(this) / np.median(other):6.3f} [{each[0]:.3f}, {each[1]:.3f}]")
    return "  ".join(cells)


def main(arguments: Any) -> None:
    """Time the cases, and print a row each."""
    wanted = arguments.case or list(CASES)
    checkouts = {"this": Path(__file__).parents[1]}
    if arguments.other is not None:
        checkouts["other"] = arguments.other
    print("one sum over all silos, median and least ms:", ", ".join(map(str, checkouts.values())))
    if arguments.other is not None:
        print("then the ratio of medians, and the quartiles of the turns' ratios")
    with ExitStack() as stack:
        asks = {key: stack.enter_context(worker(place)) for key, place in checkouts.items()}
        for name in wanted:
            print(shown(name, turns(asks, name, 2 if arguments.quick else arguments.turns)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path, help="a checkout of fedsim to compare with")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--quick", action="store_true", help="two turns")
    parser.add_argument("--case", action="append", choices=list(CASES), help="this one, again for more")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given_arguments = parser.parse_args()
    if given_arguments.worker:
        work()
    else:
        main(given_arguments)
