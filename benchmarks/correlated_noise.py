"""Correlated against independent noise, and noise that falls over the rounds; into docs/noise-over-rounds.md.

`make noise-over-rounds` writes the page's tables, in a few minutes on one core.

A strategy is a lower-triangular C, (T, T): the noise of round t is (C^-1 Z)_t with Z independent, of standard
deviation z sens(C). `rms` is that of the running sums of the noise, A C^-1 Z, A all ones below the diagonal.
The unit is 2 clip / (n z) for a release of mu = 1 / z, so that plans are compared at one mu. A record in k of
T rounds, each of a batch of k n / T, moves a round's mean by T / k of the unit in each of its rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.document import table, write
from fedsim.algorithms.base import noise_ratios
from fedsim.common.process import one_thread
from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget, noise_multipliers
from fedsim.protocol.batch import Subsample
from fedsim.protocol.plan import Release

PAGE = Path(__file__).parents[1] / "docs" / "noise-over-rounds.md"
BANDS = (4, 10, None)  # numbers below and on the diagonal; None: all of them
EPSILONS, DELTA = (1.0, 3.0, 8.0), 1e-5


def participations(rounds: int, epochs: int) -> list[list[int]]:
    """The rounds of each record: one of every `rounds / epochs`, in the same order in each epoch."""
    apart = rounds // epochs
    return [list(range(first, rounds, apart)) for first in range(apart)]


def sensitivity(strategy: Tensor, patterns: Sequence[Sequence[int]]) -> Tensor:
    """The most that C G moves by, G of rows of norm <= 1 in a pattern's rounds and 0 elsewhere: at most the
    root of the sum of |C' C| over a pattern's pairs, and exactly that where C' C has no negative entry there.
    """
    gram = (strategy.T @ strategy).abs()
    sums = [gram[torch.tensor(own)][:, torch.tensor(own)].sum() for own in patterns]
    return torch.stack(sums).max().sqrt()


def carried(rounds: int, contraction: float = 1.0) -> Tensor:
    """A: what is left in iterate t of round s, contraction^(t - s)."""
    powers = contraction ** torch.arange(rounds, dtype=torch.float64)
    index = torch.arange(rounds)[:, None] - torch.arange(rounds)[None, :]
    return torch.where(index >= 0, powers[index.clamp_min(0)], 0.0)


def optimised(
    rounds: int, patterns: Sequence[Sequence[int]], bands: int | None, contraction: float = 1.0
) -> Tensor:
    """The C of so many bands, and sensitivity 1, whose running sums have the least mean square: by L-BFGS,
    from independent noise with a little correlation.
    """
    below = torch.tril(torch.ones(rounds, rounds, dtype=torch.bool))
    kept = below if bands is None else below & ~torch.tril(below, -bands)
    workload, own = carried(rounds, contraction), [torch.tensor(each) for each in patterns]
    lag = (torch.arange(rounds)[:, None] - torch.arange(rounds)[None, :]).clamp_min(0).double()
    free = (0.5 / (1 + lag) ** 0.5)[kept].requires_grad_()

    def strategy() -> Tensor:
        found = torch.zeros(rounds, rounds, dtype=torch.float64)
        found = found.masked_scatter(kept, free)
        gram = (found.T @ found).abs()
        scale = torch.ones(rounds, dtype=torch.float64)
        for rows in own:  # each record moves it by 1
            scale = scale.index_put((rows,), gram[rows][:, rows].sum().rsqrt().expand(len(rows)))
        return found * scale

    step = torch.optim.LBFGS([free], max_iter=600, history_size=30, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        step.zero_grad()
        value: Tensor = (
            torch.linalg.solve_triangular(strategy().T, workload.T, upper=True).square().sum().log()
        )
        value.backward()
        return value

    step.step(loss)  # type: ignore[no-untyped-call]
    return strategy().detach()


def deviations(
    strategy: Tensor, patterns: Sequence[Sequence[int]], contraction: float = 1.0
) -> tuple[float, float]:
    """Of the noise in the last iterate, and root mean square over all, in the page's unit."""
    rounds, epochs = len(strategy), len(patterns[0])
    left = torch.linalg.solve_triangular(strategy.T, carried(rounds, contraction).T, upper=True).T
    squares = left.square().sum(1) * (sensitivity(strategy, patterns) * rounds / epochs) ** 2
    return math.sqrt(float(squares[-1])), math.sqrt(float(squares.mean()))


def row(rounds: int, epochs: int, contraction: float = 1.0) -> tuple[list[float], list[float]]:
    """Last and rms of independent noise, of each number of bands, and of full batches."""
    some, every = participations(rounds, epochs), participations(rounds, rounds)
    independent = torch.eye(rounds, dtype=torch.float64)
    strategies = [independent, *(optimised(rounds, some, bands, contraction) for bands in BANDS)]
    found = [deviations(each, some, contraction) for each in strategies]
    found.append(deviations(independent, every, contraction))
    return [last for last, _ in found], [rms for _, rms in found]


CASES = ((30, 1), (30, 5), (30, 30), (100, 1), (100, 5), (100, 10), (100, 100))


def measured() -> tuple[str, dict[tuple[int, int], list[float]]]:
    """The first table, and the last sums of its rows."""
    rows, known = [], {}
    for rounds, epochs in CASES:
        last, rms = row(rounds, epochs)
        known[rounds, epochs] = last
        name = "full batch" if epochs == rounds else "one epoch" if epochs == 1 else f"{epochs} epochs"
        rows.append([str(rounds), name, *(f"{a:.0f} ({b:.0f})" for a, b in zip(last, rms, strict=True))])
        print(*rows[-1], flush=True)
    head = ["T", "a record is in", "independent", "4 bands", "10 bands", "dense", "full batch, independent"]
    return table(head, rows), known


def by_epsilon(known: dict[tuple[int, int], list[float]]) -> str:
    """The second table, of T = 100: the last sum at equal epsilon, by the product's accountant."""
    rounds, mu = 100, [float(gaussian.mu(epsilon, DELTA)) for epsilon in EPSILONS]

    def subsampled(epochs: int) -> list[float]:
        census = ((Release(Subsample(epochs / rounds), 1.0), rounds),)
        budgets = [Budget(10_000, epsilon, DELTA) for epsilon in EPSILONS]
        found = noise_multipliers(census, budgets, 1e4)
        return [z * math.sqrt(rounds) * rounds / epochs for z in found]

    rows = {
        "full batch, independent": [known[rounds, rounds][0] / each for each in mu],
        "10 epochs, subsampled, independent": subsampled(10),
        "10 epochs in one order, 10 bands": [known[rounds, 10][2] / each for each in mu],
        "one epoch, subsampled, independent": subsampled(1),
        "one epoch in one order, dense": [known[rounds, 1][3] / each for each in mu],
    }
    head = ["T = 100", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]
    return table(head, [[name, *(f"{each:.0f}" for each in own)] for name, own in rows.items()])


def falling() -> str:
    """The third table: the last iterate of a contracting run of full batches, with and without a schedule."""
    rows = []
    for rounds in (30, 100):
        for contraction in (0.98, 0.95, 0.9):
            left = contraction ** np.arange(rounds - 1, -1.0, -1.0)
            equal, own = (
                math.sqrt(rounds) * math.sqrt(float((left**2 * np.array(ratios) ** 2).sum()))
                for ratios in ((1.0,) * rounds, noise_ratios(contraction, rounds))
            )
            rows.append([f"{rounds}", f"{contraction}", f"{equal:.1f}", f"{own:.1f}", f"{equal / own:.2f}"])
    return table(["T", "contraction", "equal noise", "noise_decay = contraction", "times less"], rows)


if __name__ == "__main__":
    with one_thread():
        text, known = measured()
        write("correlated", text, PAGE)
        write("epsilon", by_epsilon(known), PAGE)
        write("falling", falling(), PAGE)
