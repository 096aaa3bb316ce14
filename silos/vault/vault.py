"""The trusted part of a deployed silo: its records, ledger, noise and key, behind `admit` and `round`.

**What can leak, by itself.** Of a silo's records leaves what `OpenRound.ask` returns, and nothing else: noisy
answers of a round that the ledger has debited, of a run whose whole price the account has reserved. The
argument is that of `silos.vault.gate`, for every plan; that of the account is in `silos.vault.account`. What
calls these methods decides what is asked, within the operator's rules, and when. It may hold what it was
given: it can spend the silo's life, lie to the server about answers that it has, and time them, and it learns
no more of the records than the transcript that was priced.

`admit` takes a plan and plain values, as `considered` made them, and checks what it knows by itself: unit,
name, price, and the operator's rules. `round` opens a round of an admitted run. Of that round `ask` gives
the noisy answers, of lengths that the plan has, and `keep` stores what was made of them before it leaves.

It is called in the process of its caller, so that nothing but this interface keeps the two apart: it says
what an auditor reads. docs/decisions.md says when a process of its own would be worth it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedsim.common.errors import Lost, Refused
from fedsim.common.identity import Identity
from fedsim.protocol.plan import Part
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import Unit
from silos.vault.admission import admit, spent
from silos.vault.approvals import used
from silos.vault.considered import SEEDED, Admissible, Rules, check_noise
from silos.vault.entropy import Entropy, SeededEntropy, SystemEntropy, new_secret
from silos.vault.gate import Gate, OpenRound, lay_out
from silos.vault.ledger import RunLedger
from silos.vault.ledger_file import LedgerFile, signed_receipt
from silos.vault.owners import Owners


class Vault:
    """See above; for any number of threads, each run asked by one at a time."""

    def __init__(
        self,
        records: Mapping[Part, Rows],
        rules: Rules,
        ledger: LedgerFile,
        identity: Identity,
        approvals: Path | None = None,
        seeded: tuple[int, int, str] | None = None,
    ) -> None:
        """`approvals`: the folder of what the operator approves, where runs need that; `seeded`: seed, trial
        and run of a test's noise, which keeps nothing private.
        """
        self._records, self._rules, self.ledger = records, rules, ledger
        self._identity, self._approvals, self._seeded = identity, approvals, seeded
        self._gates: dict[str, tuple[Gate, RunLedger]] = {}

    def admit(self, plan: Admissible, session: str, offer: str, study: Mapping[str, str]) -> RunLedger | None:
        """Reserve a plan's whole price, on the disk, before anything of it is released; None where the
        operator has not approved it. Once for each session; the offer's text is kept, and its study, name and
        purpose, goes into the receipt. Refused if `considered` made the plan for another silo or other rules
        than this one's, and as of `LedgerFile.open_run`.
        """
        self._check_own(plan)
        digest = hashlib.sha256(offer.encode()).hexdigest()
        with self.ledger.lock:
            self.ledger.account.check(plan.price.whole, plan.records)
        approvals, now = self._approvals, self.ledger.now()
        if approvals is not None and not used(approvals, digest, plan.digest, now):
            return None
        return self.ledger.open_run(
            session,
            hashlib.sha256(f"{digest} {secrets.token_hex(16)}".encode()).hexdigest(),
            offer_digest=digest,
            offer=offer,
            secret=new_secret(),
            plan=plan.plan.digest,
            admission=plan.digest,
            terms=plan.told,
            study=dict(study),
            price=plan.price,
            days=self._rules.run_days,
            max_runs=self._rules.max_runs,
            records=plan.records,
        )

    def _check_own(self, plan: Admissible) -> None:
        """What the vault knows by itself of a plan that it is given; the rest follows from its records."""
        own, terms, rules = self.ledger.enrolment, plan.terms, self._rules
        own.unit.check_plan(plan.plan.unit)
        check_noise(plan.plan, plan.admitted, rules.min_noise_multiplier)
        spent = terms.epsilon <= rules.run_budget[0] and terms.delta <= rules.run_budget[1]
        within = terms.public or (spent and plan.mechanism.private)
        sealed = plan.mechanism.sums_only == (plan.sealed is not None)
        seeded = (SEEDED in plan.notices) == (self._seeded is not None)
        priced = admit(plan.plan, [terms], plan.mechanism, rules.limits) == [plan.admitted]
        mine = (terms.name, terms.public) == (own.silo, own.public)
        if not (mine and within and sealed and seeded and priced):
            raise Refused("the plan was priced for another silo, or by other rules than this one's")

    def open(self, run: str) -> RunLedger:
        """A run that rounds may be asked of; Refused if it is none, is closed, or the silo's life is over."""
        self.ledger.expire()
        found = self.ledger.run(run)
        if not found.open:
            raise Lost("the run is closed")
        self.ledger.check_alive()
        return found

    def round(
        self,
        run: RunLedger,
        plan: Admissible,
        round_index: int,
        broadcast: Mapping[str, Tensor],
        mark: object = None,
    ) -> OpenRound:
        """Open one round of an admitted run, by the plan that it was admitted with; with secure aggregation
        for the shuffler's `mark`. Refused if the plan or its terms are others than the ledger's, and as of
        `Gate.asked`.
        """
        run = self.open(run.run)
        if (found := self._gates.get(run.run)) is None:
            found = self._gates[run.run] = self._opened(run, plan)
        gate, ledger = found
        ledger.begin(mark)
        return gate.asked(round_index, broadcast)

    def _opened(self, run: RunLedger, plan: Admissible) -> tuple[Gate, RunLedger]:
        check_same(run, plan)
        run.resumes = not plan.foreign
        ledger = run if plan.sealed is None else plan.sealed(run)
        records, name = self._records[plan.records], plan.terms.name
        seed = self._seeded
        owners = self._owners(records, plan.plan.unit, name)
        entropy: Entropy = SystemEntropy(run.secret)
        if seed is not None:
            entropy = SeededEntropy(*seed[:2], [name], [seed[2]])
        gate = Gate(
            lay_out([records], plan.problem, plan.dtype, owners),
            plan.problem,
            plan.plan,
            [plan.terms],
            plan.mechanism,
            entropy,
            [ledger],
            self._rules.limits,
            plan.dtype,
            plan.broadcasts,
        )
        return gate, ledger

    def _owners(self, records: Rows, unit: Unit, name: str) -> Owners:
        seeded = None if self._seeded is None else (*self._seeded[:2], [name])
        return Owners.of(unit, [records.owners], seeded)

    def forget(self, run: str) -> None:
        """Let a run's gate go, with its copy of the records; it is made anew when a round is asked for."""
        self._gates.pop(run, None)

    def close(self, run: RunLedger, plan: Admissible | None) -> None:
        """No round of it is paid for any more. The plan, where it can be made, says what was spent."""
        if run.open:
            self.ledger.close_run(run.run, {"epsilon_spent": spent_of(run, plan)})
        self.forget(run.run)

    def receipt(self, run: RunLedger) -> str:
        """A closed run's receipt, signed."""
        return signed_receipt(self.ledger.enrolment, run.record, self._identity)


def check_same(run: RunLedger, plan: Admissible) -> None:
    """Refuse a plan that a run was not admitted with."""
    record, known = run.record, (plan.plan.digest, plan.records, plan.told)
    other = record.admission not in ("", plan.digest)  # runs of before have none
    if other or known != (record.plan, record.records, dict(record.terms)):
        raise Refused("the run was admitted under another policy or version of the silo; close it")


def spent_of(run: RunLedger, plan: Admissible | None) -> float | None:
    """Epsilon of the rounds that were paid for; of the whole plan, where it cannot be made any more. None
    where nothing is guaranteed, in a public silo.
    """
    guaranteed: float | None = run.record.terms["epsilon_guaranteed"]
    if not run.debited:
        return 0.0
    if plan is None or guaranteed is None:
        return guaranteed
    return spent(plan.plan, plan.admitted, run.debited, plan.mechanism)
