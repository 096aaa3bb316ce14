"""Ledgers on disk to spend from, and to damage."""

import shutil
import sqlite3
from datetime import date
from pathlib import Path
from typing import Any

import torch

from fedsim.common.chain import chained
from fedsim.common.identity import Identity
from silos.vault.account import Caps, Cost, Price, Stretch
from silos.vault.book import LEDGER, Book, Enrolment
from silos.vault.journal import end_of
from silos.vault.ledger import RunLedger
from silos.vault.ledger_file import LedgerFile

CAPS = Caps.of(4.0, 1e-5, 1.0, 1e-6)
FAR = date(2999, 12, 31)
SECRET = b"s" * 32


def enrolled(folder: Path, expires: date = FAR) -> tuple[Path, Identity]:
    """A new ledger's file and its silo's identity."""
    identity = Identity.create(folder)
    path = folder / "ledger.sqlite"
    LedgerFile.create(path, Enrolment("silo-1", "ab" * 32, identity.public, CAPS, end_of(expires)))
    return path, identity


def copied(path: Path, folder: Path) -> Path:
    """All files of a ledger, in another folder, which is made: a copy as of this moment."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, folder)
    return folder / path.name


def hexed(number: int) -> str:
    return f"{number:064x}"


def broadcast(number: int) -> bytes:
    return bytes.fromhex(hexed(number))


def gaussian(rounds: int, mu_sq: float = 1e-3) -> Price:
    return Price((Stretch(0, rounds, mu_sq, 0.0, 0.0),))


def sampled(rounds: int, epsilon: float = 0.1, delta: float = 1e-7) -> Price:
    return Price((Stretch(0, rounds, 0.0, 0.0, 0.0),), Cost(epsilon=epsilon, delta=delta))


def open_run(file: LedgerFile, number: int = 1, price: Price | None = None, **changes: Any) -> RunLedger:
    """Run `number` of the session of that number."""
    given = {
        "offer_digest": hexed(number + 1000),
        "offer": '{"offer": 1}',
        "secret": SECRET,
        "plan": hexed(number + 2000),
        "terms": {"epsilon_guaranteed": 1.0, "delta": 1e-6},
        "study": {"name": "a study", "purpose": "to know"},
        "price": gaussian(100) if price is None else price,
        "days": 7,
        "max_runs": 1000,
    }
    return file.open_run(hexed(number), hexed(number + 500), **(given | changes))


def reply_of(number: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return {name: torch.randn(5, dtype=torch.float64, generator=generator) for name in ("b", "a")}


def answer(run: RunLedger, round_index: int) -> dict[str, torch.Tensor]:
    """A round as a gate has it."""
    digest = broadcast(round_index)
    assert run.find(round_index, digest) is None
    run.debit(round_index, digest)
    reply = reply_of(round_index)
    run.store(round_index, reply, {"m": reply["a"] + 1})
    return reply


def state(book: Book) -> Any:
    """All that a book says, to compare."""
    account = book.account
    costs = account.charged, account.reserved, account.left
    return book.head, book.length, book.time, book.boot, book.enrolment, book.runs, book.sessions, costs


def on_disk(path: Path) -> Book:
    """What another process would find, without the checks of a file's pages."""
    connection = sqlite3.connect(path)
    try:
        return Book(chained(connection, LEDGER))
    finally:
        connection.close()
