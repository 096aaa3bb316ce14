"""Rounds of a ledger on disk: one debit, one reply, the same bytes again, through restarts."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.ledgers import (
    CAPS,
    SECRET,
    answer,
    broadcast,
    enrolled,
    gaussian,
    hexed,
    on_disk,
    open_run,
    reply_of,
    sampled,
    state,
)

from fedsim.common.errors import Refused
from silos.vault.account import Price, Stretch, total
from silos.vault.book import read
from silos.vault.ledger_file import LedgerFile


@pytest.fixture
def path(tmp_path):
    return enrolled(tmp_path)[0]


def test_a_reply_is_the_same_bytes_again_also_after_a_restart(path):
    odd = {
        "z": torch.tensor([float("nan"), -0.0, 5e-324, float("inf")], dtype=torch.float64),
        "a": torch.tensor([[1.5], [2.5]], dtype=torch.float32),
        "0-d": torch.tensor(0.1, dtype=torch.float64),
        "none": torch.zeros(0, dtype=torch.float64),
    }
    shared = torch.arange(6, dtype=torch.float64)
    odd |= {"row": shared[:3], "column": shared[::2], "same": shared[:3]}
    with LedgerFile.open(path) as file:
        run = open_run(file)
        run.debit(0, broadcast(0))
        run.store(0, odd, {"m": shared})
        head = run.head_of(0)
    for _ in range(2):
        with LedgerFile.open(path) as file:
            run = file.run(run.run)
            found = run.find(0, broadcast(0))
            assert found is not None
            assert sorted(found) == sorted(odd)
            for name, value in odd.items():
                assert found[name].dtype == value.dtype
                assert found[name].shape == value.shape
                assert found[name].numpy().tobytes() == value.contiguous().numpy().tobytes()
            assert torch.equal(run.memory["m"], shared)
            assert run.head_of(0) == head
            assert run.offer == '{"offer": 1}'
            assert run.secret == SECRET
            assert run.debited == [0]
            assert run.digest(0) == broadcast(0).hex()


def test_a_round_is_paid_for_once_and_answered_once(path):
    with LedgerFile.open(path) as file:
        run = open_run(file)
        answer(run, 0)
        for again in (lambda: run.debit(0, broadcast(0)), lambda: run.store(0, reply_of(1), {})):
            with pytest.raises(Refused):
                again()
        with pytest.raises(Refused, match="another broadcast"):
            run.find(0, broadcast(9))
        with pytest.raises(Refused, match="another broadcast"):
            run.debit(0, broadcast(9))
        answer(run, 1)
        with pytest.raises(Refused, match="only the last"):
            run.find(0, broadcast(0))
        with pytest.raises(Refused, match="not under way"):
            run.store(2, reply_of(2), {})
        with pytest.raises(Refused, match="not in the run's plan"):
            run.debit(100, broadcast(100))
        assert run.debited == [0, 1]


def test_a_round_begun_is_over_in_this_process_and_open_to_the_next_for_the_same_broadcast(path):
    with LedgerFile.open(path) as file:
        run = open_run(file)
        run.debit(3, broadcast(3))
        with pytest.raises(Refused, match="came to no reply"):
            run.find(3, broadcast(3))
        with pytest.raises(Refused, match="came to no reply"):
            run.debit(3, broadcast(3))
    with LedgerFile.open(path) as file:
        run, used = file.run(run.run), file.run(run.run).record.used
        with pytest.raises(Refused, match="another broadcast"):
            run.find(3, broadcast(4))
        with pytest.raises(Refused, match="another broadcast"):
            run.debit(3, broadcast(4))
        assert run.find(3, broadcast(3)) is None
        with pytest.raises(Refused, match="not under way"):
            run.store(3, reply_of(3), {})
        run.debit(3, broadcast(3))
        assert run.debited == [3]
        assert run.record.used == used
        with pytest.raises(Refused, match="came to no reply"):
            run.find(3, broadcast(3))
        run.store(3, reply_of(3), {})
        assert run.find(3, broadcast(3)) is not None


@pytest.mark.parametrize("reason", ["too large", ""])
def test_a_refused_round_stays_refused_through_restarts(path, reason):
    with LedgerFile.open(path) as file:
        run = open_run(file)
        run.debit(0, broadcast(0))
        run.refuse(0, reason)
    with LedgerFile.open(path) as file:
        run = file.run(run.run)
        for ask in (run.find, run.debit):
            with pytest.raises(Refused, match=f"^{reason}$"):
                ask(0, broadcast(0))


def test_a_session_is_one_run(path):
    with LedgerFile.open(path) as file:
        run = open_run(file)
        assert open_run(file, secret=b"other", days=1) is run
        assert file.session(hexed(1)) is run
        assert file.session(hexed(2)) is None
        with pytest.raises(Refused, match="another offer"):
            open_run(file, offer_digest=hexed(7))
        with pytest.raises(Refused, match="taken"):
            file.open_run(
                hexed(9),
                run.run,
                offer_digest=hexed(1),
                offer="",
                secret=b"",
                plan=hexed(1),
                terms={},
                study={},
                price=gaussian(1),
                days=1,
                max_runs=10,
            )
        with pytest.raises(Refused, match="no run"):
            file.run(hexed(77))
        file.close_run(run.run)
        assert open_run(file) is run
        assert not run.open
        assert file.open_runs() == []


def test_two_runs_fit_and_a_third_is_refused_until_one_returns_what_it_did_not_use(path):
    most = CAPS.total.mu_sq
    price = Price((Stretch(0, 4, most / 10, 0.0, 0.0),))
    with LedgerFile.open(path) as file:
        first, _ = open_run(file, 1, price), open_run(file, 2, price)
        length = file.book.length
        with pytest.raises(Refused, match="lifetime budget"):
            open_run(file, 3, price)
        assert file.book.length == length
        assert file.session(hexed(3)) is None
        answer(first, 2)
        charged = file.close_run(first.run)
        assert charged == price.of([2])
        assert file.close_run(first.run) == charged
        open_run(file, 3, price)
        with pytest.raises(Refused, match="closed"):
            first.debit(3, broadcast(3))
        left = file.account.left
    with LedgerFile.open(path) as file:
        assert file.account.left == left
        assert [run.run for run in file.open_runs()] == [hexed(502), hexed(503)]


def test_a_round_that_was_under_way_when_its_run_closed_is_charged_and_may_be_stored(path):
    with LedgerFile.open(path) as file:
        run = open_run(file)
        run.debit(0, broadcast(0))
        assert file.close_run(run.run).mu_sq > 0
        run.store(0, reply_of(0), {})
        assert run.find(0, broadcast(0)) is not None
        before = state(file.book)
        with pytest.raises(Refused):
            run.debit(1, broadcast(1))
        assert state(file.book) == before


STEP = st.tuples(st.sampled_from("ooddddrrxcR"), st.integers(0, 5), st.integers(0, 3))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEP, max_size=40))
def test_whatever_happens_all_that_was_paid_for_fits_the_caps(tmp_path_factory, steps):
    """Runs opened, asked, closed and restarts in any order: against brute force over all debits."""
    path = enrolled(tmp_path_factory.mktemp("any"))[0]
    unit = CAPS.total.mu_sq / 7.5
    prices = [gaussian(4, unit), Price((Stretch(0, 4, unit / 2, unit, 0.0),)), sampled(4, 0.4, 4e-7)]
    file, paid = LedgerFile.open(path), {}
    for step, number, index in steps:
        price = prices[number % 3]
        try:
            if step == "R":
                file.close()
                file = LedgerFile.open(path)
            elif step == "o":
                open_run(file, number, price)
            elif step == "d":
                file.run(hexed(number + 500)).debit(index, broadcast(index))
                paid.setdefault(number, set()).add(index)
            elif step == "r":
                file.run(hexed(number + 500)).store(index, reply_of(index), {})
            elif step == "x":
                file.run(hexed(number + 500)).refuse(index, "no")
            else:
                file.close_run(hexed(number + 500))
        except Refused:
            pass
        costs = [prices[n % 3].of(rounds) for n, rounds in paid.items()]
        found = total(costs)
        assert all(value <= CAPS.total.tree()[name] for name, value in found.tree().items())
        held = total([file.account.charged, file.account.reserved]).tree()
        assert all(value >= found.tree()[name] for name, value in held.items())
    assert {n: set(file.run(hexed(n + 500)).debited) for n in paid} == paid
    assert state(file.book) == state(on_disk(path)) == state(read(path))
    file.close()


def test_nothing_of_terms_or_offers_changes_between_life_and_replay(path):
    """Tuples become lists at once, not only after a restart."""
    terms = {"notices": ("a", "b"), "epsilon": 1.0, "n": 3}
    with LedgerFile.open(path) as file:
        run = open_run(file, terms=terms)
        live = run.record.terms
        assert live == json.loads(json.dumps(terms))
    with LedgerFile.open(path) as file:
        assert file.run(run.run).record.terms == live
