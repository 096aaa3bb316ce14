"""A silo's ledger on its disk: what was spent and said, over all runs and through every crash."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedsim.common.errors import Refused
from silos.account import Account, Cost
from silos.book import Enrolment, Run, contents
from silos.clock import SECOND
from silos.journal import Journal
from silos.price import Price
from silos.run_ledger import RunLedger

_DAY = 86_400 * SECOND


class LedgerFile(Journal):
    """A journal of runs, which share one lifetime account."""

    _runs: dict[str, RunLedger]

    @classmethod
    def open(cls, path: Path, notes: Mapping[str, Any] | None = None) -> Self:
        """See `Journal`; runs whose days are over are closed."""
        ledger = super().open(path, notes)
        ledger._runs = {}
        ledger.expire()
        return ledger

    @property
    def enrolment(self) -> Enrolment:
        """What was fixed when the silo enrolled."""
        return self.book.enrolment

    @property
    def account(self) -> Account:
        """What is left of the silo's life; to look at."""
        return self.book.account

    def open_run(
        self,
        session: str,
        run: str,
        *,
        offer_digest: str,
        offer: str,
        secret: bytes,
        plan_digest: str,
        terms: Mapping[str, Any],
        price: Price,
        days: float,
    ) -> RunLedger:
        """Admit a run: its whole price is reserved, on the disk, before anything of it is released.

        Args:
            session: the server's name for it.
            run: the silo's own id.
            offer_digest: hexadecimal, of the offer without what may change between repetitions.
            offer: as JSON, to rebuild the run after a restart.
            secret: of this run alone; never shown.
            plan_digest: hexadecimal.
            terms: what the silo answered, plain values; it goes into the receipt.
            price: of the plan.
            days: until the run is closed by itself.

        Returns:
            The run; the one that is there already for a session known with the same offer, open or not.

        Raises:
            Refused: the session is known with another offer, the account cannot carry the price, the silo's
                life is over, or the ledger cannot be written.
        """
        with self.lock:
            known = self.session(session)
            if known is not None:
                if known.record.offer != offer_digest:
                    raise Refused("this session is known with another offer")
                return known
            if run in self.book.runs:
                raise Refused("this run's id is taken")
            self.expire()
            self.check_alive()
            self.account.check(price.whole)
            payload = {
                "run": run,
                "session": session,
                "offer": offer_digest,
                "plan": plan_digest,
                "terms": dict(terms),
                "price": price.tree(),
                "contents": contents(offer.encode(), secret),
                "expires": self.now() + int(days * _DAY),
            }
            row = ("INSERT INTO runs VALUES (?, ?, ?)", (run, offer, secret))
            self.note("admitted", payload, row)
            return self.run(run)

    def session(self, session: str) -> RunLedger | None:
        """The run that a server's name stands for."""
        with self.lock:
            run = self.book.sessions.get(session)
            return None if run is None else self.run(run)

    def run(self, run: str) -> RunLedger:
        """A run, open or closed; always the same object.

        Raises:
            Refused: there is none of this id.
        """
        with self.lock:
            if run not in self.book.runs:
                raise Refused("no run of this id")
            if run not in self._runs:
                self._runs[run] = RunLedger(self, self.book.runs[run])
            return self._runs[run]

    def open_runs(self) -> list[RunLedger]:
        """Those that hold a reservation, oldest first."""
        with self.lock:
            self.expire()
            return [self.run(run) for run, record in self.book.runs.items() if record.open]

    def close_run(self, run: str, facts: Mapping[str, Any] | None = None) -> Cost:
        """No round of it is paid for any more; what it did not use returns. Once closed, as it was closed.

        Args:
            run: its id.
            facts: plain values for its receipt.

        Returns:
            What the account was charged.

        Raises:
            Refused: there is none of this id, or the ledger cannot be written.
        """
        with self.lock:
            record = self.run(run).record
            if record.open:
                self._end("closed", record, facts or {})
            assert record.charged is not None
            return record.charged

    def expire(self) -> None:
        """Close the runs whose days are over."""
        with self.lock:
            now = self.now()
            for record in [record for record in self.book.runs.values() if record.open]:
                if record.expires <= now:
                    self._end("expired", record, {})

    def _end(self, kind: str, record: Run, facts: Mapping[str, Any]) -> None:
        charged = record.used.least(record.price.whole)
        self.note(kind, {"run": record.run, "facts": dict(facts), "charged": charged.tree()})

    def check_alive(self) -> None:
        """Refuse after the silo's last day."""
        if self.now() >= self.enrolment.expires:
            raise Refused("the silo's lifetime budget has expired: it releases nothing any more")
