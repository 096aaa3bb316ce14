"""A silo's ledger on its disk, over all runs and through every crash, and receipts of closed runs.

A receipt is signed, for a reviewer who has only the silo's public key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedsim.common.chain import text
from fedsim.common.errors import Refused
from fedsim.common.identity import RECEIPT, RECEIPT_FORMAT, Identity
from fedsim.protocol.plan import Part
from fedsim.protocol.unit import RECORD, stated
from silos.vault.account import Account, Cost, Price
from silos.vault.book import DAY, Enrolment, Run, contents
from silos.vault.journal import Journal
from silos.vault.ledger import RunLedger


class LedgerFile(Journal):
    """A journal of runs, which share one lifetime account."""

    _runs: dict[str, RunLedger]

    @classmethod
    def open(cls, path: Path, notes: Mapping[str, Any] | None = None, until: int = 0) -> Self:
        """See `Journal`; runs whose days are over are closed."""
        ledger = super().open(path, notes, until)
        ledger._runs = {}
        ledger.expire()
        return ledger

    @property
    def account(self) -> Account:
        """The lifetime account, to read only."""
        return self.book.account

    def open_run(
        self,
        session: str,
        run: str,
        *,
        offer_digest: str,
        offer: str,
        secret: bytes,
        price: Price,
        days: float,
        max_runs: int,
        records: Part = "training",
        **told: Any,
    ) -> RunLedger:
        """Admit a run: its whole price is reserved, on the disk, before anything of it is released.

        The server names it by the `session`, the silo by `run`; after so many days it is closed by itself.
        The offer is kept as JSON, to rebuild the run after a restart; its digest, hexadecimal, is of what may
        not change between repetitions. The `secret` is of this run alone and never shown. `told` are plain
        values of a `Run`: `plan` and `admission`, and for the receipt the silo's `terms` and the `study`.

        Returns the run that is there already for a session known with this offer. Refused if it is known with
        another, there is no room (`check_room`), the account is too small, or nothing can be written.
        """
        with self.lock:
            if (known := self.session(session)) is not None:
                if known.record.offer == offer_digest:
                    return known
                raise Refused("this session is known with another offer")
            if run in self.book.runs:
                raise Refused("this run's id is taken")
            self.check_room(offer, max_runs)  # runs may have been opened since it was asked first
            self.account.check(price.whole, records)
            payload = {
                "run": run,
                "session": session,
                "offer": offer_digest,
                **told,
                "price": price.tree(),
                "contents": contents(offer.encode(), secret),
                "expires": self.now() + int(days * DAY),
                **({} if records == "training" else {"records": records}),
            }
            self.note("admitted", payload, ("INSERT INTO runs VALUES (?, ?, ?)", (run, offer, secret)))
            return self.run(run)

    def check_room(self, offer: str, max_runs: int) -> None:
        """Refuse a further run; see `Book`."""
        with self.lock:
            self.expire()
            self.book.check_room(offer, max_runs, self.now())

    def session(self, session: str) -> RunLedger | None:
        """The run that a server's name stands for."""
        with self.lock:
            run = self.book.sessions.get(session)
            return None if run is None else self.run(run)

    def run(self, run: str) -> RunLedger:
        """A run, open or closed; always the same object. Refused if there is none of this id."""
        with self.lock:
            if run not in self.book.runs:
                raise Refused("no run of this id")
            if run not in self._runs:
                self._runs[run] = RunLedger(self, self.book.runs[run])
            return self._runs[run]

    def open_runs(self) -> list[RunLedger]:
        """Runs that hold a reservation, oldest first."""
        with self.lock:
            self.expire()
            return [self.run(run) for run, record in self.book.runs.items() if record.open]

    def close_run(self, run: str, facts: Mapping[str, Any] | None = None) -> Cost:
        """No round of it is paid for any more; what it did not use returns. Once closed, as it was closed.

        Returns what the account was charged; `facts` are plain values for its receipt. Refused if there is
        none of this id, or the ledger cannot be written.
        """
        with self.lock:
            record = self.run(run).record
            if record.open:
                self.end("closed", record, facts or {})
            assert record.charged is not None
            return record.charged


def _receipt(enrolment: Enrolment, run: Run) -> dict[str, Any]:
    """Content of a closed run's receipt; the same at every call. Refused if the run is open.

    Times are microseconds since 1970 by the ledger's clock. `head_before` and `head_after` are heads of the
    silo's chain: the run's entries lie between them.
    """
    if run.charged is None:
        raise Refused("a run has a receipt once it is closed")
    rounds = sorted(run.rounds)
    return {
        "format": RECEIPT_FORMAT,
        "silo": enrolment.silo,
        "run": run.run,
        "session": run.session,
        "study": run.study,
        "offer": run.offer,
        "plan": run.plan,
        "terms": run.terms,
        "rounds": rounds,
        "broadcasts": [run.rounds[r].broadcast for r in rounds],
        "reserved": run.price.whole.tree(),
        "charged": run.charged.tree(),
        "lifetime": enrolment.caps.tree(),
        "records": enrolment.records,
        "facts": run.facts,
        "notices": list(run.notices),
        "opened": run.opened,
        "closed": run.closed,
        "head_before": run.before,
        "head_after": run.after,
        "version": run.version,
        "public_key": enrolment.identity,
        **({} if run.records == "training" else {"part": run.records}),
        **({} if enrolment.unit == RECORD else {"unit": stated(enrolment.unit)}),
    }


def signed_receipt(enrolment: Enrolment, run: Run, identity: Identity) -> str:
    """A closed run's receipt, JSON; byte for byte the same each time. Refused if the run is open, or the key
    is not the silo's.
    """
    if identity.public != enrolment.identity:
        raise Refused("the key is not the one that the silo enrolled with")
    content = _receipt(enrolment, run)
    return text({**content, "signature": identity.sign(RECEIPT + text(content).encode()).hex()})
