"""A record: an append-only log of typed rows, from which all that is shown of a run is computed.

Each table's columns are the fields of its row's class (`TABLES`); those of sections are added as these are
declared (`fedsim.report.section`). Rows are appended in entries, such as all rows of a finished trial or of a
sweep's cell, under a key. An entry is in the record whole or not at all, so that what is still to do is what
is `missing`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

from fedsim.common.chain import RUN, Entry, chained, reading
from fedsim.common.errors import InputError, Refused
from fedsim.common.store import Store
from fedsim.protocol.links import Variant
from fedsim.report.summary import AGAIN
from fedsim.scenario.metric import BaselineName

Kind = Literal["simulation", "sweep", "deployment"]


class Measurement(NamedTuple):
    """The model after `round` rounds, on the pooled test records of all silos.

    `seconds` is what the rounds so far took, without the measuring between them. `more` has other metrics
    (`fedsim.scenario.metric`): after the last round all of them. `excess_risk` is F(w) - F(w*), and
    `gradient_mapping_sq` |G_eta(w)|^2, of the training objective; None where they are not measured or do not
    exist (`fedsim.measure.objective`). In a record an error or loss that is not finite is None; an observer
    gets the number itself.
    """

    trial: int
    variant: Variant
    round: int
    error: float | None
    loss: float | None
    participants: int
    seconds: float
    excess_risk: float | None = None
    gradient_mapping_sq: float | None = None
    more: Mapping[str, float | None] = {}


class SiloMeasurement(NamedTuple):
    """A trial's final model on one silo's test records; `more` has the metric that the scenario chose."""

    trial: int
    variant: Variant
    silo: str
    error: float | None
    loss: float | None
    test_records: int
    more: Mapping[str, float | None] = {}


class BaselineMeasurement(NamedTuple):
    """A baseline without federation, on the pooled test records of one trial; not private.

    `method` says how it was fitted, or why it was not; the numbers are None then.
    """

    trial: int
    baseline: BaselineName
    silo: str | None
    train_records: int
    method: str
    error: float | None
    loss: float | None
    more: Mapping[str, float | None] = {}


class SiloSpend(NamedTuple):
    """Epsilon of a silo's answers up to and including a round, counted from 1; None is infinite."""

    silo: str
    round: int
    epsilon_spent: float | None
    budget: float | None


class LedgerRow(NamedTuple):
    """A round that a silo has paid for: what it was asked, and the number of its answers."""

    trial: int
    silo: str
    round: int
    releases: int
    broadcast_sha256: str


class SiloStatement(NamedTuple):
    """A silo's account of a trial: fields of `fedsim.protocol.plan.Statement` but for a share in sums."""

    trial: int
    fields: dict[str, Any]


class AskedSilo(NamedTuple):
    """A silo that was asked in a round of a deployed run; `left_out` says why its answer did not count."""

    trial: int
    silo: str
    round: int
    broadcast_sha256: str
    left_out: str | None


class Warned(NamedTuple):
    """A warning about a trial's records."""

    trial: int
    text: str


class Counted(NamedTuple):
    """The most training records that one unit has in one silo of a trial; not private."""

    trial: int
    most: int


class Finished(NamedTuple):
    """A finished trial: SHA-256 of the file of its models, and its recipe as JSON, where it is known."""

    trial: int
    models_sha256: str
    recipe: str | None


class Begun(NamedTuple):
    """What all entries of a record have in common: of a run, digests of its scenario and of the code; cells
    of a sweep need neither, since their keys have both.
    """

    of: Kind
    scenario: str = ""
    code: Mapping[str, str] = {}

    @property
    def word(self) -> str:
        """A word for what was begun, for a person who meets its directory."""
        return "sweep" if self.of == "sweep" else "run"


class Ended(NamedTuple):
    """The run or sweep has ended, and its files have been written, or it is over without them (`OVER`); a run
    that goes on has no such row."""

    status: str


OVER = Ended("over")
"""A deployed run whose silos will answer no round any more, or that its operator has given up."""


class Mended(NamedTuple):
    """The number of a damaged entry, whose work was done again as far as it was not done."""

    entry: int


class ReportedCell(NamedTuple):
    """A reported trial of a sweep: its fields that were varied and chosen, and the key of its cell."""

    varied: dict[str, Any]
    chosen: dict[str, Any]
    private: bool
    trial: int
    cached: bool
    key: str


class CellResult(NamedTuple):
    """A finished cell of a sweep: the final model on test records, and what the run costs at most.

    `more` has the other metrics on the pooled test records, none in a cell that measures `train_loss`.
    `epsilon` is a silo's largest epsilon_guaranteed (infinity without a mechanism), `silo` its name. In a
    candidate's cell of private tuning, `error` is the noisy score, sum_i p_i (silo i's), and `loss` is None.
    """

    error: float
    loss: float | None
    train_loss: float | None
    epsilon: float
    silo: str
    noise_multiplier: float
    error_name: str
    seconds: float
    more: Mapping[str, float | None] = {}


HasMetrics = Measurement | SiloMeasurement | BaselineMeasurement | CellResult


class CellSource(NamedTuple):
    """The trial and the scenario, as mappings, of a finished cell of a sweep."""

    trial: int
    scenario: dict[str, Any]


TABLES: dict[str, type[Any]] = {
    "metrics": Measurement,
    "silos": SiloMeasurement,
    "baselines": BaselineMeasurement,
    "ledger": LedgerRow,
    "spend": SiloSpend,
    "statements": SiloStatement,
    "asked": AskedSilo,
    "warnings": Warned,
    "counted": Counted,
    "finished": Finished,
    "begun": Begun,
    "ended": Ended,
    "mended": Mended,
    "cells": CellResult,
    "cell_sources": CellSource,
    "reported": ReportedCell,
}
OF_TESTS = "made of test records, which no silo releases"
MADE_OF = {
    "metrics": "made of test records, and excess_risk and gradient_mapping_sq of training ones",
    "silos": OF_TESTS,
    "baselines": "made of training and test records without noise: not private",
}
"""The records that tables are made of in a simulation, for their metadata."""

BEGUN, ENDED = "begun", "ended"
"""The keys of the first entry, and of the last one where the run or sweep has ended."""
_NAMES = {row: name for name, row in TABLES.items()}


def declare(name: str, row: type[Any], made_of: str) -> None:
    """Add a section's table."""
    TABLES[name], _NAMES[row] = row, name
    if made_of:
        MADE_OF[name] = made_of


def exported() -> list[str]:
    """The tables that `fedsim export` writes as Parquet files."""
    return [*MADE_OF, "ledger", "spend"]


Row = TypeVar("Row", bound=tuple[Any, ...])
T = TypeVar("T")
Key = TypeVar("Key")


def grouped(rows: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    """Rows by their keys; keys, and the rows of each, in the order in which they come."""
    result: dict[Key, list[T]] = {}
    for row in rows:
        result.setdefault(key(row), []).append(row)
    return result


class Record:
    """Entries of rows by key, in memory and, where it was opened on a file, in that.

    Attributes:
        damaged: keys of entries in the file that do not count, as they are damaged or of another version.
        store: the file, where it was opened on one; entries of other kinds may stand in it too.
    """

    def __init__(self) -> None:
        self.damaged: list[str] = []
        self._entries: dict[str, dict[str, list[Any]]] = {}
        self._read: list[tuple[int, str, dict[str, list[Any]] | None]] = []
        self._found = list[int]()  # numbers of damaged entries, which the next append notes
        self.store: Store | None = None

    @classmethod
    @contextmanager
    def open(cls, file: Path, tell: Callable[[str], None], durable: bool = True) -> Iterator[Self]:
        """The record in a file, new or not; no other process opens it meanwhile.

        Args:
            file: in a folder that exists.
            tell: called with a line about entries that are damaged; they are missing.
            durable: whether an entry must outlive a loss of power.

        Raises:
            BlockingIOError: another process, or another record of this one, has it open.
            OSError: it cannot be written.
            InputError: it is no record, or of another version.
        """
        record = cls()
        with _refusals(file):
            record.store = Store.hold(file, RUN, record._take, tolerant=True, durable=durable)
        with record.store:
            record._found = record._settle(record.store.damaged)
            for key in record.damaged:
                tell(f"{file}: entry {key} {DAMAGED}")
            yield record

    @classmethod
    def of(cls, store: Store) -> Self:
        """The record in a store that is open and whole."""
        record = cls()
        record.store = store
        for entry in chained(store.connection, RUN):
            record._take(entry)
        record._settle(())
        return record

    @classmethod
    def read(cls, file: Path) -> Self:
        """The record in a file, in memory; InputError: absent, damaged, of another version or in use."""
        record, damaged = cls(), list[Entry]()
        if not file.is_file():
            raise InputError("RUN", str(file), f"is missing; {AGAIN}")
        if file.with_name(f"{file.name}-journal").exists():  # a process was killed as it wrote
            with suppress(sqlite3.Error), closing(sqlite3.connect(file, timeout=0)) as log:
                log.execute("SELECT 1 FROM sqlite_master")  # SQLite takes back what is half-written
        try:
            with reading(file, RUN) as connection:
                for entry in chained(connection, RUN, damaged):
                    record._take(entry)
        except Refused as refusal:
            raise InputError("RUN", str(file), str(refusal)) from None
        except BlockingIOError:
            raise InputError("RUN", str(file), "a run is at work in it; wait until it has ended") from None
        except OSError as error:
            raise InputError("RUN", str(file), f"cannot be read ({error.strerror})") from None
        record._settle(damaged)
        if record.damaged:
            hint = f"entry {record.damaged[0]} is damaged or of another version; {AGAIN}"
            raise InputError("RUN", str(file), hint)
        return record

    def copy(self, file: Path, more: Mapping[str, Sequence[Any]]) -> None:
        """Write all entries to a new file, and `more` by their keys; OSError if it cannot be written."""
        with Record.open(file, lambda line: None, durable=False) as other:
            for key, rows in ({key: self.entry(key) for key in self.keys} | dict(more)).items():
                other.append(key, rows)

    def _take(self, entry: Entry) -> None:
        """Take an entry of the file in, to be settled with the damaged ones."""
        rows: dict[str, list[Any]] | None = None
        if not entry.kind.startswith(_ROWS):
            return
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            read = json.loads(entry.payload).items()
            rows = {name: [TABLES[name](*values) for values in each] for name, each in read}
        self._read.append((entry.seq, entry.kind, rows))

    def _settle(self, damaged: Iterable[Entry]) -> list[int]:
        """Of entries with the same key the last one counts, unless it is damaged; the numbers of those that
        are, and that no earlier process has found.
        """
        last = dict[str, dict[str, list[Any]] | None]()
        found = [*self._read, *((entry.seq, entry.kind, None) for entry in damaged)]
        mended = {row.entry for *_, rows in self._read for row in (rows or {}).get(_MENDED, ())}
        found = sorted((each for each in found if each[0] not in mended), key=itemgetter(0))
        for _, kind, rows in found:
            key = kind.removeprefix(_ROWS)
            last.pop(key, None)  # the newest comes last
            last[key] = rows
        self._entries = {key: rows for key, rows in last.items() if rows is not None}
        self.damaged = [key for key, rows in last.items() if rows is None]
        self._read.clear()
        return [seq for seq, _, rows in found if rows is None]

    def append(self, key: str, rows: Sequence[Any]) -> None:
        """Append an entry: rows of any tables. It takes the place of an older one with the same key.

        OSError if it cannot be written; the record is as it was.
        """
        if self._found:  # a key itself may be damaged, and then no other entry takes this one's place
            found, self._found = self._found, []
            self.append(_MENDED, [*self.rows(Mended), *map(Mended, found)])
        entry = grouped(rows, lambda row: _NAMES[type(row)])
        if self.store is not None:
            with _refusals(self.store.path):
                self.store.append(f"{_ROWS}{key}", json.dumps(entry))
        self._entries.pop(key, None)  # the newest comes last
        self._entries[key] = entry

    def rows(self, kind: type[Row], key: str | None = None) -> list[Row]:
        """All rows of a class, in the order of their entries; with `key` those of one entry."""
        entries = list(self._entries.values()) if key is None else [self._entries.get(key, {})]
        return [row for entry in entries for row in entry.get(_NAMES[kind], ())]

    def entry(self, key: str) -> list[Any]:
        """All rows of an entry; none where there is no such entry."""
        return [row for rows in self._entries.get(key, {}).values() for row in rows]

    def drop(self, key: str) -> None:
        """Let an entry count as missing, since what belongs to it is damaged."""
        self._entries.pop(key, None)
        self.damaged.append(key)

    @property
    def keys(self) -> list[str]:
        """The keys of all entries, in their order."""
        return list(self._entries)

    def missing(self, keys: Iterable[Key], name: Callable[[Key], str] = str) -> list[Key]:
        """The `keys` without an entry: the work that is left. `name` makes an entry's key from one."""
        return [key for key in keys if name(key) not in self._entries]


DAMAGED = "is damaged or of another version, and run again"
_ROWS, _MENDED = "rows ", "mended"  # what stands before an entry's key; a key


@contextmanager
def _refusals(file: Path) -> Iterator[None]:
    try:
        yield
    except Refused as refusal:
        raise InputError("record", str(file), str(refusal)) from None
