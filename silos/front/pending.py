"""Offers that wait for the silo's operator, in a folder of the state: apart from the ledger's chain.

`DIGEST.json` is an offer that policy and account allow, with what it would cost. A second file, which the
operator's command writes beside the running daemon, is the decision: `DIGEST.approved` or `DIGEST.refused`.
An approval says what may be admitted, at which cost, and until when the offer lapses; it is used once
(`silos.vault.approvals`). An offer that would be admitted otherwise now waits again. A run's evaluation is
another run with an approval of its own; both are written by one decision on the run's offer.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from fedsim.common.durable import atomic_file, remove_drafts, to_disk
from fedsim.common.errors import Busy, InputError, Refused
from fedsim.wire.messages import named
from silos.vault.approvals import APPROVED, REFUSED, USED, approval
from silos.vault.book import DAY

if TYPE_CHECKING:
    from fedsim.wire.messages import Offer
    from silos.front.offers import Proposal
    from silos.vault.considered import Admissible

    Considered = Callable[[Offer], tuple[Proposal, Admissible]]

log = logging.getLogger("silos.pending")

FOLDER = "offers"
_DRAFT = ".deciding-"  # of a command beside the daemon
MOST = 32  # offers that wait; each has at most the bytes that a ledger keeps of an offer
_KEPT = 90 * 86400.0  # seconds that decisions without their offer are kept
UNDECIDED = "the silo's operator has to decide"


@dataclass(frozen=True)
class Pending:
    """An offer that may be admitted, with what its operator is shown."""

    offer: str  # its text
    admission: str  # digest of what is approved with it
    terms: Mapping[str, Any]  # what the silo would answer
    cost: Mapping[str, float]  # of its price, and so are `rounds`
    rounds: int
    federation: str  # of its roster, "" without one
    asked: int  # microseconds since 1970 by the ledger, as `lapses`
    lapses: int
    also: Mapping[str, Any] | None = None  # its evaluation, as `asdict`, or the reason that it is refused

    @classmethod
    def of(
        cls, offer: Offer, made: Proposal, plan: Admissible, now: int, days: float, considered: Considered
    ) -> Self:
        """An offer that waits for so many days from now on, and its evaluation, which is `considered` too."""
        federation, lapses = "" if made.part is None else made.part.roster.federation, now + int(days * DAY)
        cost, rounds = plan.price.whole.tree(), len(plan.price.rounds)
        also: Mapping[str, Any] | None = None
        try:
            if (other := offer.evaluated) is not None:
                also = asdict(cls.of(other, *considered(other), now, days, considered))
        except Busy:
            raise
        except Refused as refusal:
            also = {"refused": str(refusal)}
        return cls(offer.text, plan.digest, plan.told, cost, rounds, federation, now, lapses, also)

    @property
    def evaluation(self) -> Pending | None:
        """The run's evaluation, where it may be admitted."""
        return Pending(**self.also) if self.also and "refused" not in self.also else None

    @property
    def both(self) -> list[Pending]:
        """What one decision is on: the evaluation, if there is one, and the run."""
        return [each for each in (self.evaluation, self) if each is not None]

    @property
    def digest(self) -> str:
        """SHA-256 of the offer's text, hexadecimal: commands and receipts name the offer by it."""
        return named(self.offer)

    @property
    def approval(self) -> str:
        """The content of the file that approves it."""
        return approval(self.admission, self.lapses)


class PendingOffers:
    """The folder; for a daemon and for commands beside it."""

    def __init__(self, state: Path, days: float = 0.0) -> None:
        """Offers that come now lapse after so many `days`."""
        self.folder, self._days = state / FOLDER, days
        self._lock = threading.Lock()

    def check(self, digest: str, now: int) -> None:
        """Busy while the offer of this digest waits, or if it is not known here and there is no room for it;
        Refused if the operator has refused it.
        """
        if self.find(digest, now) is None:
            self._check_room(digest, now)
            return
        self._check_not_refused(digest)
        if self.decision(digest)[0] != APPROVED:
            with suppress(OSError):
                os.utime(self.place(digest))  # when it was asked for last
            raise Busy(UNDECIDED)

    def wait(
        self, offer: Offer, made: Proposal, plan: Admissible, now: int, considered: Considered
    ) -> NoReturn:
        """Let an offer wait: Busy. Refused if the operator has refused it."""
        waits = Pending.of(offer, made, plan, now, self._days, considered)
        self._check_not_refused(waits.digest)
        self.keep(waits)

    def _check_not_refused(self, digest: str) -> None:
        decision, reason = self.decision(digest)
        if decision == REFUSED:
            raise Refused(f"the silo's operator has refused it{': ' * bool(reason)}{reason}")

    def check_not_approved(self, digest: str) -> None:
        """Busy if an evaluation is approved with its run, which is not admitted yet."""
        if self.decision(digest)[0] == APPROVED and self.find(digest, 0) is None:
            raise Busy(UNDECIDED)

    def find(self, digest: str, now: int) -> Pending | None:
        """The offer of this digest; None if there is none, it has lapsed, or its file is damaged."""
        try:
            found = Pending(**json.loads(self.place(digest).read_text()))
            return found if found.digest == digest and now < found.lapses else None
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def all(self, now: int) -> list[Pending]:
        """Those that have not lapsed, oldest first."""
        found = [self.find(place.stem, now) for place in self.folder.glob("*.json")]
        return sorted((each for each in found if each is not None), key=lambda each: each.asked)

    def decision(self, digest: str) -> tuple[str, str]:
        """`REFUSED` with the operator's reason, `APPROVED`, or "" while there is none."""
        refused = self.place(digest, REFUSED)
        if refused.exists():
            with suppress(OSError, ValueError):
                return REFUSED, refused.read_text()
            return REFUSED, ""
        return (APPROVED if self.place(digest, APPROVED).exists() else ""), ""

    def keep(self, offer: Pending) -> NoReturn:
        """Let an offer wait, without a decision: Busy."""
        with self._lock:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._check_room(offer.digest, offer.asked)
            for each in offer.both:
                for kind in (APPROVED, USED):  # a refusal that comes now stays
                    self.place(each.digest, kind).unlink(missing_ok=True)
            try:
                with atomic_file(self.place(offer.digest)) as draft:
                    draft.touch(0o600)
                    draft.write_text(json.dumps(asdict(offer)))
                to_disk(self.folder)
            except OSError:
                raise Busy("the silo cannot keep the offer for its operator") from None
        log.info("offer %s waits for the silo's operator", offer.digest)
        raise Busy(UNDECIDED)

    def _check_room(self, digest: str, now: int) -> None:
        """Busy if `MOST` other offers wait: none gives way to a new one."""
        self.tidy(now)
        waiting = [p for p in self.folder.glob("*.json") if not p.with_suffix(f".{REFUSED}").exists()]
        if sum(place.stem != digest for place in waiting) >= MOST:
            raise Busy(f"{MOST} offers wait for the silo's operator; no more until one is decided")

    def begin(self, now: int) -> None:
        """As a daemon begins: what an earlier one was admitting has to be approved again."""
        for place in (*self.folder.glob(f"*.{USED}"), *self.folder.glob(f"{_DRAFT}*")):
            place.unlink()
        self.tidy(now)

    def tidy(self, now: int) -> None:
        """Remove offers that have lapsed, and what a daemon that was killed left half-written."""
        remove_drafts(self.folder)
        for place in self.folder.glob("*.*ed"):  # of an evaluation that was never offered
            with suppress(FileNotFoundError):  # it is being used
                if not place.with_suffix(".json").exists() and place.stat().st_mtime < time.time() - _KEPT:
                    place.unlink()
        for place in self.folder.glob("*.json"):
            if self.find(place.stem, now) is None:
                self.remove(place.stem)

    def remove(self, digest: str) -> None:
        """Forget an offer, its decision first."""
        for kind in (APPROVED, REFUSED, USED, "json"):
            self.place(digest, kind).unlink(missing_ok=True)

    def decide(self, digest: str, decision: str, reason: str = "") -> None:
        """Write a decision, which is there at once; a refusal takes an approval back. InputError if it was
        made before, or the approval has been used.
        """
        found, before = self.find(digest, 0), self.decision(digest)[0]
        if found is None or before in (decision, REFUSED):
            raise InputError("OFFER", digest[:16], f"was {before} before" if before else "waits no more")
        for each in found.both:  # the run last: with it all is decided
            if each.digest != digest:
                for kind in (APPROVED, REFUSED):  # of another decision, on it alone
                    self.place(each.digest, kind).unlink(missing_ok=True)
            self._write(each.digest, decision, each.approval if decision == APPROVED else reason)
        if decision == REFUSED and (before or self.place(digest, USED).exists()):
            try:  # who removes or renames the approval first has it, the operator or the daemon
                self.place(digest, APPROVED).unlink()
            except FileNotFoundError:
                for each in found.both:
                    self.place(each.digest, REFUSED).unlink(missing_ok=True)
                hint = "is being admitted: `fedsim ledger show` has its run"
                raise InputError("OFFER", digest[:16], hint) from None

    def _write(self, digest: str, decision: str, said: str) -> None:
        """As a whole, only if there is none, and for the daemon's user to read."""
        file, draft = tempfile.mkstemp(prefix=_DRAFT, dir=self.folder)
        try:
            with open(file, "w") as opened, suppress(PermissionError):
                opened.write(said)
                opened.flush()
                os.fsync(file)
                os.fchown(file, self.folder.stat().st_uid, self.folder.stat().st_gid)
            os.link(draft, self.place(digest, decision))
        except FileExistsError:
            raise InputError("OFFER", digest[:16], f"was {decision} before") from None
        finally:
            os.unlink(draft)
        to_disk(self.folder)

    def place(self, digest: str, kind: str = "json") -> Path:
        """The offer's file, or that of a decision on it."""
        return self.folder / f"{digest}.{kind}"
