"""Time in a ledger: days of runs and of the silo's life, and clocks that jump."""

import time
from datetime import UTC, date, datetime

import pytest
from support.deployed import calling, resolved_of, write_silos
from support.ledgers import answer, broadcast, enrolled, gaussian, open_run, state

from fedsim.common.errors import Refused
from silos.front.config import load_config
from silos.front.enrolment import enrol
from silos.vault import journal
from silos.vault.account import FREE
from silos.vault.book import read
from silos.vault.journal import AHEAD, SECOND, Clock, Journal
from silos.vault.ledger_file import LedgerFile

DAY = 86_400
NOON = int(datetime(2030, 5, 5, 12, tzinfo=UTC).timestamp())


class Hands:
    """Wall and monotonic seconds, to move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.ticks = float(NOON), 1000.0
        monkeypatch.setattr(journal.time, "time", lambda: self.wall)
        monkeypatch.setattr(journal.time, "time_ns", lambda: int(self.wall * 1e9))
        monkeypatch.setattr(journal.time, "clock_gettime_ns", lambda _: int(self.ticks * 1e9))

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.ticks += seconds


@pytest.fixture
def hands(monkeypatch):
    return Hands(monkeypatch)


def test_time_starts_at_the_later_of_stored_and_wall_and_moves_with_the_monotonic_clock(hands):
    ahead, behind = Clock((NOON + 50) * SECOND), Clock((NOON - 50) * SECOND)
    assert (ahead.now(), behind.now()) == ((NOON + 50) * SECOND, NOON * SECOND)
    hands.pass_by(10)
    assert (ahead.now(), behind.now()) == ((NOON + 60) * SECOND, (NOON + 10) * SECOND)
    for jump in (1e9, -2e9):
        hands.wall += jump
        assert behind.now() == (NOON + 10) * SECOND


def test_the_real_clock_is_near_the_wall_clock():
    assert abs(Clock(0).now() / SECOND - time.time()) < 60


def test_a_run_that_is_not_closed_returns_what_it_did_not_use_after_its_days(tmp_path, hands):
    path = enrolled(tmp_path)[0]
    with LedgerFile.open(path) as file:
        run, later = open_run(file, 1, gaussian(10), days=2), open_run(file, 2, gaussian(10), days=4)
        answer(run, 0)
        hands.pass_by(2 * DAY - 1)
        assert len(file.open_runs()) == 2
        hands.pass_by(1)
        with pytest.raises(Refused, match="closed"):
            run.debit(1, broadcast(1))
        assert run.record.charged == gaussian(10).of([0])
        assert [each.run for each in file.open_runs()] == [later.run]
    hands.wall += 3 * DAY
    with LedgerFile.open(path) as file:  # while no process ran
        assert file.open_runs() == []
        assert file.account.reserved.mu_sq == 0
        assert file.run(run.run).find(0, broadcast(0)) is not None


def test_runs_closed_unused_cost_no_room_but_a_day_has_only_so_many(tmp_path, hands):
    path = enrolled(tmp_path)[0]
    with LedgerFile.open(path) as file:
        paid = open_run(file, 1, max_runs=2)
        answer(paid, 0)
        file.close_run(paid.run)
        for number in range(2, 102):
            hands.pass_by(60)
            unused = open_run(file, number, offer="x" * 200_000, max_runs=2)
            file.close_run(unused.run)
        assert open_run(file, 101, offer="x" * 200_000).run == unused.run  # the same offer again
        with pytest.raises(Refused, match="last 24 hours"):
            open_run(file, 102)
        hands.pass_by(DAY - 99 * 60)  # until the first of them was a day ago
        answer(open_run(file, 102, max_runs=2), 0)
        with pytest.raises(Refused, match="allows 2 runs"):
            open_run(file, 103, max_runs=2)
        live = state(file.book)
        assert live == state(read(path))
    assert path.stat().st_size < 1_000_000
    with LedgerFile.open(path) as file:
        assert file.run(unused.run).record.charged == FREE


@pytest.mark.parametrize("jump", [-10 * 365 * DAY, 10 * 365 * DAY])
def test_a_wall_clock_that_jumps_while_the_silo_runs_changes_nothing(tmp_path, hands, jump):
    path = enrolled(tmp_path, date(2031, 1, 1))[0]
    with LedgerFile.open(path) as file:
        run = open_run(file, days=1)
        hands.wall += jump
        answer(run, 0)
        assert file.open_runs() == [run]
        assert file.now() == NOON * SECOND
        assert file.book.time == NOON * SECOND


def test_a_wall_clock_set_back_between_starts_gives_no_time_back(tmp_path, hands):
    path = enrolled(tmp_path)[0]
    with LedgerFile.open(path) as file:
        open_run(file, days=1)
        hands.pass_by(DAY / 2)
        file.note("noted", {})
    hands.wall -= 5 * DAY
    with LedgerFile.open(path) as file:
        assert file.now() == (NOON + DAY // 2) * SECOND
        hands.pass_by(DAY / 2)
        assert file.open_runs() == []
    assert state(read(path))  # entries' times never fall: the chain would be refused


def test_after_its_last_day_a_silo_pays_for_nothing(tmp_path, hands):
    path = enrolled(tmp_path, date(2030, 5, 6))[0]
    with LedgerFile.open(path) as file:
        run = open_run(file, days=100)
        hands.pass_by(36 * 3600 - 1)
        answer(run, 0)
        hands.pass_by(1)
        with pytest.raises(Refused, match="expired"):
            run.debit(1, broadcast(1))
        with pytest.raises(Refused, match="expired"):
            open_run(file, 2)
        assert run.find(0, broadcast(0)) is not None
        file.close_run(run.run)
    hands.wall -= 1000 * DAY
    with LedgerFile.open(path) as file, pytest.raises(Refused, match="expired"):
        open_run(file, 2)


def far_ahead(path, hands):
    """A ledger with an open run, and a clock that is a second too far ahead for a start; its book then."""
    with LedgerFile.open(path) as file:
        open_run(file, days=1)
    hands.wall = NOON + AHEAD / SECOND + 1
    return read(path)


def test_a_start_far_ahead_of_the_last_entry_writes_nothing_and_the_silo_lives_on(tmp_path, hands):
    path = enrolled(tmp_path, date(2031, 1, 1))[0]
    before = far_ahead(path, hands)
    for years in (0, 100):
        hands.wall += years * 365 * DAY
        with pytest.raises(Refused, match=r"days after the ledger's last entry \(2030-05-05\).*accept-time"):
            LedgerFile.open(path)
        assert state(read(path)) == state(before)
    hands.wall = NOON + 60
    with LedgerFile.open(path) as file:
        assert len(file.open_runs()) == 1
        assert file.now() == (NOON + 60) * SECOND
    hands.wall = NOON + 60 + AHEAD / SECOND
    LedgerFile.open(path).close()  # so many days are no fault


def test_a_time_is_accepted_up_to_what_was_named_and_for_30_days(tmp_path, hands):
    path = enrolled(tmp_path)[0]
    before = far_ahead(path, hands)
    now = int(hands.wall) * SECOND
    for until in (1, now - SECOND):
        with pytest.raises(Refused, match="accept-time"):
            Journal.open(path, until=until)
        assert read(path).head == before.head
    Journal.open(path, until=now).close()
    found = read(path)
    assert (found.length, found.time, found.boot) == (before.length + 1, now, before.boot)
    hands.wall += AHEAD / SECOND + 1
    with pytest.raises(Refused, match="accept-time"):
        LedgerFile.open(path)
    hands.wall -= 1
    with LedgerFile.open(path) as file:
        assert file.open_runs() == []


def test_a_silo_that_was_idle_for_long_starts_again(tmp_path, hands):
    """It leaves an entry a day, by its own time: what the wall clock says meanwhile changes nothing."""
    (file,) = write_silos(tmp_path, resolved_of())[:1]
    enrol(load_config(file))
    with calling(load_config(file)) as caller:
        first = caller.silo.ledger.book.length
        for hour in range(24 * 60):
            hands.pass_by(3600)
            hands.wall += 1e9 if hour == 9 else 0.0
            assert caller.silo.tend()
        hands.wall -= 1e9
        assert caller.silo.ledger.book.length == first + 60
        assert caller.silo.ledger.now() == caller.silo.ledger.book.time == int(hands.wall) * SECOND
    hands.wall += 29 * DAY
    with calling(load_config(file)) as caller:
        assert caller.send("hello").kind == "greeting"
