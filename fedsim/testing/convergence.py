"""Without noise, an algorithm finds the optimum, stays there, and sends nothing that must not be scaled."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsim.common.seeds import server_rng
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Algorithm, Combined, Public, ServerHalf
from fedsim.testing.cases import SIZES, WEIGHTS, Case, case_of
from fedsim.testing.example import Example, require
from fedsim.testing.federations import all_take_part, drive, open_gate, plan_of, public_of, silos_of
from server.aggregate import coefficients, combine
from silos.gate import Gate

_MOVED = (
    "it has moved by {:.3g} though every gradient is 0: a message is scaled by N p_i / M, so it must be a "
    "gradient or a step, and never a model"
)


def reaches(example: Example, name: str) -> None:
    """It comes within the example's tolerance of the optimum of p_i, and started far from it."""
    case, nearest = case_of(name), np.inf
    apart = float(np.linalg.norm(case_of(name, (1 / 3,) * 3).optimum - case.optimum))
    require(
        apart > 2 * example.tolerance,
        f"the tolerance {example.tolerance:g} is too wide to tell the silos' weights apart: take less than "
        f"{apart / 2:.2g}",
    )
    for step in example.steps:
        answers = answers_of(case, example.convergent(step / case.smoothness))
        nearest = min(nearest, case.distance(example.estimate(answers)))
        if nearest <= example.tolerance:
            break
    start = case.distance(answers[0])
    require(
        nearest <= example.tolerance,
        f"it ends {nearest:.3g} from the optimum, and began {start:.3g} from it; it must come within "
        f"{example.tolerance:g}",
    )
    require(start > 5 * example.tolerance, f"it begins {start:.3g} from the optimum: that shows nothing")


def keeps(example: Example, name: str) -> None:
    """Started at the optimum, it ends there."""
    case, nearest = case_of(name), np.inf
    for step in example.steps:
        algorithm = example.convergent(step / case.smoothness)
        gate = open_gate(case.data, case.problem, algorithm, epsilon=np.inf, mechanism="none")
        public = public_of(SIZES, WEIGHTS)
        coroutine = algorithm.server(torch.from_numpy(case.optimum), case.problem, public, server_rng(0))
        nearest = min(nearest, case.distance(_played(coroutine, gate, public)))
        if nearest <= example.tolerance:
            return
    raise AssertionError(f"it starts at the optimum and ends {nearest:.3g} from it")


def may_be_scaled(example: Example) -> None:
    """Where no silo has anything to say (the optimum of each, no noise), no coefficient moves the model.

    A message that held a model, or a public estimate, would move it: coefficients need not sum to 1.
    """
    problem, sizes, truth = LinearRegression(3), (20, 30, 40, 50), np.array([0.5, -0.2, 0.1])
    data = [(x, x @ truth) for x, _ in silos_of(problem, sizes, seed=1)]
    algorithm = example.short(FULL)
    gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
    public = public_of(sizes, (1 / 6, 1 / 6, 1 / 6, 1 / 2))
    coroutine = algorithm.server(torch.from_numpy(truth), problem, public, server_rng(0))
    model, ended, r = next(coroutine), False, 0
    while not ended:
        moved = float(np.abs(model.answer.numpy() - truth).max())
        require(moved <= 1e-12, f"by round {r} {_MOVED.format(moved)}")
        members = [r % 4]
        reply = gate.answer(r, model.broadcast, members)
        try:
            model = coroutine.send(Combined(combine(reply, coefficients(public.weights, members, 4)), 1 / 4))
        except StopIteration as stop:
            moved, ended = float(np.abs(stop.value.numpy() - truth).max()), True
            require(moved <= 1e-12, f"at its end {_MOVED.format(moved)}")
        r += 1


def answers_of(case: Case, algorithm: Algorithm) -> list[Tensor]:
    """What the server would return before every round of a noise-free run, and at its end."""
    plan = plan_of(algorithm, case.problem, SIZES)
    gate = open_gate(case.data, case.problem, algorithm, epsilon=np.inf, mechanism="none", plan=plan)
    public, rounds = public_of(SIZES, WEIGHTS), all_take_part(plan, len(SIZES))
    return [progress.answer for progress in drive(gate, algorithm, case.problem, public, rounds)]


def _played(coroutine: ServerHalf, gate: Gate, public: Public) -> Tensor:
    """What a server half returns, from wherever it was started."""
    step, r = next(coroutine), 0
    everyone = coefficients(public.weights, range(len(public.names)), len(public.names))
    try:
        while True:
            step = coroutine.send(Combined(combine(gate.answer(r, step.broadcast), everyone), 1.0))
            r += 1
    except StopIteration as stop:
        model: Tensor = stop.value
        return model
