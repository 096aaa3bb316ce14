"""A silo's part in secure aggregation: the roster that its operator has pinned decides, not the server.

A server that could choose who else is in a sum would fill it with silos of its own and read what is left. So
an offer names a roster by its digest, and everything that the silo's guarantee rests on is taken from the
roster that its operator has pinned: who is in it, how many a sum has at least, how many of them add their
noise, or who does instead, and whom reports are sealed to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch

from fedsim.common.errors import InputError, Lost, Refused
from fedsim.common.identity import Identity
from fedsim.privacy.registry import MECHANISMS, check_serves, sum_mechanism
from fedsim.privacy.rounding import shown_up
from fedsim.privacy.sum_mechanism import SumMechanism
from fedsim.problems.kinds import Problem
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.plan import Admitted, Plan
from fedsim.protocol.pool import Pool, Share
from fedsim.protocol.statistics import Extent
from fedsim.secagg.agreement import ReportContexts
from fedsim.secagg.reports import seal_report
from fedsim.secagg.roster import Roster, load_roster
from fedsim.secagg.shuffling import check_follows, check_marked
from fedsim.wire.messages import Mark, Offer
from silos.vault.ledger import Reply, RunLedger


@dataclass(frozen=True)
class SumPart:
    """A silo's part in the sums of an offered run, by its pinned roster."""

    roster: Roster
    share: Share
    mechanism: SumMechanism
    identity: Identity  # signs reports
    most: float | None  # epsilon at most if server and shuffler collude

    def priced(self, plan: Plan, problem: Problem) -> SumPart:
        """The part with its mechanism for the answers of this plan."""
        answers = plan.extent(problem.dimension, problem.num_features)
        return replace(self, mechanism=self.mechanism.priced_for(answers))

    def colluding_cost(self, plan: Plan, admitted: Admitted) -> float:
        """Epsilon of an admitted plan if server and shuffler collude; Refused above `most`."""
        terms, z = admitted.terms, admitted.noise_multiplier
        census = plan.census(terms.rounds)
        (epsilon,) = self.mechanism.colluding_epsilons(census, [(terms.n, z, terms.delta)])
        if self.most is not None and epsilon > self.most:
            cost = f"if server and shuffler collude, the plan costs epsilon {shown_up(epsilon, 6)}"
            raise Refused(f"{cost}; the silo's policy allows {self.most:.6g}")
        return epsilon

    def sealed(self, offer: Offer, plan: Plan, problem: Problem) -> Callable[[RunLedger], RunLedger]:
        """What makes a run's ledger one that keeps sealed reports."""
        contexts = ReportContexts(offer, plan, self.mechanism, problem.dimension, problem.num_features)
        return lambda run: SealedLedger(run, self, contexts)


@dataclass(frozen=True)
class Pinned:
    """The rosters that a silo's operator has agreed to, by digest, and the key that signs its reports."""

    rosters: Mapping[str, Roster]
    identity: Identity
    most: float | None = None  # see `SumPart`

    @classmethod
    def load(
        cls, files: tuple[Path, ...], own: str, identity: Identity, field: str, most: float | None
    ) -> Self:
        """Read rosters; InputError if a file cannot be read, or lacks this silo at its own name."""
        found = {}
        for number, file in enumerate(files):
            roster = load_roster(file)
            if roster.silos.get(own) != identity.public:
                hint = f"a roster in which {own} has this silo's own identity, {identity.public}"
                raise InputError(f"{field}.{number}", str(file), hint)
            found[roster.digest] = roster
        return cls(found, identity, most)

    def part(self, offer: Offer, own: str, dimension: int, algorithm: Algorithm) -> SumPart:
        """The silo's part in an offer of secure aggregation. Refused if the offer is of another roster than
        those that are pinned, or of other silos than it has; InputError if the mechanism cannot serve the
        algorithm.
        """
        pooled = offer.pooled
        assert pooled is not None
        roster = self.rosters.get(pooled.roster)
        if roster is None:
            raise Refused(f"offer: roster {pooled.roster} is none that the silo's operator has pinned")
        if pooled.mechanism not in MECHANISMS or not MECHANISMS[pooled.mechanism].sums_only:
            raise Refused(f"offer: {pooled.mechanism!r} is no mechanism of secure aggregation")
        if tuple(offer.shape.sizes) != roster.names:
            raise Refused("offer: its silos are not those of the roster, in the order of their names")
        if offer.noise_multiplier is None:
            raise Refused("offer: the noise multiplier of a sum is common to its silos, and must be given")
        try:
            sizes = tuple(offer.shape.sizes.values())
            pool = Pool(sizes, offer.weights, roster.min_silos, roster.honest_fraction)
            extent = Extent(dimension, dimension)
            mechanism = sum_mechanism(pooled.mechanism, extent, pool, roster.noise_by, pooled.steps)
        except InputError as error:
            raise Refused(f"offer: {error}") from None
        check_serves(mechanism, str(offer.algorithm["name"]), algorithm)
        share = Share(pool, roster.names.index(own), pooled.clip)
        return SumPart(roster, share, mechanism, self.identity, self.most)


class SealedLedger(RunLedger):
    """A run's ledger that keeps a silo's contributions as sealed reports, and nowhere in the clear.

    A report is made once, with new shares, and stored before it leaves; a repeated request gets the same
    bytes. Two reports of one contribution would be two splits of it, and parts of both would reveal it.
    A report is for one start of the shuffler's process (`shuffler.store`). None is made for another,
    whatever a server says, so that a shuffler whose notes were set back cannot release the round again.
    """

    def __init__(self, run: RunLedger, part: SumPart, contexts: ReportContexts) -> None:
        super().__init__(run._file, run.record)
        self._part, self._contexts = part, contexts
        self._mark: Mark | None = None

    def begin(self, mark: object) -> None:
        """Take the mark that a round is asked for with; before the gate is asked. Refused if there is none,
        or the roster's shuffler has not signed it.
        """
        if not isinstance(mark, Mark):
            raise Refused("a round of secure aggregation is asked for with the shuffler's mark")
        check_marked(mark, self._part.roster.shuffler.identity)
        self._mark = mark

    def _facts(self) -> dict[str, object]:
        mark, shuffler = self._mark, self._part.roster.shuffler.identity
        assert mark is not None
        before = self.record.mark, self._file.book.marks.get(shuffler)
        of_run, of_shuffler = (None if each is None else Mark.model_validate(each) for each in before)
        check_follows(mark, of_run, of_shuffler)
        return {"shuffler": shuffler, "mark": mark.model_dump()}

    def find(self, round_index: int, digest: bytes) -> Reply | None:
        """See `Ledger`. Lost besides where the report is for another start than that of the mark."""
        found, paid, asked = super().find(round_index, digest), self.record.mark, self._mark
        if found is not None and asked is not None and paid is not None and paid["start"] != asked.start:
            why = f"round {round_index} was answered for a process of the shuffler that has ended"
            raise Lost(f"{why}, and that may have released it")
        return found

    def store(self, round_index: int, reply: Reply, memory: Reply) -> None:
        """See `Ledger`; `reply` has the contributions, by the number of the query, (d,) float64."""
        numbers = np.stack([reply[str(number)].numpy() for number in range(len(reply))])
        assert self._mark is not None
        context = self._contexts.of(round_index, self._mark.start)
        if context.form.transport == "shares":
            numbers = numbers.astype(np.int64)  # they are integers below 2^53
        position = self._part.share.position
        sealed = seal_report(numbers, context, self._part.roster, position, self._part.identity.sign)
        super().store(round_index, {"report": torch.frombuffer(bytearray(sealed), dtype=torch.uint8)}, memory)
