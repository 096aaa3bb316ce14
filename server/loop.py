"""The round loop: drives an algorithm's server method against silos that it does not trust with anything.

Deterministic given the aggregates and the public seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple, Protocol

from torch import Tensor

from fedsim.common.errors import InputError, Refused
from fedsim.common.seeds import server_rng
from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, Combined, Public, PublicProblem
from fedsim.protocol.copies import digest
from fedsim.protocol.links import Link
from server.participation import Schedule

Aggregate = Callable[[Mapping[str, Tensor], Public, Sequence[int]], Mapping[str, Tensor]]
"""(messages {name: (members, d)}, public numbers, members) to what the algorithm is sent, {name: (d,)}."""


class Progress(NamedTuple):
    """The model that the server would return after `rounds` rounds, (d,).

    `participants` silos are asked next, or were last; `last` is the round that came before. `clip` is that of
    the round that comes, where it is chosen as the run goes.
    """

    rounds: int
    answer: Tensor
    participants: int
    last: Kept | None = None
    clip: float | None = None


class Kept(NamedTuple):
    """A round that has ended."""

    broadcast: str  # SHA-256 of what was asked, as hexadecimal
    members: Sequence[int]  # positions of the silos that answered, ascending
    left_out: Mapping[int, str]  # the others that were asked, each with the reason
    aggregate: Mapping[str, Tensor]  # what the algorithm is sent, {name: (d,)}
    seconds: float | None = None  # from the question to the aggregate


class Journal(Protocol):
    """The rounds that have ended, so that a run goes on where another process left it."""

    def next(self) -> Kept | None:
        """The next round that ended in an earlier process; None where there is no more."""

    def append(self, kept: Kept) -> None:
        """Keep a round for good, before the next one is asked for."""


def run(
    algorithm: Algorithm,
    problem: PublicProblem,
    public: Public,
    seed: int,
    link: Link,
    rounds: Schedule,
    aggregate: Aggregate,
    journal: Journal | None = None,
    start: Tensor | None = None,
) -> Iterator[Progress]:
    """Yield the answer before every round, and the final model last.

    Where an algorithm holds its silos over an epoch, those are asked that answered the epoch's first round,
    and those of them that answer count, as with a record of attendance (`server.participation`): a silo that
    missed the first round has no part in the anchor, and waits for the next epoch. Refused if a silo refused
    a request, too few answered, or the journal is another run's.

    Args:
        seed: public seed of the server method, the one that silos saw at admission.
        rounds: who is asked in each round.
        aggregate: combines the messages of the silos that answered (`server.aggregate.weighted`).
        journal: rounds in it are not asked for again; the others are added to it.
        start: the model that the server method begins with, (d,); by default the problem's for this seed.
    """
    begin = problem.project(problem.start(seed).to(public.weights.dtype)) if start is None else start
    coroutine = algorithm.server(begin, problem, public, server_rng(seed))
    kept: Kept | None = None
    combined: Combined | None = None  # of it
    held: frozenset[int] | None = None  # who answered an epoch's first round; None where none was missing
    for r in count():
        try:
            step = next(coroutine) if combined is None else coroutine.send(combined)
        except StopIteration as stop:
            yield Progress(r, stop.value, len(rounds[-1]) if rounds else 0, kept)
            return
        except Exception as error:
            names = tuple(kept.aggregate if kept else ())
            Blame(algorithm).failed(f"server method, before round {r}", error, names)
        hold = step.participants == "hold" and r > 0
        members = rounds[r] if held is None or not hold else [m for m in rounds[r] if m in held]
        yield Progress(r, step.answer, len(members), kept, step.clip)
        kept = _round(r, step.broadcast, members, public, link, aggregate, journal)
        combined = Combined(kept.aggregate, len(kept.members) / len(public.names))
        if not hold:
            held = frozenset(kept.members) if len(kept.members) < len(members) else None


def _round(
    r: int,
    broadcast: Mapping[str, Tensor],
    members: Sequence[int],
    public: Public,
    link: Link,
    aggregate: Aggregate,
    journal: Journal | None,
) -> Kept:
    sent = "" if journal is None else digest(broadcast).hex()
    if journal is not None and (kept := journal.next()) is not None:
        if kept.broadcast != sent:
            why = "the journal's round is not this run's; was it written by another version?"
            raise InputError("record", f"round {r}", why)
        return kept
    start = time.monotonic()
    try:
        answered = link.answer(r, broadcast, members)
    except Refused as refusal:
        raise type(refusal)(f"round {r}: {refusal}") from None
    combined = aggregate(answered.messages, public, answered.members)
    kept = Kept(sent, answered.members, answered.left_out, combined, time.monotonic() - start)
    if journal is not None:
        journal.append(kept)
    return kept
