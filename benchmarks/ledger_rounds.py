"""Durable rounds a second of a silo's ledger, and what the disk allows: `ledger_rounds.py OUT [FOLDER]`.

Writes JSON. A round is two commits, each of which waits for the disk: the debit, and the reply with memory
(two arrays of d numbers). Beside it, in turns on the same disk: commits of SQLite with the same settings that
write as much and do nothing else, and bare fsyncs of a file that grows by a page.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median

import torch

from fedsim.common.chain import connect
from silos.vault.account import Caps, Price, Stretch
from silos.vault.book import LEDGER, Enrolment
from silos.vault.journal import end_of
from silos.vault.ledger_file import LedgerFile

DIMENSIONS = (50, 10_000)
ROUNDS, REPETITIONS = 300, 5


def ledger(folder: Path, dimension: int) -> Callable[[], float]:
    """Rounds of a run of a ledger."""
    path = folder / "ledger.sqlite"
    caps, expires = Caps.of(8.0, 1e-5), end_of(date(2999, 1, 1))
    LedgerFile.create(path, Enrolment("silo", "ab" * 32, "cd" * 32, caps, expires))
    file = LedgerFile.open(path)
    reply = {"g": torch.randn(dimension, dtype=torch.float64)}
    price = Price((Stretch(0, ROUNDS, 1e-6, 0.0, 0.0),))
    sessions = iter(range(10**6))

    def once() -> float:
        name = f"{next(sessions):064x}"
        given = {"offer_digest": "", "offer": "", "secret": b"", "plan": "", "terms": {}}
        run = file.open_run(name, name, **given, price=price, days=1, max_runs=1000)
        digest = bytes(32)
        start = time.perf_counter()
        for index in range(ROUNDS):
            run.find(index, digest)
            run.debit(index, digest)
            run.store(index, reply, reply)
        return ROUNDS / (time.perf_counter() - start)

    return once


def bare(folder: Path, dimension: int) -> Callable[[], float]:
    """The same commits without a ledger, two a round."""
    path = folder / "bare.sqlite"
    sqlite3.connect(path).close()
    connection = connect(path, LEDGER)
    connection.execute("CREATE TABLE entries (seq INTEGER PRIMARY KEY, payload TEXT, hash BLOB)")
    connection.execute("CREATE UNIQUE INDEX heads ON entries (hash)")
    connection.execute("CREATE TABLE replies (run INTEGER PRIMARY KEY, reply BLOB, memory BLOB)")
    array, payload = os.urandom(8 * dimension), "x" * 250

    def once() -> float:
        start = time.perf_counter()
        for _ in range(ROUNDS):
            for replies in (0, 1):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO entries VALUES (NULL, ?, ?)", (payload, os.urandom(32)))
                if replies:
                    connection.execute("INSERT OR REPLACE INTO replies VALUES (1, ?, ?)", (array, array))
                connection.execute("COMMIT")
        return ROUNDS / (time.perf_counter() - start)

    return once


def fsyncs(folder: Path) -> Callable[[], float]:
    """A page appended and synchronised, two a round."""
    handle = os.open(folder / "pages", os.O_CREAT | os.O_WRONLY)

    def once() -> float:
        start = time.perf_counter()
        for _ in range(2 * ROUNDS):
            os.write(handle, bytes(4096))
            os.fsync(handle)
        return ROUNDS / (time.perf_counter() - start)

    return once


def main(out: Path, where: Path | None) -> None:
    """Measure in turns, so that a busy disk slows all alike."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=where) as name:
        folder = Path(name)
        cases = {"fsync pairs": fsyncs(folder)}
        for dimension in DIMENSIONS:
            own = folder / str(dimension)
            own.mkdir()
            cases |= {f"ledger, d = {dimension}": ledger(own, dimension)}
            cases |= {f"bare SQLite, d = {dimension}": bare(own, dimension)}
        found: dict[str, list[float]] = {case: [] for case in cases}
        for _ in range(REPETITIONS):
            for case, once in cases.items():
                found[case].append(once())
    rates = {case: {"median": median(each), "best": max(each)} for case, each in found.items()}
    out.write_text(json.dumps({"rounds_per_second": rates}, indent=2))
    for case, rate in rates.items():
        print(f"{case}: {rate['median']:.0f} rounds/s, best {rate['best']:.0f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
