"""The open runs of a silo: their plans, made of what its ledger holds, and who drives their rounds."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from fedsim.common.errors import Busy, Refused
from fedsim.protocol.copies import digest
from fedsim.wire.messages import Mark, Offer, Profile
from silos.front.config import Policy
from silos.vault.considered import SEEDED, Admissible
from silos.vault.ledger import RunLedger
from silos.vault.vault import Vault, check_same

if TYPE_CHECKING:  # loaded where a plug-in is listed, or a roster pinned
    from fedsim.isolated.confine import Child
    from fedsim.problems.public_records import PublicRecords
    from silos.front.offers import Proposal
    from silos.front.pooled import Pinned

GATES = 4  # gates in memory at once; each has its own copy of the records, in its problem's layout
PLANS = 2**24
"""Numbers, about, that all plans in memory hold, beyond the last `GATES`; these are not tried out anew."""
_QUERY = 25  # numbers that a query takes in a plan
_CLOSING = 5.0  # seconds that a run which is being closed waits for its round, or for another's trial
_WAIT = 1.0  # seconds that a request waits for another one of its run; it keeps a place from others


@dataclass
class _Held:
    proposal: Proposal
    plan: Admissible
    answering: bool = False

    @cached_property
    def size(self) -> int:
        """Numbers that the plan holds, about (`PLANS`)."""
        plan = self.plan.plan
        return self.plan.problem.dimension + _QUERY * plan.num_queries(range(len(plan.rounds)))


class OpenRuns:
    """Drives rounds of admitted runs: of one run one at a time, of several side by side.

    What problems and networks do to torch while they are made is of the thread that makes them, or is used by
    no round: one offer at a time is tried out, and a deployed silo traces no code of others.
    """

    def __init__(
        self,
        own: Profile,
        policy: Policy,
        seeded: bool = False,
        pinned: Pinned | None = None,
        start: Callable[[], Child] | None = None,
        public: PublicRecords | None = None,
    ) -> None:
        """`start`: starts a confined process for plug-in code; `public`: its copy of public records."""
        self._own, self._policy, self._seeded = own, policy, seeded
        self._pinned, self._start, self._public = pinned, start, public
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._lock, self._trying = threading.Lock(), threading.Lock()

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines that a reader of any answer must know."""
        return (SEEDED,) if self._seeded else ()

    def considered(self, offer: Offer, wait: float = 0.0) -> tuple[Proposal, Admissible]:
        """The priced plan; rounds of other runs are answered while it is tried out. Busy if another one is
        for `wait` seconds; who waits takes one more thread with it; Refused as in `silos.front.offers`.
        """
        if not self._trying.acquire(timeout=wait):
            raise Busy("the silo is trying out another offer; ask again")
        try:
            from silos.front.offers import admissible, proposal_of  # loaded with the first offer

            own = self._own.of(offer.records)
            made = proposal_of(offer, self._policy, own, self._pinned, self._start, self._public)
            return made, admissible(made, self._policy, own, self._seeded)
        finally:
            self._trying.release()

    def answer(
        self,
        vault: Vault,
        run: RunLedger,
        round_index: int,
        broadcast: Mapping[str, Tensor],
        mark: Mark | None = None,
    ) -> dict[str, Tensor]:
        """One round's message, {name: (d,)}; with secure aggregation, for the shuffler's `mark`, the
        sealed report, {"report": (bytes,)}. Busy if the run is at a round, or its plan is not in memory and
        another one is being tried out; Refused as in `silos.vault.gate`.
        """
        from silos.front.served import driven

        found = self._found(run)
        with _alone(run, _WAIT), self._kept(vault, run.run, found) as held:
            opened = vault.round(run, held.plan, round_index, broadcast, mark)
            try:
                reply = driven(opened, held.proposal.algorithm)
            except Refused:
                raise
            except BaseException:  # what it holds may be ahead of what is stored
                vault.forget(run.run)
                raise
            if held.plan.sealed is not None:  # what leaves is what was stored: never what went into it
                return dict(run.find(round_index, digest(broadcast)) or {})
        return {name: value[0] for name, value in reply.items()}

    @contextmanager
    def _kept(self, vault: Vault, run: str, found: _Held) -> Iterator[_Held]:
        """The run, which makes no room for others within the block."""
        with self._lock:
            held = self._held.get(run, found)
            held.answering = True
            self._hold(vault, run, held)
        try:
            yield held
        finally:
            held.answering = False

    def admitted(self, vault: Vault, run: str, proposal: Proposal, plan: Admissible) -> None:
        """Keep a plan that the ledger has admitted, so that it is not tried out again."""
        with self._lock:
            self._hold(vault, run, _Held(proposal, plan))

    def close(self, vault: Vault, run: RunLedger) -> None:
        """Close the run, while no round of it is answered."""
        plan = self.plan(run)
        with _alone(run, _CLOSING):
            vault.close(run, plan)
            with self._lock:
                self._held.pop(run.run, None)

    def plan(self, run: RunLedger) -> Admissible | None:
        """What the run was admitted with; None if it cost nothing, or cannot be made any more."""
        if not run.debited:
            return None
        try:
            return self._found(run, _CLOSING).plan
        except Busy:
            raise
        except Refused:  # by another policy or version
            return None

    def _found(self, run: RunLedger, wait: float = 0.0) -> _Held:
        """The run's plan, made anew if need be. Busy as in `considered`; Refused if it would be admitted
        otherwise now.
        """
        with self._lock:
            held = self._held.get(run.run)
        if held is None:
            held = _Held(*self.considered(Offer.model_validate({**json.loads(run.offer), "head": ""}), wait))
            check_same(run, held.plan)
        return held

    def _hold(self, vault: Vault, run: str, held: _Held) -> None:
        """Keep the runs that were asked for last, and those that are at a round."""
        self._held[run] = held
        self._held.move_to_end(run)
        for name, old in [each for each in list(self._held.items())[:-GATES] if not each[1].answering]:
            vault.forget(name)
            if old.proposal.isolated is not None:
                old.proposal.isolated.close()  # its child starts again when it is asked
            if sum(each.size for each in self._held.values()) > PLANS:
                del self._held[name]


@contextmanager
def _alone(run: RunLedger, wait: float) -> Iterator[None]:
    """No round of the run is answered within the block; Busy if one is for `wait` seconds."""
    if not run.answering.acquire(timeout=wait):
        raise Busy("a round of this run is being answered; ask again")
    try:
        yield
    finally:
        run.answering.release()
