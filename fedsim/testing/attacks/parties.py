"""Silos whose answers are added up: what each of three parties reads of one, through the silo's own gate.

A silo method hears zeros there. In their place come the numbers that a party reads, as the mean over the
silo's batch that they would be: a unit of a contribution is worth step / (w_i K_i). The clip that is noted
with them is half of what one record may move a contribution by (all of what one person does who is there or
not), rounding included, so that everything that judges a silo's own answers judges these.

* The *server* reads totals. It knows all records but one, so the other silos' part is noise alone; of the
  smallest sum there may be, ceil(gamma M_min) silos add theirs. Where aggregators add the noise, that is the
  other aggregator's. Of whole messages it reads all, and not whose they are, where that is what is claimed
  (every silo is one record): the other silos hold the record of one world, which hides the other's least.
* The *shuffler*, the second aggregator, reads its own share of each contribution; of messages nothing.
* *Both* together read the contribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.privacy.shuffled_gaussian import ShuffledGaussian
from fedsim.privacy.sum_mechanism import SumMechanism
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import Terms
from fedsim.scenario.resolve import Resolved
from fedsim.secagg.agreement import Sums
from fedsim.secagg.reports import split
from fedsim.simulation.host import Answering
from fedsim.simulation.secure_aggregation import TrialSums
from fedsim.testing.attacks.canaries import Data, silent
from fedsim.testing.attacks.cohorts import Heard, Tap, Wiretap, cohort

Party = Literal["server", "shuffler", "both"]
PARTIES: tuple[Party, ...] = ("server", "shuffler", "both")
Read = Callable[[Tensor, int, int], Tensor]
"""Contributions (silos, d), of a round and of a query in it by number, to what a party reads: (runs, d), or
(runs, messages, d) where it does not know whose they are."""


def anonymous(sums: Sums) -> bool:
    """Whether messages are claimed to hide among others: each is of a silo of one record."""
    return isinstance(sums.mechanism, ShuffledGaussian) and sums.mechanism.single_records


def together(resolved: Resolved, sums: Sums, party: Party) -> int:
    """Silos whose noise is in what a party reads: of the smallest sum, those that keep it to themselves."""
    linked = sums.mechanism.transport == "messages" and not anonymous(sums)
    if party != "server" or resolved.scenario.privacy.noise_by != "silos" or linked:
        return 1
    return max(1, math.ceil(sums.pool.honest_fraction * sums.pool.min_silos))


def own_part(rows: Tensor, round_index: int, number: int) -> Tensor:
    """The contributions as they are."""
    return rows


def second_share(rows: Tensor, round_index: int, number: int) -> Tensor:
    """The second aggregator's word of each number, in two's complement."""
    return torch.from_numpy(split(rows.to(torch.int64).numpy())[1].view("int64")).double()


def totals(of: int) -> Read:
    """Sums over so many silos in turn."""
    return lambda rows, round_index, number: rows.reshape(-1, of, rows.shape[-1]).sum(1)


def crowds(of: int) -> Read:
    """Messages of so many silos in turn."""
    return lambda rows, round_index, number: rows.reshape(-1, of, rows.shape[-1])


def with_other_aggregator(resolved: Resolved, z: float, runs: Sequence[str]) -> Read:
    """Contributions, each with the noise that the second aggregator adds in a run of its own."""
    drawn = [TrialSums(resolved, 0, f"audit {run}", z) for run in runs]

    def read(rows: Tensor, round_index: int, number: int) -> Tensor:
        noise = [run.noise(round_index, 1)[number] for run in drawn]
        return rows + torch.from_numpy(np.stack(noise))

    return read


def party_gate(
    resolved: Resolved,
    wiretap: Wiretap,
    terms: Sequence[Terms],
    data: Sequence[Data],
    streams: Sequence[str],
    party: Party,
    noisy: bool,
    crowd: Data | None = None,
) -> PartyGate:
    """A gate whose answers are what a party reads of each silo, each in a separate sum, with its noise or
    none. The other silos of a sum hold `crowd`; by default records that count as zero.
    """
    assert resolved.sums is not None
    mechanism = resolved.sums.mechanism
    count = together(resolved, resolved.sums, party)
    members = [(own, each, stream) for own, each, stream in zip(terms, data, streams, strict=True)]
    everyone = [
        (own, (crowd or silent(each)) if other else each, f"{stream}/{other}" if other else stream)
        for own, each, stream in members
        for other in range(count)
    ]
    noise = [(own.noise_multiplier or 0.0) if noisy else 0.0 for own, _, _ in everyone]
    gate = cohort(
        resolved,
        wiretap,
        resolved.trace.plan,
        [each for _, each, _ in everyone],
        noise,
        [stream for _, _, stream in everyone],
        sizes=[own.n for own, _, _ in everyone],
        rounds=[own.rounds for own, _, _ in everyone],
        mechanism=mechanism,
        shares=[own.share for own, _, _ in everyone if own.share is not None],
        broadcasts=resolved.trace.broadcasts,
    )
    read: Read = {"server": totals(count), "shuffler": second_share, "both": own_part}[party]
    if party == "server" and anonymous(resolved.sums):
        read = crowds(count)
    if party == "server" and resolved.scenario.privacy.noise_by == "aggregators":
        read = with_other_aggregator(resolved, noise[0], streams)
    answers = resolved.trace.plan.extent(resolved.problem.dimension, resolved.problem.num_features)
    return PartyGate(gate, wiretap.tap, mechanism, terms, read, answers.spread)


class PartyGate:
    """A gate whose answers go into secure aggregation, as one party reads them."""

    def __init__(
        self,
        gate: Answering,
        tap: Tap,
        mechanism: SumMechanism,
        terms: Sequence[Terms],
        read: Read,
        spread: float,
    ) -> None:
        """`terms` are those of the silo that each row of what is read is about; `spread` is the plan's."""
        self._gate, self._tap, self._mechanism, self._read = gate, tap, mechanism, read
        self._spread = spread  # which the mechanism's reach is of
        self._about = [(own.share, own.n) for own in terms if own.share is not None]

    def answer(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        """The gate's reply; the tap hears what the party reads of it."""
        before = self._tap.take()
        reply = self._gate.answer(round_index, broadcast, members)
        values = iter([self._read(rows, round_index, k) for k, rows in enumerate(reply.values())])
        self._tap.heard = [*before, *(self._reading(heard, values) for heard in self._tap.heard)]
        return reply

    def _reading(self, heard: Heard, values: Iterator[Tensor]) -> Heard:
        read = [
            self._mean(query, next(values), answer)
            for query, answer in zip(heard.queries, heard.answers, strict=True)
        ]
        return Heard(tuple(query for query, _ in read), tuple(mean for _, mean in read))

    def _mean(self, query: Query, read: Tensor, heard: Tensor) -> tuple[Query, Tensor]:
        clip, batch = float(query.clip), query.batch
        weights = [share.weight(batch) for share, _ in self._about]
        reach = [
            self._mechanism.reach(w * share.clip) for w, (share, _) in zip(weights, self._about, strict=True)
        ]
        sizes = torch.tensor([batch.size(n) for _, n in self._about], dtype=torch.float64)
        w = torch.tensor(weights, dtype=torch.float64)
        worth = self._mechanism.step(clip) / (w * sizes)
        means = read * worth.reshape(-1, *[1] * (read.dim() - 1))
        half = clip * torch.tensor(reach, dtype=torch.float64) / (self._spread * w)
        alike = bool((half == half[0]).all())
        return replace(query, clip=float(half[0]) if alike else half[:, None]), means.to(heard.dtype)
