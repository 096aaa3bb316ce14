"""State that a chain of entries adds up to: enrolment, runs, rounds, account; as it grows, or replayed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedsim.common.chain import Entry, Layout, chained, knows, reading
from fedsim.common.errors import InputError, Lost, Refused
from fedsim.protocol.plan import Part
from fedsim.protocol.unit import RECORD, AccountUnit, PersonAccount
from silos.vault.account import Account, Caps, Cost, Price

DAY = 86_400_000_000  # microseconds
FILE = "ledger.sqlite"
LEDGER = Layout(
    "the silo's ledger",
    0x66647331,
    0,  # since version 0.3.0
    "it takes a newer fedsim, or it is no ledger",
    """
CREATE UNIQUE INDEX heads ON entries (hash);
CREATE TABLE runs (run TEXT PRIMARY KEY, offer TEXT NOT NULL, secret BLOB NOT NULL) STRICT;
CREATE TABLE replies (
    run TEXT PRIMARY KEY, round INTEGER NOT NULL, reply BLOB NOT NULL, memory BLOB NOT NULL
) STRICT;
""",
    guarded=True,
    shared=True,
)
"""Besides the entries: a run's offer and secret, and its last reply; entries have their digests."""
_UNPAID = 100  # runs in 24 hours without a round that was paid for
_LONGEST = 200_000  # bytes of an offer


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Values that were fixed when the silo enrolled."""

    silo: str  # its name
    records: str  # digest of its records, hexadecimal
    identity: str  # its public key, hexadecimal
    caps: Caps  # of its lifetime account
    expires: int  # the end of its life, microseconds since 1970; no run or round is paid for afterwards
    holdout: float | None = None  # the share of its records that answer evaluations
    label_dp: bool = False  # whether its account is of labels alone
    unit: AccountUnit = RECORD  # what its account protects
    public: bool = False  # whether its records are: then nothing is guaranteed or spent
    recoding: int = 1  # the version of the rule by which categories become its records' features

    def tree(self) -> dict[str, Any]:
        """Plain values, for `from_tree`; where four of the last are not used, as before there were any."""
        rare = ("holdout", "label_dp", "unit", "public")
        return {name: each for name, each in asdict(self).items() if each or name not in rare}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Enrolment:
        """The inverse of `tree`."""
        unit = PersonAccount(**tree["unit"]) if "unit" in tree else RECORD
        return cls(**{**tree, "caps": Caps.from_tree(tree["caps"]), "unit": unit})


@dataclass(slots=True)
class Round:
    """A round that was paid for: by which broadcast, in which process (see `Book.boot`), and how it ended."""

    broadcast: str
    boot: int
    reply: str | None = None
    head: str | None = None
    refusal: str | None = None

    @property
    def under_way(self) -> bool:
        """Whether neither a reply nor a refusal is known."""
        return self.reply is None and self.refusal is None


@dataclass(slots=True)
class Run:
    """An admitted run; `before` and `after` are the chain's heads around it, `admitted` its admission's.

    `contents` is the digest of its row, and `notices` are lines of the processes that paid for its rounds.
    `mark` is the shuffler's mark of the last round paid for, with secure aggregation.
    """

    run: str
    session: str
    offer: str
    plan: str
    terms: Mapping[str, Any]
    price: Price
    contents: str
    opened: int
    expires: int
    version: str
    before: str
    admitted: str
    rounds: dict[int, Round] = field(default_factory=dict)
    last: int | None = None
    charged: Cost | None = None
    closed: int = 0
    after: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    notices: dict[str, None] = field(default_factory=dict)
    mark: Mapping[str, Any] | None = None
    study: Mapping[str, str] = field(default_factory=dict)  # of its offer; empty in entries of version 0.3
    records: Part = "training"  # which part of the silo's records it reads
    admission: str = ""  # digest of what was admitted; empty in entries of before

    @property
    def open(self) -> bool:
        """Whether the run holds a reservation: it has not been charged yet."""
        return self.charged is None

    @property
    def kept(self) -> bool:
        """Whether it is open or a round was paid for; of other runs only the entries stay."""
        return self.open or bool(self.rounds)

    @property
    def used(self) -> Cost:
        """Cost of the rounds that were paid for."""
        return self.price.of(self.rounds)


class Book:
    """The state that entries add up to."""

    enrolment: Enrolment  # what was fixed when the silo enrolled
    account: Account  # what is left of the silo's life

    def __init__(self, chain: Iterable[Entry] = ()) -> None:
        """Replay; Refused if it is no chain of a ledger, or overspends."""
        self.head, self.length, self.time = "", 0, 0
        self.boot = 0  # the entry with which the last process began to write
        self.version = ""
        self.notices: list[str] = []  # of all processes; below of the last
        self._notices: list[str] = []
        self.runs: dict[str, Run] = {}
        self.sessions: dict[str, str] = {}
        self.marks: dict[str, Mapping[str, Any]] = {}  # by shuffler, the newest that was shown
        for entry in chain:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Take the next entry in."""
        if not self.length and entry.kind != "enrolled":
            raise Refused("the silo's ledger does not begin with an enrolment")
        payload = json.loads(entry.payload)
        match entry.kind:
            case "enrolled":
                self.enrolment = Enrolment.from_tree(payload)
                self.account = Account(self.enrolment.caps)
            case "started":
                self.boot, self.version = entry.seq, payload["version"]
                self._notices = payload.get("notices", [])
                self.notices.extend(line for line in self._notices if line not in self.notices)
            case "admitted":
                self._admitted(entry, payload)
            case "debited" | "resumed":
                run = self.runs[payload["run"]]
                run.rounds[payload["round"]] = Round(payload["broadcast"], self.boot)
                run.notices.update(dict.fromkeys(self._notices))
                if "mark" in payload:
                    run.mark, shuffler = payload["mark"], payload["shuffler"]
                    known = self.marks.setdefault(shuffler, run.mark)
                    self.marks[shuffler] = max(known, run.mark, key=lambda mark: int(mark["number"]))
            case "replied":
                run = self.runs[payload["run"]]
                run.last = payload["round"]
                run.rounds[run.last].reply = payload["contents"]
                run.rounds[run.last].head = entry.hash.hex()
            case "refused":
                self.runs[payload["run"]].rounds[payload["round"]].refusal = payload["reason"]
            case "closed" | "expired":
                run = self.runs[payload["run"]]
                run.charged = self.account.charge(run.run, Cost(**payload["charged"]))
                run.closed, run.after, run.facts = entry.time, entry.hash.hex(), payload["facts"]
            case _:  # a note: nothing follows from it
                pass
        self.head, self.length, self.time = entry.hash.hex(), entry.seq, entry.time

    def check_alive(self, now: int) -> None:
        """Refuse after the silo's last day."""
        if now >= self.enrolment.expires:
            raise Lost("the silo's lifetime budget has expired: it releases nothing any more")

    def check_room(self, offer: str, max_runs: int, now: int) -> None:
        """Refuse a further run; costs little, so that it can be asked before a plan is tried out.

        A run without a round that was paid for leaves its admission in the chain and nothing else, when it is
        closed; so that a server cannot fill the disk with those, a day has only so many. The offer is JSON in
        ASCII, `now` in microseconds since 1970; in the silo's life `max_runs` may be open or have had a
        round paid for.
        """
        self.check_alive(now)
        if len(offer) > _LONGEST:
            raise Refused(f"offer: it has {len(offer):,} bytes, a ledger keeps {_LONGEST:,} at most")
        if sum(run.kept for run in self.runs.values()) >= max_runs:
            raise Refused(f"the silo's policy allows {max_runs} runs, and they have been")
        if sum(not run.rounds and run.opened > now - DAY for run in self.runs.values()) >= _UNPAID:
            raise Refused(f"{_UNPAID} runs of the last 24 hours were never asked for a round; no more now")

    def _admitted(self, entry: Entry, payload: Mapping[str, Any]) -> None:
        rest = {**payload, "price": Price.from_tree(payload["price"])}
        rest |= {"before": self.head, "admitted": entry.hash.hex()}
        run = Run(**rest, opened=entry.time, version=self.version)
        self.account.reserve(run.run, run.price.whole, run.records)
        self.runs[run.run], self.sessions[run.session] = run, run.run


def contents(*parts: bytes) -> str:
    """A digest of byte strings, hexadecimal SHA-256."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8) + part)
    return whole.hexdigest()


def replayed(connection: sqlite3.Connection) -> Book:
    """A ledger's book, whole chain and what is stored beside it checked. Refused if altered or damaged."""
    book = Book(chained(connection, LEDGER))
    check_beside(book, connection)
    return book


def check_beside(book: Book, connection: sqlite3.Connection) -> None:
    """Refuse a ledger in which offers and replies are not those that its entries have the digests of."""
    missing = {run for run, found in book.runs.items() if found.kept}
    for run, offer, secret in connection.execute("SELECT run, offer, secret FROM runs"):
        if run not in missing or contents(offer.encode(), secret) != book.runs[run].contents:
            raise Refused("the silo's ledger was altered: a run's offer is not the one that was admitted")
        missing.remove(run)
    replied = {run: found.last for run, found in book.runs.items() if found.last is not None}
    for run, index, reply, memory in connection.execute("SELECT run, round, reply, memory FROM replies"):
        last = replied.pop(run, None)
        if index != last or contents(reply, memory) != book.runs[run].rounds[index].reply:
            raise Refused("the silo's ledger was altered: a stored reply is not the one that was given")
    if replied or missing:
        raise Refused("the silo's ledger was altered: a run's offer or reply is missing")


def check_exists(path: Path) -> None:
    """InputError where there is no ledger."""
    if not path.is_file():
        raise InputError("ledger", str(path), "there is none; a silo's is made when it enrols")


def read(path: Path, head: str | None = None) -> Book:
    """A ledger's book, of this moment; a daemon may be writing it. InputError if there is none, or a `head`,
    hexadecimal, that must be in its chain is not: entries were lost. Refused if it cannot be read, was
    altered or is damaged.
    """
    check_exists(path)
    with reading(path, LEDGER) as connection:
        if head is not None and not knows(connection, head):
            raise InputError("head", head, "not in this ledger's chain: it has lost entries, or is another's")
        return replayed(connection)
