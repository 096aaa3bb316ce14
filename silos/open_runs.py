"""The gates of a silo's open runs, a few at a time: made of what its ledger holds, when asked for."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedsim.common.canonical import finite
from fedsim.common.errors import Refused
from fedsim.isolated.confine import Child
from fedsim.mechanisms.occasions import Occasions
from fedsim.protocol.digests import digest
from fedsim.protocol.messages import Offer
from silos.admission import spent
from silos.config import InsecureSimulation
from silos.entropy import Entropy
from silos.gate import Gate, hold
from silos.offers import Admissible, Own, Proposal, admissible, proposal_of
from silos.own_records import OwnRecords
from silos.policy import Policy
from silos.pooled import Pinned
from silos.run_ledger import RunLedger
from silos.sealed_ledger import SealedLedger
from silos.seeded_entropy import SeededEntropy
from silos.system_entropy import SystemEntropy

HELD = 4
"""Runs that are in memory at once; each gate has its own copy of the records, in its problem's layout."""

SEEDED = (
    "Noise comes from a seed (--insecure-simulation): whoever knows it knows the noise, nothing is private"
)


class Busy(Refused):
    """The same request may be answered later."""


@dataclass
class _Held:
    plan: Admissible
    gate: Gate | None = None


class OpenRuns:
    """Answers rounds of admitted runs, one at a time.

    One at a time, since what problems and networks do to torch while they are made is not made for threads.
    """

    def __init__(
        self,
        records: OwnRecords,
        own: Own,
        policy: Policy,
        simulation: InsecureSimulation | None,
        pinned: Pinned,
        start: Callable[[], Child] | None = None,
    ) -> None:
        """`start`: starts a confined process for plug-in code."""
        self._records, self._own, self._policy, self._simulation = records, own, policy, simulation
        self._pinned, self._start = pinned, start
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._work, self._trying = threading.Lock(), threading.Lock()

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader of any answer must know."""
        return () if self._simulation is None else (SEEDED,)

    def considered(self, offer: Offer) -> Admissible:
        """The priced plan; rounds of other runs are answered while it is tried out.

        Raises:
            Busy: another offer is; it does not wait for that, since it would take one more thread with it.
            Refused: see `silos.offers`.
        """
        if not self._trying.acquire(blocking=False):
            raise Busy("the silo is trying out another offer; ask again")
        try:
            with self._work:
                proposal = self._proposal(offer)
            return self._admissible(proposal)
        finally:
            self._trying.release()

    def terms(self, plan: Admissible) -> dict[str, object]:
        """What the silo says of a plan, plain values."""
        admitted = plan.admitted
        samplers = {ask.batch.sampler for r in plan.terms.rounds for ask in plan.plan.rounds[r]}
        return {
            "epsilon": plan.terms.epsilon,
            "delta": plan.terms.delta,
            "noise_multiplier": admitted.noise_multiplier,
            "epsilon_guaranteed": admitted.epsilon_guaranteed,
            **({} if plan.colluding is None else {"epsilon_colluding": finite(plan.colluding)}),
            "releases": admitted.releases,
            "accountant": plan.mechanism.accountant(sorted(samplers)),
            "notices": [*self.notices, *plan.mechanism.notices, *plan.notices],
        }

    def answer(self, run: RunLedger, round_index: int, broadcast: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One round's message, {name: (d,)}; of sums over silos the sealed report, {"report": (bytes,)}.

        Raises:
            Refused: see `silos.gate`.
        """
        with self._work:
            held = self._held.get(run.run) or _Held(self._again(run))
            self._hold(run.run, held)
            held.gate = held.gate or self._gate(run, held.plan)
            try:
                reply = held.gate.answer(round_index, broadcast)
            except Refused:
                raise
            except BaseException:  # what it holds may be ahead of what is stored
                held.gate = None
                raise
            if held.plan.proposal.part is not None:  # what leaves is what was stored: never what went into it
                return dict(run.find(round_index, digest(broadcast)) or {})
        return {name: value[0] for name, value in reply.items()}

    def admitted(self, run: str, plan: Admissible) -> None:
        """Keep a plan that the ledger has admitted, so that it is not tried out again."""
        with self._work:
            self._hold(run, _Held(plan))

    def close(self, run: RunLedger, close: Callable[[float], object]) -> None:
        """Call `close` with `spent`, while no round is answered."""
        with self._work:
            close(self._spent(run))
            self._held.pop(run.run, None)

    def spent(self, run: RunLedger) -> float:
        """Epsilon of the rounds that were paid for; of the whole plan, where it cannot be made any more."""
        with self._work:
            return self._spent(run)

    def _spent(self, run: RunLedger) -> float:
        if not run.debited:
            return 0.0
        held = self._held.get(run.run)
        try:
            plan = held.plan if held else self._again(run)
        except Refused:  # by another policy or version
            return float(run.terms["epsilon_guaranteed"])
        return spent(plan.plan, plan.admitted, run.debited, plan.mechanism)

    def _hold(self, run: str, held: _Held) -> None:
        """Keep the runs that were asked for last."""
        self._held[run] = held
        self._held.move_to_end(run)
        while len(self._held) > HELD:
            self._held.popitem(last=False)

    def _proposal(self, offer: Offer) -> Proposal:
        return proposal_of(offer, self._policy, self._own, self._pinned, self._start)

    def _admissible(self, proposal: Proposal) -> Admissible:
        return admissible(proposal, self._policy, self._own, self._simulation is not None)

    def _again(self, run: RunLedger) -> Admissible:
        """The plan of a run that was admitted, by an earlier process perhaps.

        Raises:
            Refused: it would not be admitted as it was.
        """
        offer = Offer.model_validate({**json.loads(run.offer), "head": ""})
        plan = self._admissible(self._proposal(offer))
        if plan.plan.digest != run.record.plan or self.terms(plan) != dict(run.terms):
            raise Refused("the run was admitted under another policy or version of the silo; close it")
        return plan

    def _gate(self, run: RunLedger, plan: Admissible) -> Gate:
        problem, dtype = plan.proposal.problem, plan.proposal.dtype
        return Gate(
            hold([(self._records.features, self._records.target)], problem, dtype),
            problem,
            plan.proposal.algorithm,
            plan.plan,
            [plan.terms],
            plan.mechanism,
            self._entropy(run),
            [self._ledger(run, plan)],
            self._policy.limits,
            dtype,
            plan.broadcasts,
        )

    def _ledger(self, run: RunLedger, plan: Admissible) -> RunLedger:
        part, identity = plan.proposal.part, self._pinned.identity
        if part is None or identity is None:
            return run
        dimension = plan.proposal.problem.dimension
        occasions = Occasions(plan.proposal.offer, plan.plan, part.mechanism, dimension)
        return SealedLedger(run, part, occasions, identity)

    def _entropy(self, run: RunLedger) -> Entropy:
        if self._simulation is None:
            return SystemEntropy(run.secret)
        key = self._simulation
        return SeededEntropy(key.seed, key.trial, [self._own.name], [key.run])
