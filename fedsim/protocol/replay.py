"""A round of a silo half, played again: with all that it was given, and for each silo alone.

A message must be a function of broadcast, answers and memory, and a silo's own row of it must be the same
whoever shares a process with the silo: else a run gives another result on other hosts, and a silo's message
is made of other silos' answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedsim.protocol.blame import Blame
from fedsim.protocol.halves import Played, Shape, SiloHalf, Unplanned
from fedsim.protocol.memory import CohortMemory

ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-9}
"""Of a message, over the largest entry of what it is made of."""

STATE = "what lasts belongs in memory (silo half) or local variables (server half), randomness in rng"
_OWN_ROW = "a silo's message must be made of its own row, so reduce over the last axis only"


def replay(
    blame: Blame,
    silo: SiloHalf,
    r: int,
    broadcast: Mapping[str, Tensor],
    memory: CohortMemory,
    played: Played,
    shape: Shape,
) -> None:
    """Check a round that a cohort has played.

    Args:
        silo: plays it; whatever it counts is not the plan's.
        memory: as it was before the round.

    Raises:
        Refused: another message, other queries or another memory; or a message that is not finite.
    """
    where, scale = f"silo half, round {r}", _scale(broadcast, memory, played)
    _check_finite(blame, where, played, scale)
    everyone = range(shape.silos)
    before = state(blame.algorithm)
    again = _again(silo, r, broadcast, memory, played, shape, everyone)
    if found := _difference(played, again, everyone, scale * ROUNDING[shape.dtype]):
        raise blame.breach(where, f"{found} when it runs again on the same{_kept(blame, before)}; {STATE}")
    for row in everyone:
        own = Shape(1, shape.dimension, shape.dtype)
        alone = _again(silo, r, broadcast, memory, played, own, [row])
        if found := _difference(played, alone, [row], scale * ROUNDING[shape.dtype]):
            raise blame.breach(where, f"{found} for a silo alone than among {shape.silos}; {_OWN_ROW}")


def state(algorithm: object) -> dict[str, tuple[int, str]]:
    """What an object holds, to be compared later."""
    kind, held = type(algorithm), getattr(algorithm, "__dict__", {})
    lazy = [name for name in held if isinstance(getattr(kind, name, None), cached_property)]
    return {name: (id(value), repr(value)) for name, value in held.items() if name not in lazy}


def changed(algorithm: object, before: Mapping[str, tuple[int, str]]) -> list[str]:
    """Names of attributes that are others than before."""
    now = state(algorithm)
    return [name for name in sorted({*now, *before}) if now.get(name) != before.get(name)]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, NaN being equal to itself."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _kept(blame: Blame, before: Mapping[str, tuple[int, str]]) -> str:
    names = changed(blame.algorithm, before)
    return f", and it changes self.{', self.'.join(names)}" if names else ""


def _again(
    silo: SiloHalf,
    r: int,
    broadcast: Mapping[str, Tensor],
    memory: CohortMemory,
    played: Played,
    shape: Shape,
    rows: Sequence[int],
) -> Played | None:
    """The round of some rows; None where it asks something else."""

    def answer(query: Any, number: int) -> Tensor:
        return played.answers[number][rows].clone()

    copies = {name: value.clone() for name, value in broadcast.items()}
    try:
        return silo.play(r, copies, memory.select(list(rows)), answer, shape, played.asks)
    except Unplanned:
        return None


def _difference(played: Played, again: Played | None, rows: Sequence[int], rounding: float) -> str | None:
    """What is another for these rows."""
    if again is None:
        return "it asks something else"
    for what in ("message", "memory"):
        one, other = getattr(played, what), getattr(again, what)
        if set(one) != set(other):
            return f"the {what} has other names"
        for name, value in other.items():
            apart = (one[name][rows] - value).abs()
            if not bool((apart.nan_to_num(0.0) <= rounding).all()):
                return f"the {what}'s {name!r} is another"
    return None


def _scale(broadcast: Mapping[str, Tensor], memory: Mapping[str, Tensor], played: Played) -> float:
    tensors = [*broadcast.values(), *memory.values(), *played.answers, *played.message.values()]
    return max((float(value.abs().nan_to_num(0.0).amax()) for value in tensors), default=0.0)


_LARGE = 1e6
"""Finite numbers beyond it may well give others that are not."""


def _check_finite(blame: Blame, where: str, played: Played, scale: float) -> None:
    for name, value in played.message.items():
        if scale <= _LARGE and not bool(value.isfinite().all()):
            raise blame.breach(
                where, f"the message's {name!r} is not finite, though all that the silo half was given is"
            )
