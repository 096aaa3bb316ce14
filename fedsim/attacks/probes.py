"""Requests outside the plan, which a silo that keeps its promise refuses."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedsim.attacks.gates import Answering
from fedsim.attacks.search import Attack
from fedsim.attacks.setting import Broadcast, Setting
from fedsim.attacks.wiretap import Tap, Wiretap


def probe(setting: Setting, silo: int, chosen: Attack) -> list[str]:
    """What the silo answered outside of its plan, in words; empty if it keeps its promise."""
    return list(_found(setting, silo, chosen))


def _found(setting: Setting, silo: int, chosen: Attack) -> Iterator[str]:
    own = set(setting.rounds(silo))
    for kind, broadcast in zip(setting.kinds, chosen.broadcasts, strict=True):
        r = next((r for r in kind.rounds if r in own), None)
        if r is None:
            continue
        gate, tap = _opened(setting, silo, greedy=True)
        gate.answer(r, broadcast)
        if tap.overheard:
            yield f"round {r}: a query more than the plan has was answered"
        gate, tap = _opened(setting, silo)
        first = gate.answer(r, broadcast)
        if _answered(gate, tap, r, other(broadcast)):
            yield f"round {r}: a second broadcast was answered"
        if _changed(gate, r, broadcast, first):
            yield f"round {r}: the same broadcast was answered with other bytes"
    gate, tap = _opened(setting, silo)
    for r in outside(setting, silo):
        if _answered(gate, tap, r, chosen.broadcasts[0]):
            yield f"round {r}, which is not in the silo's plan, was answered"


def outside(setting: Setting, silo: int) -> list[int]:
    """Rounds that are not in the silo's plan: one of other silos, if any, and one after the last."""
    own, rounds = set(setting.rounds(silo)), len(setting.resolved.trace.plan.rounds)
    return [*[r for r in range(rounds) if r not in own][:1], rounds]


def _opened(setting: Setting, silo: int, greedy: bool = False) -> tuple[Answering, Tap]:
    tap = Tap(greedy=greedy)
    wiretap, data = Wiretap(setting.algorithm, tap), setting.data[silo]
    return setting.gate(wiretap, [silo], [data], [f"probe/{silo}"]), tap


def _answered(gate: Answering, tap: Tap, round_index: int, broadcast: Broadcast) -> bool:
    """Whether any answer was made, even if it was not sent."""
    tap.take()
    try:
        gate.answer(round_index, broadcast)
    except Exception:
        return bool(tap.take())
    return True


def other(broadcast: Broadcast) -> Broadcast:
    """Another one, within the limits."""
    return {
        name: value + 0.5 * (1 + value.abs()) if value.abs().max() < 1e5 else value / 2
        for name, value in broadcast.items()
    }


def _changed(gate: Answering, round_index: int, broadcast: Broadcast, first: dict[str, torch.Tensor]) -> bool:
    """Whether asking again tells anything; a refusal does not."""
    try:
        reply = gate.answer(round_index, broadcast)
    except Exception:
        return False
    return not all(torch.equal(reply[name], value) for name, value in first.items())
