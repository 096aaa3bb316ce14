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
_UNPAID = 100  # runs in 24 hours of which no round was paid for
_LONGEST = 200_000  # bytes of an offer


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
        max_runs: int,
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
            max_runs: see `check_room`.

        Returns:
            The run; the one that is there already for a session known with the same offer, open or not.

        Raises:
            Refused: the session is known with another offer, there is no room for a run (`check_room`), the
                account cannot carry the price, or the ledger cannot be written.
        """
        with self.lock:
            known = self.session(session)
            if known is not None:
                if known.record.offer != offer_digest:
                    raise Refused("this session is known with another offer")
                return known
            if run in self.book.runs:
                raise Refused("this run's id is taken")
            self.check_room(offer, max_runs)  # runs may have been opened since it was asked first
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

    def check_room(self, offer: str, max_runs: int) -> None:
        """Refuse a further run; costs little, so that it can be asked before a plan is tried out.

        A run of which no round was paid for leaves its admission in the chain and nothing else, when it is
        closed; so that a server cannot fill the disk with those, a day has only so many.

        Args:
            offer: as JSON; ASCII.
            max_runs: the most that may be open or have had a round paid for, in the silo's life.
        """
        with self.lock:
            self.expire()
            self.check_alive()
            if len(offer) > _LONGEST:
                raise Refused(f"offer: it has {len(offer):,} bytes, a ledger keeps {_LONGEST:,} at most")
            runs, since = self.book.runs.values(), self.now() - _DAY
            if sum(run.kept for run in runs) >= max_runs:
                raise Refused(f"the silo's policy allows {max_runs} runs, and they have been")
            if sum(not run.rounds and run.opened > since for run in runs) >= _UNPAID:
                raise Refused(
                    f"{_UNPAID} runs of the last 24 hours were never asked for a round; no more now"
                )

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
        unused = [] if record.rounds else [("DELETE FROM runs WHERE run = ?", (record.run,))]
        self.note(kind, {"run": record.run, "facts": dict(facts), "charged": charged.tree()}, *unused)

    def check_alive(self) -> None:
        """Refuse after the silo's last day."""
        if self.now() >= self.enrolment.expires:
            raise Refused("the silo's lifetime budget has expired: it releases nothing any more")
