"""Silo halves that try to be priced as one thing and answered as another."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from helpers import Scripted, Switch, asking, open_gate, scripted, silos_of
from torch import Tensor

from fedsim.problems.glm import LinearRegression, LogisticRegression
from fedsim.protocol.batch import Poisson, Subsample
from fedsim.protocol.contract import Asker, Query
from fedsim.protocol.errors import Refused
from fedsim.protocol.plan import QueryShape

D = 3
PROBLEM = LogisticRegression(D)
DATA = silos_of(PROBLEM, [10])
ZERO = {"w": torch.zeros(D, dtype=torch.float64)}
HONEST = open_gate(DATA, PROBLEM, scripted(asking())).answer(0, ZERO)["g"]


@pytest.mark.parametrize("ratio", [1e162, 1e7, 1e-7, 0.0, -1.0, float("nan"), float("inf")])
def test_a_noise_ratio_out_of_bounds_is_refused_at_admission(ratio: float) -> None:
    """Beyond 1e162 its square underflows: the release would cost nothing and carry no noise."""
    with pytest.raises(Refused, match="noise_ratio"):
        open_gate(DATA, PROBLEM, scripted(asking(noise_ratio=ratio)))


class _LooksHonest(Query):
    """Says that it has noise ratio 1, and has another."""

    @property
    def shape(self) -> QueryShape:
        return QueryShape("gradient", 1, 1.0)


class _Vanishing(float):
    """A clip whose double is zero."""

    def __rmul__(self, other: float) -> float:
        return 0.0


@pytest.mark.parametrize(
    "query",
    [
        _LooksHonest("gradient", (ZERO["w"],), 1.0, noise_ratio=1e-6),
        Query("gradient", (ZERO["w"],), _Vanishing(1.0)),
    ],
    ids=["noise ratio", "clip"],
)
def test_an_answer_has_the_planned_noise_whatever_the_query_says_of_itself(query: Query) -> None:
    switch = Switch(asking())
    gate = open_gate(DATA, PROBLEM, Scripted(switch))
    switch.half = lambda w, ask, memory: {"g": ask(query)}
    assert torch.equal(gate.answer(0, ZERO)["g"], HONEST)


@pytest.mark.parametrize("point", [[0.0] * D, np.zeros(D), torch.nn.Parameter(ZERO["w"])], ids=repr)
def test_a_point_that_is_no_plain_tensor_is_refused(point: object) -> None:
    switch = Switch(asking())
    gate = open_gate(DATA, PROBLEM, Scripted(switch))
    switch.half = lambda w, ask, memory: {"g": ask(Query("gradient", (point,), 1.0))}  # type: ignore[arg-type]
    with pytest.raises(Refused, match="a point is"):
        gate.answer(0, ZERO)


def test_an_ask_kept_from_an_earlier_round_is_refused() -> None:
    kept: list[Asker] = []

    def half(w: Tensor, ask: Asker, memory: object) -> dict[str, Tensor]:
        kept.append(ask)
        return {"g": kept[0](Query("gradient", (w,), 1.0))}

    switch = Switch(asking())
    gate = open_gate(DATA, PROBLEM, Scripted(switch))
    switch.half = half
    gate.answer(0, ZERO)
    with pytest.raises(Refused):
        gate.answer(1, ZERO)


def test_a_refusal_that_is_swallowed_gives_no_later_ask_the_batch_of_another() -> None:
    """A rare Poisson sample priced, and single records of an earlier ask's kind drawn in its place."""
    n, rounds = 40, 50
    single, rare = Subsample(1 / n), Poisson(1e-9)

    def half(w: Tensor, ask: Asker, memory: object) -> dict[str, Tensor]:
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
