"""Silos whose answers are added up: what each of three parties reads of one, through the silo's own gate.

A silo method hears zeros there. In their place come the numbers that a party reads, as the mean over the
silo's batch that they would be: a unit of a contribution is worth step / (w_i K_i). The clip that is noted
with them is half of what one record may move a contribution by (all of what a unit does that is there or
not), rounding included, so that everything that judges a silo's own answers judges these.

* The *server* reads totals. It knows all records but one, so the other silos' part is noise alone; of the
  smallest sum there may be, ceil(gamma M_min) silos add theirs. Where aggregators add the noise, that is the
  other aggregator's. Of whole messages it reads all, and not whose they are, where that is what is claimed
  (every silo is one record): the other silos hold the record of one world, which hides the other's least.
* The *shuffler*, the second aggregator, reads its own share of each contribution; of messages nothing.
* *Both* together read the contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.privacy.sum_mechanism import SumMechanism, honest_silos
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import Terms
from fedsim.protocol.pool import Share
from fedsim.protocol.rows import Rows
from fedsim.scenario.resolve import Resolved
from fedsim.secagg.agreement import Sums
from fedsim.secagg.reports import split
from fedsim.simulation.secure_aggregation import TrialSums
from fedsim.testing.attacks.canaries import silent
from fedsim.testing.attacks.cohorts import Heard, Tap, Wiretap, cohort
from silos.front.served import Served

Party = Literal["server", "shuffler", "both"]
PARTIES: tuple[Party, ...] = ("server", "shuffler", "both")
Read = Callable[[Tensor, int, int], Tensor]
"""Contributions (silos, d), of a round and of a query in it by number, to what a party reads: (runs, d), or
(runs, messages, d) where it does not know whose they are."""


def together(resolved: Resolved, sums: Sums, party: Party) -> int:
    """Silos whose noise is in what a party reads: of the smallest sum, those that keep it to themselves."""
    linked = sums.mechanism.transport == "messages" and not sums.mechanism.single_records
    if party != "server" or resolved.scenario.privacy.noise_by != "silos" or linked:
        return 1
    return honest_silos(sums.pool.min_silos, sums.pool.honest_fraction)


def _reader(resolved: Resolved, sums: Sums, party: Party, z: float, runs: Sequence[str]) -> Read:
    """What the party reads; `runs` are those in which the second aggregator adds noise of its own, of z."""
    by_aggregators = party == "server" and resolved.scenario.privacy.noise_by == "aggregators"
    other = [TrialSums(resolved, 0, f"audit {run}", z) for run in runs] if by_aggregators else []

    def read(rows: Tensor, round_index: int, number: int) -> Tensor:
        if party == "both":
            return rows
        if party == "shuffler":  # its word of each number, in two's complement
            return torch.from_numpy(split(rows.to(torch.int64).numpy())[1].view("int64")).double()
        if other:
            return rows + torch.from_numpy(np.stack([run.noise(round_index, 1)[number] for run in other]))
        messages = rows.reshape(-1, together(resolved, sums, party), rows.shape[-1])
        return messages if sums.mechanism.single_records else messages.sum(1)

    return read


def party_gate(
    resolved: Resolved,
    wiretap: Wiretap,
    terms: Sequence[Terms],
    data: Sequence[Rows],
    streams: Sequence[str],
    party: Party,
    noisy: bool,
    crowd: Rows | None = None,
) -> PartyGate:
    """A gate whose answers are what a party reads of each silo, each in a separate sum, with its noise or
    none. The other silos of a sum hold `crowd`; by default records that count as zero.
    """
    assert resolved.sums is not None
    mechanism = resolved.sums.mechanism
    count = together(resolved, resolved.sums, party)
    everyone = [
        (own, (crowd or silent(each)) if other else each, f"{stream}/{other}" if other else stream)
        for own, each, stream in zip(terms, data, streams, strict=True)
        for other in range(count)
    ]
    owners, held, names = zip(*everyone, strict=True)
    noise = [(own.noise_multiplier or 0.0) if noisy else 0.0 for own in owners]
    plan, broadcasts = resolved.trace.plan, resolved.trace.broadcasts
    gate = cohort(
        resolved, wiretap, plan, held, noise, names, terms=owners, mechanism=mechanism, broadcasts=broadcasts
    )
    read = _reader(resolved, resolved.sums, party, noise[0], streams)
    answers = resolved.trace.plan.extent(resolved.problem.dimension, resolved.problem.num_features)
    about = [(own.share, own.n) for own in terms if own.share is not None]
    return PartyGate(gate, wiretap.tap, mechanism, about, read, answers.spread)


@dataclass(frozen=True)
class PartyGate:
    """A gate whose answers go into secure aggregation, as one party reads them."""

    gate: Served
    tap: Tap
    mechanism: SumMechanism
    about: Sequence[tuple[Share, int]]  # share and size of the silo that each row of what is read is about
    read: Read
    spread: float  # of the plan's answers, which the mechanism's reach is of

    def answer(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        """The gate's reply; the tap hears what the party reads of it."""
        before = self.tap.take()
        reply = self.gate.answer(round_index, broadcast, members)
        values = iter([self.read(rows, round_index, k) for k, rows in enumerate(reply.values())])
        self.tap.heard = [*before, *(self._reading(heard, values) for heard in self.tap.heard)]
        return reply

    def _reading(self, heard: Heard, values: Iterator[Tensor]) -> Heard:
        read = [
            self._mean(query, next(values), answer)
            for query, answer in zip(heard.queries, heard.answers, strict=True)
        ]
        return Heard(tuple(query for query, _ in read), tuple(mean for _, mean in read))

    def _mean(self, query: Query, read: Tensor, heard: Tensor) -> tuple[Query, Tensor]:
        clip, batch = float(query.clip), query.batch
        reach = [self.mechanism.reach(share.weight(batch) * share.clip) for share, _ in self.about]
        sizes = torch.tensor([batch.size(n) for _, n in self.about], dtype=torch.float64)
        w = torch.tensor([share.weight(batch) for share, _ in self.about], dtype=torch.float64)
        means = read * (self.mechanism.step(clip) / (w * sizes)).reshape(-1, *[1] * (read.dim() - 1))
        half = clip * torch.tensor(reach, dtype=torch.float64) / (self.spread * w)
        alike = bool((half == half[0]).all())
        return replace(query, clip=float(half[0]) if alike else half[:, None]), means.to(heard.dtype)


Answering = Served | PartyGate
"""What a silo's answers come from: its own gate, or a party that reads them."""
