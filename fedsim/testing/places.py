"""A result depends on the seed, and not on who shares a process with whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice, pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedsim.common.seeds import server_rng
from fedsim.problems.composite import Composite
from fedsim.problems.glm import LinearRegression, LogisticRegression
from fedsim.problems.regularisers import L2Ball
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Algorithm, Asker, Combined, Query, Round
from fedsim.protocol.copies import CohortMemory
from fedsim.testing.convergence import SIZES
from fedsim.testing.federations import (
    Example,
    HostsLink,
    all_take_part,
    drive,
    names_of,
    open_gate,
    plan_of,
    public_of,
    require,
    silos_of,
)

_ROUNDING = 1e-9
_PROBLEM = LogisticRegression(4, composite=Composite(l2=0.1))
_COMPOSITE = LinearRegression(4, composite=Composite(0.1, 0.2, L2Ball(0.5)))
Reply = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]  # a message and the memory that is kept

Silos = Callable[[Sequence[int]], Reply]  # the silo method of these rows


def is_a_function_of_its_seed(example: Example) -> None:
    """The same seed gives the same model, another one another."""
    first, again, other = (_end(example.short(FULL), (len(SIZES),), seed) for seed in (3, 3, 4))
    require(torch.equal(first, again), "the same seed gives another model: randomness must come from `rng`")
    require(not torch.equal(first, other), "another seed gives the same model: the answers are not used")


def is_the_same_on_other_hosts(example: Example) -> None:
    """Three silos in one process, on two hosts, or each alone: the same model, but for rounding."""
    together = _end(example.short(FULL), (3,), 0)
    for hosts in ((2, 1), (1, 1, 1)):
        apart = float((_end(example.short(FULL), hosts, 0) - together).abs().max())
        require(
            apart <= _ROUNDING * max(1.0, float(together.abs().max())),
            f"silos on {len(hosts)} hosts give a model {apart:.3g} away from that of a single host: "
            "a silo's message must be made of its own row alone",
        )


def _end(algorithm: Algorithm, hosts: tuple[int, ...], seed: int) -> Tensor:
    """The model where so many silos share each host."""
    data, names, plan = silos_of(_PROBLEM, SIZES), names_of(len(SIZES)), plan_of(algorithm, _PROBLEM, SIZES)
    bounds = np.cumsum([0, *hosts])
    gates = [
        open_gate(data[a:b], _PROBLEM, algorithm, names=names[a:b], seed=seed, plan=plan)
        for a, b in pairwise(bounds)
    ]
    rounds = all_take_part(plan, len(SIZES))
    return drive(HostsLink(gates, hosts), algorithm, _PROBLEM, public_of(SIZES), rounds)[-1].answer


def is_answered_row_by_row(example: Example) -> None:
    """The silo method computes on (silos, d) what it computes on each row, and so does its memory."""
    for r, silos in _rounds(example, 25):
        together = silos(range(25))
        for row in range(0, 25, 6):
            found = _difference(together, silos([row]), row)
            require(not found, f"round {r}: {found} for a silo is another among 25 silos than alone")


def remembers_what_it_was_given(example: Example) -> None:
    """A round is a function of broadcast, answers and memory: nothing is kept elsewhere."""
    for r, silos in _rounds(example, 3):
        first, again = silos(range(3)), silos(range(3))
        found = next(filter(None, (_difference(first, again, row) for row in range(3))), None)
        require(
            not found,
            f"round {r}: {found} is another when the same broadcast, answers and memory come again: what a "
            "silo keeps between rounds belongs in `memory`, and nothing there may be random",
        )


def _difference(whole: Reply, part: Reply, row: int) -> str | None:
    """The first difference in a silo's row: whole replies have it at `row`, partial ones alone or too."""
    for what, one, other in zip(("the message", "the memory"), whole, part, strict=True):
        if set(one) != set(other):
            return f"the set of names in {what}"
        for name, value in other.items():
            own = _row(value, row)
            apart = (_row(one[name], row) - own).abs().max()
            if not apart <= _ROUNDING * (1 + own.abs().max()):  # NaN is apart too
                return f"{what}'s {name!r}"
    return None


def _row(value: Tensor, row: int) -> Tensor:
    """The row of one silo; (d,) and (1, d) are everyone's."""
    return value if value.dim() == 1 else value[row if len(value) > 1 else 0]


def is_linear_where_it_says_so(example: Example) -> None:
    """With `linear`, a message is one affine function of the answers: at a mixture, the messages' mixture."""
    algorithm, rng = example.short(FULL), np.random.default_rng(0)
    affine, drawn = True, [torch.from_numpy(rng.normal(size=(2, 1, 4))) for _ in range(200)]
    problem = replace(_COMPOSITE, composite=Composite(0.1, 0.1, L2Ball(0.2)))
    coroutine = algorithm.server(torch.zeros(4, dtype=torch.float64), problem, public_of((5,)), server_rng(0))
    step: Round | None = next(coroutine)
    while step is not None:
        ends = [[one for one, _ in drawn], [other for _, other in drawn]]
        ends.append([0.3 * one + 0.7 * other for one, other in drawn])
        first, second, mixture = (
            algorithm.silo(problem, step.broadcast, _asker(iter(each)), CohortMemory(1, 4, torch.float64))
            for each in ends
        )
        for name, value in mixture.items():
            affine &= torch.allclose(value, 0.3 * first[name] + 0.7 * second[name], rtol=0, atol=1e-12)
        try:
            step = coroutine.send(Combined({n: value.expand(1, 4)[0] for n, value in first.items()}, 1.0))
        except StopIteration:
            step = None
    says = algorithm.linear
    found = "is affine" if affine else "is not affine"
    require(affine == says, f"it says linear = {says}, and its message {found} in the answers")


def _asker(drawn: Iterator[Tensor]) -> Asker:
    """Gives the drawn answers, (silos, d), one after another."""

    def ask(*queries: Query) -> Tensor | tuple[Tensor, ...]:
        answers = tuple(islice(drawn, len(queries)))
        return answers if len(answers) > 1 else answers[0]

    return cast(Asker, ask)


def _rounds(example: Example, count: int) -> Iterator[tuple[int, Silos]]:
    """The rounds of a short run on random answers, each with the silo method of any of `count` rows."""
    algorithm, rng = example.short(FULL), np.random.default_rng(0)
    start = torch.from_numpy(rng.normal(size=4))
    coroutine = algorithm.server(start, _COMPOSITE, public_of((5,)), server_rng(0))
    memory, step, r = CohortMemory(count, 4, torch.float64), next(coroutine), 0
    while True:
        silos = _silos(algorithm, step, memory, torch.from_numpy(rng.normal(size=(50, count, 4))))
        yield r, silos
        message, kept = silos(range(count))
        memory.update(kept)
        try:
            means = {name: value.expand(count, 4).mean(0) for name, value in message.items()}
            step = coroutine.send(Combined(means, 1.0))
        except StopIteration:
            return
        r += 1


def _silos(algorithm: Algorithm, step: Round, memory: CohortMemory, answers: Tensor) -> Silos:
    def silos(rows: Sequence[int]) -> Reply:
        part, asker = memory.select(list(rows)), _asker(cycle(answers[:, list(rows)]))
        return dict(algorithm.silo(_COMPOSITE, step.broadcast, asker, part)), dict(part)

    return silos
