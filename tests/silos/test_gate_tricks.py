"""Algorithms whose silo method hands over something else than the contract says."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import Scripted, Switch, asking, open_gate, plan_of, scripted, silos_of
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.problems.glm import LinearRegression, LogisticRegression
from fedsim.protocol.batch import FULL, Poisson, Subsample
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import Ask, Plan, QueryShape
from silos.front.served import Served
from silos.vault.records import Records

D = 3
PROBLEM = LogisticRegression(D)
DATA = silos_of(PROBLEM, [10])
ZERO = {"w": torch.zeros(D, dtype=torch.float64)}
HONEST = open_gate(DATA, PROBLEM, scripted(asking())).answer(0, ZERO)["g"]


W, FAR = ZERO["w"], torch.full((D,), 1e200, dtype=torch.float64)
ONE = torch.ones((), dtype=torch.float64)
WRONG: dict[str, Query] = {
    "a clip that is a parameter": Query("gradient", (W,), torch.nn.Parameter(ONE)),
    "a clip that is a truth value": Query("gradient", (W,), True),
    "a clip beyond all floats": Query("gradient", (W,), 10**400),
    "a noise ratio that is a truth value": Query("gradient", (W,), 1.0, noise_ratio=True),
    "points in a list": Query("gradient", [W], 1.0),
    "a point that is a parameter": Query("gradient", (torch.nn.Parameter(W),), 1.0),
    "no query": "gradient",
}


@pytest.mark.parametrize("way", WRONG)
def test_what_is_not_exactly_of_the_contract_s_types_is_refused(way, monkeypatch):
    """Also at admission: the plan is made of what the gate will later see."""
    switch = Switch(asking())
    gate = open_gate(DATA, PROBLEM, Scripted(switch))
    switch.half = lambda w, ask, memory: {"g": ask(WRONG[way])}
    monkeypatch.setattr(Records, "full", lambda *_: pytest.fail("records were read"))
    monkeypatch.setattr(Records, "batch", lambda *_: pytest.fail("records were read"))
    with pytest.raises(Refused, match=" is "):
        gate.answer(0, ZERO)
    with pytest.raises(Refused, match=" is "):
        plan_of(Scripted(switch), PROBLEM, [10])


@pytest.mark.parametrize(
    "broadcast",
    [[W], {"w": torch.nn.Parameter(W)}, {0: W}, {"w": W.to_sparse()}],
    ids=["list", "parameter", "number for a name", "sparse"],
)
def test_a_broadcast_that_is_not_plain_is_refused_before_the_debit(broadcast):
    gate = open_gate(DATA, PROBLEM, scripted(asking()))
    with pytest.raises(Refused, match=" is "):
        gate.answer(0, broadcast)
    assert gate.statements()[0].rounds == []


# A plan that was made by hand.

SHAPE = QueryShape("gradient", 1, 1.0)


def _plan(shape: Any = SHAPE, batch: Any = FULL) -> Plan:
    return Plan(((Ask(batch, (shape,)),),) * 2)


# Beyond 1e162 the square of a ratio underflows: the release would cost nothing and carry no noise.
RATIOS = (1e200, 1e162, 1e7, 1e-7, 0.0, -1.0, float("nan"), float("inf"))
PLANS: dict[str, Any] = {
    **{f"ratio {ratio}": _plan(QueryShape("gradient", 1, ratio)) for ratio in RATIOS},
    "unknown statistic": _plan(QueryShape("loss", 1, 1.0)),
    "a point too many": _plan(QueryShape("gradient", 2, 1.0)),
    "a point too few": _plan(QueryShape("gradient_difference", 1, 1.0)),
    "an ask without a query": Plan(((Ask(FULL, ()),),) * 2),
}


@pytest.mark.parametrize("way", PLANS)
def test_every_entry_of_a_plan_is_checked_when_the_gate_is_built(way):
    plan = PLANS[way]
    with pytest.raises(Refused, match="noise_ratio" if way.startswith("ratio") else None):
        open_gate(DATA, PROBLEM, scripted(asking()), plan=plan)
    if way.startswith("ratio"):  # at admission too
        with pytest.raises(Refused, match="noise_ratio"):
            plan_of(scripted(asking(noise_ratio=plan.rounds[0][0].queries[0].noise_ratio)), PROBLEM, [10])


def test_the_dry_run_s_plan_is_what_the_gate_keeps():
    """Also where numbers of it are written differently."""
    plan = plan_of(scripted(asking(batch=Subsample(1), noise_ratio=2)), PROBLEM, [10])
    assert plan == _plan(QueryShape("gradient", 1, 2.0), Subsample(1.0))
    assert type(plan.rounds[0][0].queries[0].noise_ratio) is float
    assert plan.rounds[0] is plan.rounds[1]  # rounds that are alike are one object, however many there are


# What comes back from the silo method.


@pytest.mark.parametrize(
    "message",
    [
        [W],
        None,
        {"g": 0.0},
        {"g": None},
        {"g": np.zeros(D)},
        {0: W},
        {"g": torch.nn.Parameter(W)},
        {"g": torch.zeros(2, D)},
        {"g": torch.zeros(())},
    ],
    ids=repr,
)
def test_a_message_of_anything_but_named_vectors_ends_the_round(message):
    gate, switch = _paid_and_open()
    honest = switch.half
    switch.half = lambda w, ask, memory: honest(w, ask, memory) and message
    with pytest.raises((Refused, RuntimeError)):
        gate.answer(0, ZERO)
    switch.half = honest
    with pytest.raises(Refused):
        gate.answer(0, ZERO)
    assert gate.statements()[0].rounds == [0]


def _paid_and_open() -> tuple[Served, Switch]:
    switch = Switch(asking())
    return open_gate(DATA, PROBLEM, Scripted(switch, 3)), switch


def test_what_the_silo_method_keeps_is_no_part_of_what_the_gate_keeps():
    """Its own answers, the broadcast, its memory and its message, changed in place after the round."""
    gate, switch = _paid_and_open()
    kept: list[Tensor] = []

    def half(w, ask, memory):
        answer = ask(Query("gradient", (w,), 1.0))
        message = memory["sum"] = memory["sum"] + answer
        kept.extend((w, answer, message, memory["sum"]))
        return {"g": message}

    switch.half = half
    untouched = open_gate(DATA, PROBLEM, scripted(half, 3))
    for r in range(3):
        expected = untouched.answer(r, ZERO)["g"].clone()
        assert torch.equal(gate.answer(r, ZERO)["g"], expected)
        for tensor in kept:
            tensor.fill_(torch.nan)
        assert torch.equal(gate.answer(r, ZERO)["g"], expected)


@pytest.mark.parametrize("value", [0.0, None, torch.nn.Parameter(W)], ids=repr)
def test_memory_holds_plain_tensors_only(value):
    gate, switch = _paid_and_open()

    def half(w, ask, memory):
        memory["kept"] = value
        return {"g": ask(Query("gradient", (w,), 1.0))}

    switch.half = half
    with pytest.raises(Refused, match="memory"):
        gate.answer(0, ZERO)
    switch.half = asking()
    with pytest.raises(Refused, match="memory"):
        gate.answer(0, ZERO)
    gate.answer(1, ZERO)


def test_a_refusal_that_is_swallowed_gives_no_later_ask_the_batch_of_another():
    """A rare Poisson sample priced, and single records of an earlier ask's kind drawn in its place."""
    n, rounds = 40, 50
    single, rare = Subsample(1 / n), Poisson(1e-9)

    def half(w, ask, memory):
        with suppress(Refused):
            ask(Query("gradient", (w * scale,), 1e3, single))
        ask(Query("gradient", (w,), 1e3, single))
        return {"g": ask(Query("gradient", (w,), 1e3, rare))}

    scale = 1.0
    gate = open_gate([(np.eye(n), np.ones(n))], LinearRegression(n), scripted(half, rounds), epsilon=np.inf)
    point = {"w": torch.full((n,), 1e-9, dtype=torch.float64)}
    assert not gate.answer(0, point)["g"].any()
    scale = float("inf")
    for r in range(1, rounds):
        with pytest.raises(Refused):
            gate.answer(r, point)
