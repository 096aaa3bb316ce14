"""Requests that a daemon refuses if it keeps its promise, over its socket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedsim.attacks.probes import other
from fedsim.attacks.reading import Line
from fedsim.attacks.two_worlds import Worlds
from fedsim.common.errors import Refused
from fedsim.wire.frames import decode
from fedsim.wire.messages import Ask, Offer


def probe(daemon: Worlds, offer: Offer, lines: Sequence[Line], outside: Iterable[int]) -> Iterator[str]:
    """What a daemon answered outside of a run's plan, in words; nothing if it keeps its promise.

    Args:
        daemon: one of them; one run of its budget is used.
        offer: that it admits.
        lines: what is asked.
        outside: rounds that are not in the silo's plan.
    """
    (admission,) = daemon.offer(offer)
    run, line = admission.run, lines[0]

    def ask(round_index: int, broadcast: Mapping[str, Any], of: str = run) -> bytes | None:
        """The reply; None for a refusal."""
        body = daemon.says(Ask(run=of, round=round_index, head=""), broadcast)
        return None if decode(body).kind == "refusal" else body

    first = ask(line.round, line.broadcast)
    if ask(line.round, line.broadcast) != first:
        yield f"round {line.round}: the same broadcast was answered with other bytes"
    if ask(line.round, other(line.broadcast)) is not None:
        yield f"round {line.round}: a second broadcast was answered"
    for absent in outside:
        if ask(absent, line.broadcast) is not None:
            yield f"round {absent}, which is not in the silo's plan, was answered"
    if ask(line.round, line.broadcast, "0" * 64) is not None:
        yield "a run that was never admitted was answered"
    yield from _admitted_too_much(daemon, offer, admission.session, admission.noise_multiplier)
    daemon.close([run])
    if any(ask(each.round, each.broadcast) is not None for each in lines[1:2]):
        yield "a round of a closed run was answered"


def _admitted_too_much(daemon: Worlds, offer: Offer, session: str, noise: float) -> Iterator[str]:
    """Offers that cost more than the silo's budget for them, or that change a run which is under way."""
    quiet = offer.model_copy(update={"noise_multiplier": noise / 1000})
    if _admits(daemon, quiet):
        yield "a run with a thousandth of the noise was admitted"
    changed = offer.model_copy(update={"seed": offer.seed + 1})
    if _admits(daemon, changed, session):
        yield "a second offer was admitted under the name of the first"


def _admits(daemon: Worlds, offer: Offer, session: str | None = None) -> bool:
    try:
        (admission,) = daemon.offer(offer, session)
    except Refused:
        return False
    daemon.close([admission.run])
    return True
