"""How a simulated round's contributions are added up: at once, by additive shares, or by the whole protocol.

The second aggregator is in this process, or an actor under Ray; keys are drawn for the trial.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.common.identity import Identity
from fedsim.common.seeds import digest128
from fedsim.protocol.links import Answered, Link
from fedsim.scenario.resolve import Resolved
from fedsim.secagg.agreement import aggregated
from fedsim.secagg.envelopes import EnvelopeKey
from fedsim.secagg.reports import (
    Form,
    ReportContext,
    Words,
    add,
    aggregators_noise,
    seal_report,
    split,
    total,
)
from fedsim.secagg.roster import parse_roster
from fedsim.secagg.shuffling import Release, Request, messages, totals
from server.aggregate import Totals

Rows = Mapping[str, Tensor]  # contributions of a round by the number of their query, (members, d)
Sums = Mapping[str, Tensor]  # their sums, (d,)


class Party:
    """The second aggregator, in this process: keys and notes are in memory, and gone with it."""

    def __init__(self) -> None:
        from shuffler.keys import Keys

        self._keys = Keys.draw()

    def add(self, shares: Words) -> Words:
        """The sum over silos of its shares, (silos, ..) to (..)."""
        return add(shares)

    def pin(self, roster: dict[str, Any]) -> None:
        """Take a roster, which names its `keys`."""
        from shuffler.rounds import Shuffler
        from shuffler.store import MemoryStore

        self._shuffler = Shuffler([parse_roster(roster)], self._keys, MemoryStore())

    def keys(self) -> dict[str, str]:
        """Its public keys, as a roster has them."""
        return self._keys.public.model_dump()

    def shuffle(self, request: bytes) -> bytes:
        """The frame that answers a request's body (`fedsim.secagg.shuffling`)."""
        return self._shuffler.shuffle(Request.read(request))


@dataclass(frozen=True)
class TrialSums:
    """The values that the sums of one trial depend on."""

    resolved: Resolved  # the run; its answers are added up
    trial: int  # which trial
    digest: str  # keys noise (`fedsim.simulation.run_digest`)
    noise_multiplier: float  # the one that is common to all silos

    def scales(self, round_index: int) -> tuple[int, tuple[float, ...]]:
        """Numbers in a sum, and by query each aggregator's deviation in steps, 0 where silos add noise."""
        resolved = self.resolved
        assert resolved.sums is not None
        mechanism, plan, problem = resolved.sums.mechanism, resolved.trace.plan, resolved.problem
        sizes = problem.dimension, problem.num_features
        return aggregated(mechanism, plan, round_index, self.noise_multiplier, *sizes)

    def noise(self, round_index: int, party: int) -> list[np.ndarray]:
        """An aggregator's seeded noise, integers (size,) for each query: rounded normal numbers."""
        key = digest128("aggregator", party, self.resolved.scenario.seed, self.trial, self.digest)
        stream = np.random.Generator(np.random.Philox(key=key, counter=[0, round_index, 0, 0]))
        size, scales = self.scales(round_index)
        return [np.rint(scale * stream.standard_normal(size)).astype(np.int64) for scale in scales]


class Summed:
    """The server loop's link to secure aggregation: contributions of another link, added up and read."""

    def __init__(self, resolved: Resolved, link: Link, add: Adder) -> None:
        sums = resolved.sums
        assert sums is not None
        self._link, self._add, self._least = link, add, sums.pool.min_silos
        algorithm, plan = resolved.gate_algorithm, resolved.trace.plan
        self._read = Totals(algorithm, resolved.problem, plan, sums.mechanism, sums.pool, resolved.dtype)

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        """The round's message, {name: (1, d)}. Refused if fewer silos answer than a sum must have."""
        if len(members) < self._least:
            raise Refused(f"{len(members)} silos answer, and a sum has at least {self._least}")
        sums = self._add(round_index, members, self._link.answer(round_index, broadcast, members).messages)
        message = self._read.message(round_index, broadcast, sums, members)
        return Answered(members, {name: value.unsqueeze(0) for name, value in message.items()})


Adder = Callable[[int, Sequence[int], Rows], Sums]
"""(round, members, contributions) to the sums over the members, with the aggregators' noise."""


def adder(run: TrialSums, party: Callable[[], Party]) -> Adder:
    """The adder that a scenario asks for; `party` makes the second aggregator."""
    way = run.resolved.scenario.runtime.shuffler
    if way == "total":
        return partial(at_once, run)
    if way == "shares":
        return partial(_by_shares, run, party())
    return ByEnvelopes(run, party())


def at_once(run: TrialSums, round_index: int, members: Sequence[int], rows: Rows) -> Sums:
    """The sums without a protocol: what it gives, whatever way it takes."""
    sums = {name: value.sum(0) for name, value in rows.items()}
    if any(run.scales(round_index)):
        for party in (0, 1):
            for number, noise in enumerate(run.noise(round_index, party)):
                sums[str(number)] += torch.from_numpy(noise)
    return sums


def _by_shares(run: TrialSums, party: Party, round_index: int, members: Sequence[int], rows: Rows) -> Sums:
    """Two shares of every contribution, added by two parties: the same sums, to the last bit."""
    mine, theirs = split(messages_of(rows).astype(np.int64))
    own = [add(mine), party.add(theirs)]
    if any(run.scales(round_index)):
        own = [share + np.stack(run.noise(round_index, k)).view(np.uint64) for k, share in enumerate(own)]
    return totals_of(total(*own))


class ByEnvelopes:
    """Silos seal, the server relays and opens, the second party counts, permutes and adds.

    Where aggregators add the noise it is exact, from the operating system, and so not the seeded noise of
    the other ways.
    """

    def __init__(self, run: TrialSums, party: Party) -> None:
        assert run.resolved.sums is not None
        self._run, self._party, self._sums = run, party, run.resolved.sums
        self._key = EnvelopeKey.draw()
        self._silos = [Identity.draw() for _ in run.resolved.names]
        pool = self._sums.pool
        tree = {
            "federation": "a simulation",
            "silos": {f"{i:09d}": silo.public for i, silo in enumerate(self._silos)},
            "server": self._key.public,
            "shuffler": party.keys(),
            "min_silos": pool.min_silos,
            "honest_fraction": pool.honest_fraction,
            "noise_by": run.resolved.scenario.privacy.noise_by,
        }
        self._roster = parse_roster(tree)
        party.pin(tree)
        self._session = hashlib.sha256(f"{run.digest} {run.trial}".encode()).hexdigest()

    def __call__(self, round_index: int, members: Sequence[int], rows: Rows) -> Sums:
        """The sums over the members (`Adder`)."""
        form = Form(self._sums.mechanism.transport, *self._run.scales(round_index))
        context = ReportContext(self._session, round_index, self._roster.digest, form)
        whole = form.transport == "messages"
        numbers = messages_of(rows) if whole else messages_of(rows).astype(np.int64)
        reports = tuple(
            seal_report(own, context, self._roster, member, self._silos[member].sign)
            for member, own in zip(members, numbers, strict=True)
        )
        request = Request(context, reports)
        identity = bytes.fromhex(self._roster.shuffler.identity)
        release = Release.read(self._party.shuffle(request.body()), request, identity)
        if whole:
            return totals_of(messages(release, self._key).sum(0))
        return totals_of(totals(release, self._roster, self._key, aggregators_noise(form)))


def messages_of(rows: Rows) -> np.ndarray:
    """Contributions, (members, queries, d)."""
    return np.stack([rows[str(k)].numpy() for k in range(len(rows))], axis=1)


def totals_of(sums: np.ndarray) -> Sums:
    """Sums (queries, d) by the number of their query."""
    return {str(k): torch.from_numpy(row.astype(np.float64)) for k, row in enumerate(sums)}
