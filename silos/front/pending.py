"""Offers that wait for the silo's operator, in a folder of the state: apart from the ledger's chain.

`DIGEST.json` is an offer that policy and account allow, with what it would cost. A second file, which the
operator's command writes beside the running daemon, is the decision: `DIGEST.approved` or `DIGEST.refused`.
An approval is of this digest and this cost, until the offer lapses, and once: it is renamed before the run
is admitted, and whoever renames it first has it, the daemon or the operator who takes it back.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from fedsim.common.errors import Busy, InputError, Refused
from fedsim.common.files import atomic_file, remove_drafts, to_disk
from fedsim.wire.messages import named
from silos.vault.book import DAY

if TYPE_CHECKING:
    from silos.front.offers import Admissible
    from silos.vault.account import Price

log = logging.getLogger("silos.pending")

FOLDER = "offers"
APPROVED, REFUSED = "approved", "refused"
_USED = "used"  # an approval whose run is being admitted
MOST = 32  # offers that wait; each has at most the bytes that a ledger keeps of an offer
UNDECIDED = "the silo's operator has to decide"


@dataclass(frozen=True)
class Pending:
    """An offer that may be admitted, with what its operator is shown."""

    offer: str  # its text
    terms: Mapping[str, Any]  # what the silo would answer
    cost: Mapping[str, float]  # of its price, and so are `rounds`
    rounds: int
    federation: str  # of its roster, "" without one
    asked: int  # microseconds since 1970 by the ledger, as `lapses`
    lapses: int

    @classmethod
    def of(
        cls, text: str, plan: Admissible, terms: Mapping[str, Any], price: Price, now: int, days: float
    ) -> Self:
        """An offer of this text that waits for so many days from now on."""
        part, lapses = plan.proposal.part, now + int(days * DAY)
        federation = "" if part is None else part.roster.federation
        return cls(text, terms, price.whole.tree(), len(price.rounds), federation, now, lapses)

    @property
    def digest(self) -> str:
        """SHA-256 of the offer's text, hexadecimal: commands and receipts name the offer by it."""
        return named(self.offer)


class PendingOffers:
    """The folder; for a daemon and for commands beside it."""

    def __init__(self, state: Path, days: float = 0.0) -> None:
        """Offers that come now lapse after so many `days`."""
        self.folder, self._days = state / FOLDER, days
        self._lock = threading.Lock()

    def approved(self, digest: str, now: int) -> Pending | None:
        """The offer of this digest, which the operator has approved; None for one that is not known here.
        Busy while it waits, Refused if the operator has refused it.
        """
        found = self.find(digest, now)
        if found is None:
            self._check_room(digest, now)
            return None
        self._check_not_refused(digest)
        if self.decision(digest)[0] == APPROVED:
            return found
        with suppress(OSError):
            os.utime(self.place(digest))  # when it was asked for last
        raise Busy(UNDECIDED)

    def check_approved(
        self,
        found: Pending | None,
        text: str,
        plan: Admissible,
        terms: Mapping[str, Any],
        price: Price,
        now: int,
    ) -> None:
        """Use the approval of an offer of this text, which was `found` approved at this cost; else let it
        wait, as `keep`. Refused if the operator has taken it back by now.
        """
        offer = Pending.of(text, plan, terms, price, now, self._days)
        if found is not None and (found.terms, found.cost) == (offer.terms, offer.cost):
            with suppress(FileNotFoundError):
                self.place(offer.digest, APPROVED).rename(self.place(offer.digest, _USED))
                return
        if plan.proposal.isolated is not None:
            plan.proposal.isolated.close()
        self._check_not_refused(offer.digest)
        self.keep(offer)

    def _check_not_refused(self, digest: str) -> None:
        decision, reason = self.decision(digest)
        if decision == REFUSED:
            raise Refused(f"the silo's operator has refused it{': ' * bool(reason)}{reason}")

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
            self.remove(offer.digest)
            with atomic_file(self.place(offer.digest)) as draft:
                draft.touch(0o600)
                draft.write_text(json.dumps(asdict(offer)))
            to_disk(self.folder)
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
        for place in self.folder.glob(f"*.{_USED}"):
            place.unlink()
        self.tidy(now)

    def tidy(self, now: int) -> None:
        """Remove offers that have lapsed, and what a daemon that was killed left half-written."""
        remove_drafts(self.folder)
        for place in self.folder.glob("*.json"):
            if self.find(place.stem, now) is None:
                self.remove(place.stem)

    def remove(self, digest: str) -> None:
        """Forget an offer, its decision first."""
        for kind in (APPROVED, REFUSED, _USED, "json"):
            self.place(digest, kind).unlink(missing_ok=True)

    def decide(self, digest: str, decision: str, reason: str = "") -> None:
        """Write a decision, which is there at once; a refusal takes an approval back. InputError if it was
        made before, or the approval has been used.
        """
        if decision == APPROVED and self.decision(digest)[0] == REFUSED:
            raise InputError("OFFER", digest[:16], "was refused before")
        new, approved = os.O_CREAT | os.O_EXCL, self.place(digest, APPROVED)
        try:
            if decision == REFUSED and (approved.exists() or self.place(digest, _USED).exists()):
                approved.rename(self.place(digest, REFUSED))
                new = os.O_TRUNC
            file = os.open(self.place(digest, decision), new | os.O_WRONLY, 0o600)
        except FileExistsError:
            raise InputError("OFFER", digest[:16], f"was {decision} before") from None
        except FileNotFoundError:
            hint = "is being admitted: `fedsim ledger show` has its run"
            raise InputError("OFFER", digest[:16], hint) from None
        with open(file, "w") as opened:
            opened.write(reason)
            opened.flush()
            os.fsync(file)
        to_disk(self.folder)

    def place(self, digest: str, kind: str = "json") -> Path:
        """The offer's file, or that of a decision on it."""
        return self.folder / f"{digest}.{kind}"
