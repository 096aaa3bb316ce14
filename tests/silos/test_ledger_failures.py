"""A disk that is full, read-only or broken: refused, nothing from memory, and right again after a restart."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.full_disk import full_disk
from support.helpers import LIMITS, Unrepeatable, asking, plan_of, scripted, silos_of
from support.ledgers import answer, broadcast, enrolled, gaussian, hexed, open_run, reply_of, state

from fedsim.common import store
from fedsim.common.errors import Refused
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.plan import Terms
from silos.front.served import Served
from silos.vault.admission import admit, price
from silos.vault.book import read
from silos.vault.gate import Gate, lay_out
from silos.vault.ledger import RunLedger
from silos.vault.ledger_file import LedgerFile

Failure = Callable[[LedgerFile, Path], object]


@contextmanager
def full(file: LedgerFile, path: Path) -> Iterator[None]:
    """The database may not have one page more; replies need some."""
    pages = file.connection.execute("PRAGMA page_count").fetchone()[0]
    file.connection.execute(f"PRAGMA max_page_count = {pages}")
    yield
    file.connection.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def limited(file: LedgerFile, path: Path) -> Iterator[None]:
    with full_disk(path.with_name(f"{path.name}-wal").stat().st_size):
        yield


@contextmanager
def read_only(file: LedgerFile, path: Path) -> Iterator[None]:
    file.connection.execute("PRAGMA query_only = 1")
    yield
    file.connection.execute("PRAGMA query_only = 0")


@contextmanager
def busy(file: LedgerFile, path: Path) -> Iterator[None]:
    """Something else writes the file, which no fedsim does."""
    file.connection.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


LARGE = {"g": torch.zeros(50_000, dtype=torch.float64)}


@pytest.mark.parametrize("failure", [full, limited, read_only, busy])
@pytest.mark.parametrize("at", ["debit", "store", "refuse", "open_run", "close_run"])
def test_a_write_that_fails_is_refused_and_so_is_everything_until_a_restart(tmp_path, failure, at):
    path = enrolled(tmp_path)[0]
    file = LedgerFile.open(path)
    run = open_run(file)
    answer(run, 0)
    for r in (97, 98, 99):
        run.debit(r, broadcast(r))
        run.refuse(r, "x" * 50_000)  # cut, it fills half of a page: the next one needs a page of its own
    run.debit(1, broadcast(1))
    before = state(file.book)
    steps: dict[str, Callable[[], object]] = {
        "debit": lambda: [run.debit(r, broadcast(r)) for r in range(2, 97)],
        "store": lambda: run.store(1, LARGE, LARGE),
        "refuse": lambda: run.refuse(1, "x" * 50_000),
        "open_run": lambda: open_run(file, 2, gaussian(1), terms={"text": "y" * 50_000}),
        "close_run": lambda: file.close_run(run.run, {"text": "z" * 50_000}),
    }
    with failure(file, path):
        with pytest.raises(Refused, match="cannot be written"):
            steps[at]()
        last = len(run.debited)
    assert file.failed
    for ask in (
        lambda: run.find(0, broadcast(0)),
        lambda: run.find(1, broadcast(1)),
        lambda: run.debit(96, broadcast(96)),
        lambda: run.store(1, reply_of(1), {}),
        lambda: run.memory,
        lambda: open_run(file, 3, gaussian(1)),
        lambda: file.close_run(run.run),
        lambda: file.knows(""),
    ):
        with pytest.raises(Refused, match="cannot be written"):
            ask()
    if at != "debit":
        assert state(file.book) == before
    file.close()
    with LedgerFile.open(path) as file:
        run = file.run(run.run)
        assert len(run.debited) == last
        assert run.find(1, broadcast(1)) is None or at == "store"
        assert run.open


def test_a_full_disk_at_the_start_is_refused(tmp_path):
    path = enrolled(tmp_path)[0]
    before = path.read_bytes()
    with full_disk(100), pytest.raises(Refused):
        LedgerFile.open(path)
    assert path.read_bytes() == before
    LedgerFile.open(path).close()  # which no lock is left to forbid


def test_a_full_disk_at_enrolment_leaves_nothing(tmp_path):
    with full_disk(1000), pytest.raises(Refused, match="cannot be read or written"):
        enrolled(tmp_path)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_a_ledger_that_cannot_be_written_is_not_opened(tmp_path, monkeypatch):
    path = enrolled(tmp_path)[0]

    def read_only_connection(place, *_, **options):
        return sqlite3.connect(f"{place.as_uri()}?mode=ro", uri=True, isolation_level=None)

    monkeypatch.setattr(store, "connect", read_only_connection)
    with pytest.raises(Refused, match="cannot be written"):
        LedgerFile.open(path)
    assert read(path).length == 1  # reading needs no right to write


def written(path: Path, change: str) -> None:
    """By another process."""
    with closing(sqlite3.connect(path)) as other:
        other.execute(change)
        other.commit()


@pytest.mark.parametrize("table", ["reply", "memory"])
def test_a_stored_reply_that_changed_under_a_running_silo_is_not_given(tmp_path, table):
    path = enrolled(tmp_path)[0]
    with LedgerFile.open(path) as file:
        run = open_run(file)
        answer(run, 0)
        written(path, f"UPDATE replies SET {table} = x'00'")
        with pytest.raises(Refused, match="damaged"):
            run.find(0, broadcast(0))
        with pytest.raises(Refused, match="damaged"):
            _ = run.memory


def test_an_entry_written_by_someone_else_stops_the_silo(tmp_path):
    path = enrolled(tmp_path)[0]
    with LedgerFile.open(path) as file:
        run: RunLedger = open_run(file)
        written(path, f"INSERT INTO entries VALUES ({file.book.length + 1}, 0, 'x', '{{}}', x'00')")
        with pytest.raises(Refused, match="cannot be written"):
            run.debit(0, broadcast(0))
        assert file.failed


def test_every_commit_waits_for_the_disk(tmp_path):
    path = enrolled(tmp_path)[0]
    assert path.read_bytes()[18:20] == b"\2\2"  # as enrolled: a kill while it changes could not be read
    with LedgerFile.open(path) as file:
        assert file.connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert file.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_payload_that_is_no_json_costs_nothing(tmp_path):
    with LedgerFile.open(enrolled(tmp_path)[0]) as file:
        before = state(file.book)
        with pytest.raises(ValueError, match="JSON"):
            open_run(file, terms={"epsilon": float("nan")})
        assert state(file.book) == before
        assert not file.failed


# A gate over a ledger on disk.

PROBLEM, ALGORITHM = LogisticRegression(4), scripted(asking(), 2)
PLAN, DATA = plan_of(ALGORITHM, PROBLEM, [20]), silos_of(PROBLEM, [20])


def gate_over(file: LedgerFile) -> Served:
    """The gate of session 1, as a silo's process makes it when it is first asked; its noise never repeats."""
    terms, records = Terms("silo0", 20, 1.0, 1e-6, range(2)), lay_out(DATA, PROBLEM, torch.float64)
    (admitted,) = admit(PLAN, [terms], GAUSSIAN, LIMITS)
    run = file.session(hexed(1)) or open_run(file, price=price(PLAN, admitted, GAUSSIAN))
    entropy: Any = Unrepeatable()
    return Served(
        Gate(records, PROBLEM, PLAN, [terms], GAUSSIAN, entropy, [run], LIMITS, torch.float64), ALGORITHM
    )


def point(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((4,), value, dtype=torch.float64)}


@pytest.mark.parametrize("step", ["debit", "store"])
def test_a_disk_that_fails_lets_nothing_out_and_the_round_may_be_answered_after_a_restart(
    tmp_path, step, monkeypatch
):
    path = enrolled(tmp_path)[0]
    with LedgerFile.open(path) as file:
        gate, note = gate_over(file), file.note
        first = gate.answer(0, point(0))["g"]
        left = iter({"debit": [True], "store": [False, True]}[step])

        def failing(*arguments):
            if next(left, True):
                file.connection.execute("PRAGMA query_only = 1")
            return note(*arguments)

        monkeypatch.setattr(file, "note", failing)
        for _ in range(3):
            with pytest.raises(Refused, match="cannot be written"):
                gate.answer(1, point(1))
        with pytest.raises(Refused):
            gate.answer(0, point(0))
    with LedgerFile.open(path) as file:
        gate, run = gate_over(file), file.session(hexed(1))
        assert run.debited == ([0] if step == "debit" else [0, 1])
        assert torch.equal(gate.answer(0, point(0))["g"], first)
        if step == "store":  # it is paid for, by its first broadcast
            with pytest.raises(Refused, match="another broadcast"):
                gate.answer(1, point(2))
        again = gate.answer(1, point(1))["g"]
        assert torch.equal(gate.answer(1, point(1))["g"], again)
