"""The gates of a silo's open runs, a few at a time: made of what its ledger holds, when asked for."""

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
from fedsim.common.serialise import finite
from fedsim.protocol.copies import digest
from fedsim.protocol.plan import Part
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import Unit
from fedsim.wire.messages import Mark, Offer, Profile
from silos.front.config import InsecureSimulation, Policy
from silos.front.offers import Admissible, admissible, proposal_of
from silos.front.served import Served
from silos.vault.admission import spent
from silos.vault.entropy import Entropy, SeededEntropy, SystemEntropy
from silos.vault.gate import Gate, lay_out
from silos.vault.ledger import RunLedger
from silos.vault.owners import Owners

if TYPE_CHECKING:  # loaded where a plug-in is listed, or a roster pinned
    from fedsim.isolated.confine import Child
    from fedsim.problems.public_records import PublicRecords
    from silos.front.pooled import Pinned

GATES = 4  # gates in memory at once; each has its own copy of the records, in its problem's layout
PLANS = 2**24
"""Numbers, about, that all plans in memory hold, beyond the last `GATES`; these are not tried out anew."""
_QUERY = 25  # numbers that a query takes in a plan
_CLOSING = 5.0  # seconds that a run which is being closed waits for its round, or for another's trial
_WAIT = 1.0  # seconds that a request waits for another one of its run; it keeps a place from others

SEEDED = "Noise comes from a seed (--insecure-simulation), which can draw it again: nothing is private"


@dataclass
class _Held:
    plan: Admissible
    gate: Served | None = None
    ledger: RunLedger | None = None
    answering: bool = False

    @cached_property
    def size(self) -> int:
        """Numbers that the plan holds, about (`PLANS`)."""
        plan = self.plan.plan
        return self.plan.proposal.problem.dimension + _QUERY * plan.num_queries(range(len(plan.rounds)))


class OpenRuns:
    """Answers rounds of admitted runs: of one run one at a time, of several side by side.

    What problems and networks do to torch while they are made is of the thread that makes them, or is used by
    no round: one offer at a time is tried out, and a deployed silo traces no code of others.
    """

    def __init__(
        self,
        records: Mapping[Part, Rows],
        own: Profile,
        policy: Policy,
        simulation: InsecureSimulation | None,
        pinned: Pinned | None = None,
        start: Callable[[], Child] | None = None,
        public: PublicRecords | None = None,
    ) -> None:
        """`start`: starts a confined process for plug-in code; `public`: its copy of public records."""
        self._records, self._own, self._policy, self._simulation = records, own, policy, simulation
        self._pinned, self._start, self._public = pinned, start, public
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._lock, self._trying = threading.Lock(), threading.Lock()

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines that a reader of any answer must know."""
        return () if self._simulation is None else (SEEDED,)

    def considered(self, offer: Offer, wait: float = 0.0) -> Admissible:
        """The priced plan; rounds of other runs are answered while it is tried out. Busy if another one is
        for `wait` seconds; who waits takes one more thread with it; Refused as in `silos.front.offers`.
        """
        if not self._trying.acquire(timeout=wait):
            raise Busy("the silo is trying out another offer; ask again")
        try:
            own = self._own.of(offer.records)
            pinned, start, public = self._pinned, self._start, self._public
            made = proposal_of(offer, self._policy, own, pinned, start, public)
            return admissible(made, self._policy, own, self._simulation is not None)
        finally:
            self._trying.release()

    def terms(self, plan: Admissible) -> dict[str, object]:
        """The silo's terms for a plan, plain values."""
        admitted = plan.admitted
        kinds = {release.kind for release, _ in plan.plan.census(plan.terms.rounds)}
        return {
            "epsilon": finite(plan.terms.epsilon),
            "delta": plan.terms.delta,
            "noise_multiplier": admitted.noise_multiplier,
            "epsilon_guaranteed": finite(admitted.epsilon_guaranteed),
            **({} if plan.colluding is None else {"epsilon_colluding": finite(plan.colluding)}),
            "releases": admitted.releases,
            "accountant": plan.mechanism.accountant(sorted(kinds)),
            "notices": [*self.notices, *plan.mechanism.notices, *plan.notices],
        }

    def answer(
        self, run: RunLedger, round_index: int, broadcast: Mapping[str, Tensor], mark: Mark | None = None
    ) -> dict[str, Tensor]:
        """One round's message, {name: (d,)}; with secure aggregation, for the shuffler's `mark`, the
        sealed report, {"report": (bytes,)}. Busy if the run is at a round, or its plan is not in memory and
        another one is being tried out; Refused as in `silos.vault.gate`.
        """
        found = self._found(run)
        with _alone(run, _WAIT), self._kept(run.run, found) as held:
            if held.gate is None:
                held.ledger = self._ledger(run, held.plan)
                held.gate = self._gate(run, held.plan, held.ledger)
            assert held.ledger is not None
            held.ledger.begin(mark)
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

    @contextmanager
    def _kept(self, run: str, found: _Held) -> Iterator[_Held]:
        """The run, which makes no room for others within the block."""
        with self._lock:
            held = self._held.get(run, found)
            held.answering = True
            self._hold(run, held)
        try:
            yield held
        finally:
            held.answering = False

    def admitted(self, run: str, plan: Admissible) -> None:
        """Keep a plan that the ledger has admitted, so that it is not tried out again."""
        with self._lock:
            self._hold(run, _Held(plan))

    def close(self, run: RunLedger, close: Callable[[float | None], object]) -> None:
        """Call `close` with `spent`, while no round of the run is answered."""
        plan = self._plan(run)
        with _alone(run, _CLOSING):
            close(_spent(run, plan))
            with self._lock:
                self._held.pop(run.run, None)

    def spent(self, run: RunLedger) -> float | None:
        """Epsilon of the rounds that were paid for; of the whole plan, where it cannot be made any more."""
        return _spent(run, self._plan(run))

    def _plan(self, run: RunLedger) -> Admissible | None:
        if not run.debited:  # it cost nothing, whatever its plan
            return None
        try:
            return self._found(run, _CLOSING).plan
        except Busy:
            raise
        except Refused:  # by another policy or version
            return None

    def _found(self, run: RunLedger, wait: float = 0.0) -> _Held:
        with self._lock:
            held = self._held.get(run.run)
        return held or _Held(self._again(run, wait))

    def _hold(self, run: str, held: _Held) -> None:
        """Keep the runs that were asked for last, and those that are at a round."""
        self._held[run] = held
        self._held.move_to_end(run)
        for old in [each for each in list(self._held.values())[:-GATES] if not each.answering]:
            old.gate = None
            if old.plan.proposal.isolated is not None:
                old.plan.proposal.isolated.close()  # its child starts again when it is asked
        while len(self._held) > GATES and sum(each.size for each in self._held.values()) > PLANS:
            self._held.popitem(last=False)

    def _again(self, run: RunLedger, wait: float) -> Admissible:
        """The plan of a run that was admitted, by an earlier process perhaps. Busy as in `considered`;
        Refused if it would not be admitted as it was.
        """
        plan = self.considered(Offer.model_validate({**json.loads(run.offer), "head": ""}), wait)
        found = plan.plan.digest, plan.proposal.offer.records, self.terms(plan)
        if found != (run.record.plan, run.record.records, dict(run.record.terms)):
            raise Refused("the run was admitted under another policy or version of the silo; close it")
        return plan

    def _gate(self, run: RunLedger, plan: Admissible, ledger: RunLedger) -> Served:
        problem, dtype = plan.proposal.problem, plan.proposal.dtype
        records = self._records[run.record.records]
        owners = self._owners(records, plan.plan.unit)
        gate = Gate(
            lay_out([records], problem, dtype, owners),
            problem,
            plan.plan,
            [plan.terms],
            plan.mechanism,
            self._entropy(run),
            [ledger],
            self._policy.limits,
            dtype,
            plan.broadcasts,
        )
        return Served(gate, plan.proposal.algorithm)

    def _ledger(self, run: RunLedger, plan: Admissible) -> RunLedger:
        made = plan.proposal
        run.resumes = made.isolated is None
        if made.part is None or self._pinned is None:
            return run
        return self._pinned.ledger(run, made.part, made.offer, plan.plan, made.problem)

    def _owners(self, records: Rows, unit: Unit) -> Owners:
        key = self._simulation
        seeded = None if key is None else (key.seed, key.trial, [self._own.silo])
        return Owners.of(unit, [records.owners], seeded)

    def _entropy(self, run: RunLedger) -> Entropy:
        if self._simulation is None:
            return SystemEntropy(run.secret)
        key = self._simulation
        return SeededEntropy(key.seed, key.trial, [self._own.silo], [key.run])


@contextmanager
def _alone(run: RunLedger, wait: float) -> Iterator[None]:
    """No round of the run is answered within the block; Busy if one is for `wait` seconds."""
    if not run.answering.acquire(timeout=wait):
        raise Busy("a round of this run is being answered; ask again")
    try:
        yield
    finally:
        run.answering.release()


def _spent(run: RunLedger, plan: Admissible | None) -> float | None:
    """None where nothing is guaranteed, in a public silo."""
    guaranteed: float | None = run.record.terms["epsilon_guaranteed"]
    if not run.debited:
        return 0.0
    if plan is None or guaranteed is None:
        return guaranteed
    return spent(plan.plan, plan.admitted, run.debited, plan.mechanism)
