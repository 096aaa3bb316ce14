"""Requests outside the plan, to a gate or a daemon, which a silo that keeps its promise refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fedsim.common.errors import Refused
from fedsim.testing.attacks.cohorts import Tap
from fedsim.testing.attacks.daemon_pair import Worlds
from fedsim.testing.attacks.neighbours import Line
from fedsim.testing.attacks.parties import Answering
from fedsim.testing.attacks.search import Attack
from fedsim.testing.attacks.setting import Broadcast, Setting
from fedsim.wire.frames import decode
from fedsim.wire.messages import Ask, Offer


def probe(setting: Setting, silo: int, chosen: Attack) -> Iterator[str]:
    """Answers of the silo outside of its plan, in words; none if it keeps its promise."""
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
    return setting.gate(tap, [silo], [setting.data[silo]], [f"probe/{silo}"]), tap


def _answered(gate: Answering, tap: Tap, round_index: int, broadcast: Broadcast) -> bool:
    """Whether any answer was made, even if it was not sent."""
    tap.take()
    try:
        gate.answer(round_index, broadcast)
    except Exception:
        return bool(tap.take())
    return True


def other(broadcast: Broadcast) -> Broadcast:
    """Another one, within the limits: a constant leaves the reach of a table as it is."""
    return {
        name: value + 0.5 * (1 + value.abs().max()) if value.abs().max() < 1e5 else value / 2
        for name, value in broadcast.items()
    }


def _changed(gate: Answering, round_index: int, broadcast: Broadcast, first: dict[str, torch.Tensor]) -> bool:
    """Whether asking again tells anything; a refusal does not."""
    try:
        reply = gate.answer(round_index, broadcast)
    except Exception:
        return False
    return not all(torch.equal(reply[name], value) for name, value in first.items())


def probe_daemon(daemon: Worlds, offer: Offer, lines: Sequence[Line], beyond: Iterable[int]) -> Iterator[str]:
    """Answers of a daemon to what is not in a plan, as the rounds `beyond`, in words; uses one run."""
    (admission,) = daemon.offer(offer)
    run, line = admission.run, lines[0]

    def ask(round_index: int, broadcast: Mapping[str, Any], of: str = run) -> bytes | None:
        body = daemon.says(Ask(run=of, round=round_index, head=""), broadcast)
        return None if decode(body).kind == "refusal" else body

    first = ask(line.round, line.broadcast)
    if ask(line.round, line.broadcast) != first:
        yield f"round {line.round}: the same broadcast was answered with other bytes"
    if ask(line.round, other(line.broadcast)) is not None:
        yield f"round {line.round}: a second broadcast was answered"
    for absent in beyond:
        if ask(absent, line.broadcast) is not None:
            yield f"round {absent}, which is not in the silo's plan, was answered"
    if ask(line.round, line.broadcast, "0" * 64) is not None:
        yield "a run that was never admitted was answered"
    if _admits(daemon, offer.model_copy(update={"noise_multiplier": admission.noise_multiplier / 1000})):
        yield "a run with a thousandth of the noise was admitted"
    if _admits(daemon, offer.model_copy(update={"seed": offer.seed + 1}), admission.session):
        yield "a second offer was admitted under the name of the first"
    daemon.close([run])
    if any(ask(each.round, each.broadcast) is not None for each in lines[1:2]):
        yield "a round of a closed run was answered"


def _admits(daemon: Worlds, offer: Offer, session: str | None = None) -> bool:
    try:
        (admission,) = daemon.offer(offer, session)
    except Refused:
        return False
    daemon.close([admission.run])
    return True
