"""The dry run: plan, holds, limits, and what makes two plans of one algorithm."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import LIMITS, asking, public_of, scripted
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.contract import Asker, Memory, Public, Query, Round, ServerHalf
from fedsim.protocol.dryrun import Trace, dry_run
from fedsim.protocol.limits import Limits
from fedsim.protocol.passes import Pass
from fedsim.protocol.plan import Ask, Plan, QueryShape, Release

D = 3
PROBLEM = LinearRegression(D)
Server = Callable[[Tensor, Public, np.random.Generator], ServerHalf]


def _trace(algorithm: Any, limits: Limits = LIMITS, seed: int = 0) -> Trace:
    return dry_run(algorithm, PROBLEM, public_of((10, 20)), seed, limits)


@dataclass(frozen=True)
class Led:
    """One gradient a round; the server method is a function."""

    lead: Server

    def server(self, w: Tensor, problem: Any, public: Public, rng: np.random.Generator) -> ServerHalf:
        return self.lead(w, public, rng)

    def silo(
        self, problem: Any, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        batch = Subsample(0.5) if "half" in broadcast else FULL
        return {"g": ask(Query("gradient", (broadcast["w"],), 1.0, batch))}


def test_the_plan_is_a_table_of_rounds_and_asks():
    def half(w, ask, memory):
        a, b = ask(
            Query("gradient", (w,), 1.0, Subsample(0.5), 2.0),
            Query("gradient_difference", (w, w), 3.0, Subsample(0.5)),
        )
        return {"g": a + b + ask(Query("gradient", (w,), 1.0))}

    shapes = QueryShape("gradient", 1, 2.0), QueryShape("gradient_difference", 2, 1.0)
    one_round = Ask(Subsample(0.5), shapes), Ask(FULL, (QueryShape("gradient", 1, 1.0),))
    plan = _trace(scripted(half, 3)).plan
    assert plan == Plan((one_round,) * 3)
    assert plan.num_queries(range(3)) == 9
    assert dict(plan.census()) == {Release(Subsample(0.5), math.sqrt(1 / 4 + 1)): 3, Release(FULL, 1.0): 3}
    assert dict(plan.census([1])) == {release: 1 for release, _ in plan.census()}


def test_holds_are_recorded():
    def lead(w, public, rng):
        yield Round({"w": w}, answer=w)
        yield Round({"w": w}, answer=w, participants="hold")
        yield Round({"w": w}, answer=w)
        return w

    assert _trace(Led(lead)).holds == (False, True, False)


def _leads() -> dict[str, tuple[Server, int]]:
    def count(w, public, rng):
        for _ in range(2):
            g = (yield Round({"w": w}, answer=w))["g"]
        if bool((g != 0).any()):
            yield Round({"w": w}, answer=w)
        return w

    def holds(w, public, rng):
        g = (yield Round({"w": w}, answer=w))["g"]
        kept = "hold" if bool((g == 0).all()) else "resample"
        yield Round({"w": w}, answer=w, participants=kept)
        return w

    def batch(w, public, rng):
        g = (yield Round({"w": w}, answer=w))["g"]
        yield Round({"w": w, **({"half": w} if bool((g == 0).all()) else {})}, answer=w)
        return w

    def noise(w, public, rng):
        for _ in range(math.ceil(float(public.noise_multipliers.max()))):
            yield Round({"w": w}, answer=w)
        return w

    return {"count": (count, 2), "holds": (holds, 1), "batch": (batch, 1), "noise level": (noise, 1)}


@pytest.mark.parametrize("kind", ["count", "holds", "batch", "noise level"])
def test_rounds_that_depend_on_answers_or_noise_are_refused_naming_the_round(kind):
    lead, r = _leads()[kind]
    with pytest.raises(Refused, match=f"round {r}: the queries depend on the answers"):
        _trace(Led(lead))


def test_randomness_of_the_server_method_is_part_of_the_plan():
    """It is public and drawn from the seed, so both passes see it alike."""

    def lead(w, public, rng):
        for _ in range(int(rng.integers(1, 50))):
            yield Round({"w": w}, answer=w)
        return w

    lengths = {len(_trace(Led(lead), seed=seed).holds) for seed in range(10)}
    assert len(lengths) > 3
    assert _trace(Led(lead), seed=4) == _trace(Led(lead), seed=4)


def test_limit_on_rounds():
    assert len(_trace(scripted(asking(), 5), Limits(max_rounds=5)).holds) == 5
    with pytest.raises(Refused, match="limit of 5 rounds"):
        _trace(scripted(asking(), 6), Limits(max_rounds=5))


def _asks(count: int) -> Any:
    def half(w, ask, memory):
        ask(*[Query("gradient", (w,), 1.0)] * (count - 1))
        return {"g": ask(Query("gradient", (w,), 1.0))}

    return scripted(half)


def test_limit_on_queries_of_a_round():
    _trace(_asks(4), Limits(max_queries_per_round=4))
    with pytest.raises(Refused, match="limit of 4 queries"):
        _trace(_asks(5), Limits(max_queries_per_round=4))


def test_limit_on_dimension():
    _trace(scripted(asking()), Limits(max_dimension=D))
    with pytest.raises(Refused, match="dimension 3 exceeds the silo's limit 2"):
        _trace(scripted(asking()), Limits(max_dimension=D - 1))


@pytest.mark.parametrize(
    "query",
    [
        Query("loss", (torch.zeros(D),), 1.0),
        Query("gradient", (), 1.0),
        Query("gradient", (torch.zeros(D), torch.zeros(D)), 1.0),
        Query("gradient_difference", (torch.zeros(D),), 1.0),
    ],
    ids=lambda query: f"{query.statistic} at {len(query.points)}",
)
def test_a_statistic_the_silo_does_not_own_is_refused(query):
    with pytest.raises(Refused, match=query.statistic):
        _trace(scripted(lambda w, ask, memory: {"g": ask(query)}))


def test_a_round_of_many_numbers_is_not_held_to_be_played_again(monkeypatch):
    """A silo's daemon tries out what any server offers, and the policy's numbers bound its memory too."""
    kept: list[list[Tensor]] = []
    play = Pass._play

    def watched(*args, **named):
        reply = play(*args, **named)
        kept.append(reply.answers)
        return reply

    monkeypatch.setattr(Pass, "_play", watched)
    _trace(_asks(4))
    assert max(map(len, kept)) == 4
    kept.clear()
    monkeypatch.setattr("fedsim.protocol.passes._MOST_KEPT", 2 * 4 * D - 1)
    rounds = len(_trace(_asks(4)).plan.rounds)
    assert kept == [[]] * 2 * rounds  # once on zeros, once on random answers


def test_memory_that_only_some_answers_leave_is_memory():
    """A silo method is given zeros in secure aggregation, and other answers elsewhere."""

    def half(w, ask, memory):
        g = ask(Query("gradient", (w,), 1.0))
        if g.any():
            memory["last"] = g
        return {"g": g}

    assert _trace(scripted(half, 2)).remembers
    assert not _trace(scripted(asking(), 2)).remembers


def test_names_of_a_broadcast_are_known_and_do_not_depend_on_answers():
    def lead(w, public, rng):
        got = yield Round({"w": w}, answer=w)
        yield Round({"w": w, "again": w}, answer=w)
        if depends and got["g"].any():
            yield Round({"w": w, "more": w}, answer=w)
        else:
            yield Round({"w": w}, answer=w)
        return w

    depends = False
    sent = _trace(Led(lead)).broadcasts
    assert [[name for name, _ in arrays] for arrays in sent] == [["w"], ["again", "w"], ["w"]]
    assert {size for arrays in sent for _, size in arrays} == {PROBLEM.dimension}
    depends = True
    with pytest.raises(Refused, match=r"round 2: the queries depend .*other arrays"):
        _trace(Led(lead))
