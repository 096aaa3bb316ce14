"""A silo pays what the plan costs, and is asked what the plan has."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from fedsim.isolated.parts import trace_of
from fedsim.problems.glm import LogisticRegression, SoftmaxRegression
from fedsim.protocol.batch import FULL, Batch, Fresh
from fedsim.protocol.contract import Algorithm, Asker, Memory, Message, PublicProblem, Query, traits
from fedsim.protocol.copies import copied_queries
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Plan, Statement
from fedsim.testing.federations import (
    Example,
    all_take_part,
    drive,
    open_gate,
    plan_of,
    public_of,
    require,
    silos_of,
)
from server.participation import rounds_of_silos, schedule

TWELFTH = Fresh(1 / 12)
_PROBLEM = LogisticRegression(4)


def ledger_is_plan(example: Example, batch: Batch) -> None:
    """Every silo is debited for every round, and its whole budget and no more is spent."""
    plan, _, statements = _after(example, batch, None)
    asked = {ask.batch for asks in plan.rounds for ask in asks}
    stated = example.anchors is None or asked == {batch} | example.anchors
    require(stated, f"it asks on batches {asked}, and its example says {example.anchors} and {batch}")
    releases = plan.num_queries(range(len(plan.rounds)))
    for statement in statements:
        _check(statement, range(len(plan.rounds)))
        priced = statement.admitted.releases
        require(priced == releases, f"{priced} releases are priced, and the plan has {releases}")


def pays_for_its_own_rounds(example: Example) -> None:
    """With one of three silos in a round, each is charged for the rounds that it takes part in."""
    plan, own, statements = _after(example, FULL, 1)
    require(sum(map(len, own)) == len(plan.rounds), "a round has not one silo")
    for rounds, statement in zip(own, statements, strict=True):
        _check(statement, rounds)


def _check(statement: Statement, rounds: Sequence[int]) -> None:
    """The silo was debited for these rounds, and they use up its budget."""
    paid, own = statement.rounds, list(rounds)
    require(paid == own, f"a silo is debited for rounds {paid}, and takes part in {own}")
    spent, guaranteed = statement.epsilon_spent, statement.admitted.epsilon_guaranteed
    require(spent == guaranteed, f"a silo spends {spent:.6g} of the {guaranteed:.6g} that it guarantees")
    require(0.999 <= spent <= 1.0 or not rounds, f"a silo of budget 1 spends {spent:.6g}")


def missed_rounds_are_not_spent(example: Example) -> None:
    """A silo that misses planned rounds spends less."""
    algorithm = example.short(FULL)
    plan = plan_of(algorithm, _PROBLEM, (10, 10))
    gate = open_gate(silos_of(_PROBLEM, (10, 10)), _PROBLEM, algorithm, plan=plan)
    drive(gate, algorithm, _PROBLEM, public_of((10, 10)), [*all_take_part(plan, 2)[:-1], [1]])
    one, two = gate.statements()
    _check(two, range(len(plan.rounds)))
    require(len(one.rounds) == len(plan.rounds) - 1, "a missed round is debited")
    less, more = one.epsilon_spent, two.epsilon_spent
    require(less < more, f"a silo that missed a round spends {less:.6g}, another {more:.6g}")


def asks_what_it_planned(example: Example) -> None:
    """The dry run is what the gate is asked, whatever the silos' sizes."""
    problem, sizes, algorithm = SoftmaxRegression(4, 3), (24, 30), example.short(TWELFTH)
    plan = plan_of(algorithm, problem, sizes)
    rounds: list[list[Ask]] = []
    watched = _watched(algorithm, rounds)
    gate = open_gate(silos_of(problem, sizes), problem, watched, plan=plan)
    rounds.clear()  # of a dry run
    drive(gate, watched, problem, public_of(sizes), all_take_part(plan, 2))
    for r, (asked, planned) in enumerate(zip(rounds, plan.rounds, strict=True)):
        require(tuple(asked) == planned, f"round {r} asks {asked}, and the plan has {planned}")
    require(plan == plan_of(algorithm, problem, (7, 7)), "the plan depends on the silos' sizes")


def _after(example: Example, batch: Batch, active: int | None) -> tuple[Plan, Sequence[Any], list[Statement]]:
    sizes, algorithm = (40, 40, 40), example.short(batch)
    trace = trace_of(algorithm, _PROBLEM, public_of(sizes), 0, LIMITS)
    rounds = schedule(3, active, trace.holds, seed=1, trial=0)
    own = rounds_of_silos(rounds, 3)
    gate = open_gate(silos_of(_PROBLEM, sizes), _PROBLEM, algorithm, rounds=own, plan=trace.plan)
    drive(gate, algorithm, _PROBLEM, public_of(sizes), rounds)
    return trace.plan, own, gate.statements()


def _watched(algorithm: Algorithm, rounds: list[list[Ask]]) -> Algorithm:
    """The algorithm, whose `silo` adds what it asks to `rounds`."""

    def silo(problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        rounds.append([])

        def asking(*queries: Query) -> Any:
            rounds[-1].append(copied_queries(queries)[0])
            return ask(*queries)

        return algorithm.silo(problem, broadcast, cast(Asker, asking), memory)

    sizes = {"any_size": traits(algorithm).any_size, "linear": algorithm.linear}
    return cast(Algorithm, SimpleNamespace(server=algorithm.server, silo=silo, **sizes))
