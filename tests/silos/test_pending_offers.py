"""Offers that wait for the silo's operator: bounded, decided once, checked again at admission."""

import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import one_server
from support.breaking import kill_at_write
from support.daemons import Silo as Daemon
from support.daemons import enrolled_silo, short_folder
from support.deployed import POLICY, Caller, calling, enrolled, offer_of, resolved_of, write_silos
from support.one_server import OneServer

import silos.front.pending
from fedsim.common.errors import Busy, InputError, Refused
from fedsim.wire.frames import decode, opened
from fedsim.wire.messages import Offer, named
from silos.front.config import Config, PerRun, load_config
from silos.front.open_runs import OpenRuns
from silos.front.pending import Pending, PendingOffers
from silos.vault.approvals import APPROVED, REFUSED
from silos.vault.book import DAY, read
from silos.vault.ledger_file import LedgerFile

RESOLVED = resolved_of()
POINT = torch.zeros(5, dtype=torch.float64)
WAITS = "the silo's operator has to decide"


def offer(number: int = 1, **changes: Any) -> dict[str, Any]:
    return offer_of(RESOLVED, "silo-00", session=f"{number:064x}", **changes)


def digest(head: dict[str, Any]) -> str:
    return named(Offer.model_validate(head).text)


def config_of(folder: Path, **policy: Any) -> Config:
    (config,) = enrolled(write_silos(folder, RESOLVED, policy={"approve": "ask", **policy})[:1])
    return config


def again(config: Config, **policy: Any) -> Config:
    """The silo with another policy."""
    changed = config.policy.model_copy(update=policy)
    return config.model_copy(update={"policy": changed})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(tmp_path)


@contextmanager
def later(days: float) -> Iterator[None]:
    """So many days from now, by the ledger's clock."""
    with pytest.MonkeyPatch.context() as patch:
        before = silos.vault.journal.Clock.now
        patch.setattr("silos.vault.journal.Clock.now", lambda clock: before(clock) + int(days * DAY))
        yield


def left(caller: Caller) -> Any:
    return caller.silo.ledger.account.left


def test_an_offer_waits_until_it_is_approved_and_is_admitted_once(config):
    folder = PendingOffers(config.state)
    with calling(config) as caller:
        before = left(caller)
        frame = caller.send("offer", **offer())
        assert (frame.kind, frame.head["reason"], frame.head["again"]) == ("refusal", WAITS, True)
        assert left(caller) == before
        folder.decide(digest(offer()), APPROVED)
        run = caller.admitted(offer())["run"]
        assert list(folder.folder.iterdir()) == []
        spent = left(caller)
        assert caller.admitted(offer())["run"] == run
        assert left(caller) == spent
        assert caller.closed(run)["rounds"] == []
        assert caller.admitted(offer())["run"] == run  # closed, and not opened again
    with calling(config, head=caller.head) as caller:
        assert caller.refused("offer", **offer(2)) == WAITS  # an approval is of one offer


def test_only_the_owner_may_read_or_write_what_waits(config):
    with calling(config) as caller:
        caller.refused("offer", **offer())
    (file,) = (config.state / "offers").iterdir()
    PendingOffers(config.state).decide(file.stem, REFUSED, "no")
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (config.state / "offers").iterdir()]
    assert modes == [0o600, 0o600]
    assert stat.S_IMODE((config.state / "offers").stat().st_mode) == 0o700
    (config.state / "offers").chmod(0o770)
    with pytest.raises(InputError, match=r"offers'.*must be its owner's alone to write"), calling(config):
        pass


def test_a_repeated_offer_is_not_tried_out_again(config, monkeypatch):
    with calling(config) as caller:
        caller.refused("offer", **offer())
        monkeypatch.setattr("silos.front.offers.proposal_of", None)
        assert caller.refused("offer", **offer()) == WAITS


def test_what_the_policy_or_the_account_refuses_does_not_wait(config):
    with calling(config) as caller:
        assert "plan costs epsilon" in caller.refused("offer", **offer(noise_multiplier=0.1))
    with calling(again(config, approve="policy"), head=caller.head) as caller:
        for number in range(2, 7):
            if caller.send("offer", **offer(number, epsilon=4.0, delta=1e-5)).kind == "refusal":
                break
    with calling(config, head=caller.head) as caller:
        assert "cannot carry" in caller.refused("offer", **offer(9, epsilon=4.0, delta=1e-5))
    assert not (config.state / "offers").exists()


def test_the_operators_refusal_is_final_and_says_no_more_than_was_given(config):
    folder = PendingOffers(config.state)
    with calling(config) as caller:
        for number, reason in ((1, ""), (2, "not before May")):
            caller.refused("offer", **offer(number))
            folder.decide(digest(offer(number)), REFUSED, reason)
            frame = caller.send("offer", **offer(number))
            said = "the silo's operator has refused it" + (f": {reason}" if reason else "")
            assert (frame.head["reason"], frame.head["again"]) == (said, False)


def test_an_approval_that_is_taken_back_admits_nothing(config):
    folder = PendingOffers(config.state)
    with calling(config) as caller:
        caller.refused("offer", **offer())
        folder.decide(digest(offer()), APPROVED)
        folder.decide(digest(offer()), REFUSED)
        assert "has refused" in caller.refused("offer", **offer())
        with pytest.raises(InputError, match="was refused before"):
            folder.decide(digest(offer()), APPROVED)


def test_a_refusal_while_the_plan_is_tried_out_still_counts(config, monkeypatch):
    """The approval is used by who removes it first; the other is told."""
    folder, head, real = PendingOffers(config.state), offer(1), OpenRuns.considered
    with calling(config) as caller:
        assert caller.refused("offer", **head) == WAITS
        folder.decide(digest(head), APPROVED)

        def meanwhile(runs, asked):
            folder.decide(digest(head), REFUSED, "too soon")
            return real(runs, asked)

        monkeypatch.setattr(OpenRuns, "considered", meanwhile)
        assert caller.refused("offer", **head) == "the silo's operator has refused it: too soon"
        monkeypatch.setattr(OpenRuns, "considered", real)
        assert not caller.silo.ledger.book.runs
        assert caller.refused("offer", **head) == "the silo's operator has refused it: too soon"


def test_what_is_being_admitted_cannot_be_taken_back(config, monkeypatch):
    folder, head, real = PendingOffers(config.state), offer(1), LedgerFile.open_run
    said = []

    def meanwhile(ledger, *told, **more):
        with pytest.raises(InputError, match="is being admitted: `fedsim ledger show` has its run"):
            folder.decide(digest(head), REFUSED)
        said.append("told")
        return real(ledger, *told, **more)

    with calling(config) as caller:
        assert caller.refused("offer", **head) == WAITS
        folder.decide(digest(head), APPROVED)
        monkeypatch.setattr(LedgerFile, "open_run", meanwhile)
        assert caller.send("offer", **head).kind == "admission"
    assert said == ["told"]


def test_an_approval_lapses_with_its_offer(config):
    folder = PendingOffers(config.state)
    with calling(config) as caller:
        caller.refused("offer", **offer())
        folder.decide(digest(offer()), APPROVED)
        with later(7.01):
            assert caller.refused("offer", **offer()) == WAITS  # as if it had never been asked
            assert folder.decision(digest(offer())) == ("", "")
        caller.refused("offer", **offer(2))
        assert len(list(folder.folder.iterdir())) == 2
    with later(20), calling(config, head=caller.head):
        assert list(folder.folder.iterdir()) == []


def test_a_policy_that_has_changed_is_asked_again(config):
    """One that allows the run no more, and one by which it would cost something else."""
    with calling(config) as caller:
        caller.refused("offer", **offer())
    PendingOffers(config.state).decide(digest(offer()), APPROVED)
    with calling(again(config, algorithms=("local_sgd",)), head=caller.head) as caller:
        assert "does not allow algorithm" in caller.refused("offer", **offer())
    cheaper = again(config, per_run=PerRun(epsilon=1.0, delta=1e-6))
    with calling(cheaper, head=caller.head) as caller:
        assert caller.refused("offer", **offer()) == WAITS
    with calling(config, head=caller.head) as caller:
        assert caller.refused("offer", **offer()) == WAITS  # what was approved was another cost


def test_a_lifetime_that_another_run_has_used_is_not_spent_twice(config):
    folder = PendingOffers(config.state)
    heads = [offer(number, epsilon=4.0, delta=1e-5) for number in range(1, 9)]
    with calling(config) as caller:
        for head in heads:
            assert caller.refused("offer", **head) == WAITS
            folder.decide(digest(head), APPROVED)
        frames = [caller.send("offer", **head) for head in heads]
        kinds = [frame.kind for frame in frames]
        assert set(kinds) == {"admission", "refusal"}
        assert kinds == sorted(kinds)
        assert "cannot carry this run" in frames[-1].head["reason"]
        assert caller.silo.ledger.account.reserved.mu_sq <= caller.silo.ledger.enrolment.caps.total.mu_sq


def test_a_flood_of_offers_is_refused_and_moves_none(config, monkeypatch):
    monkeypatch.setattr(silos.front.pending, "MOST", 3)
    folder = PendingOffers(config.state)
    with calling(config) as caller:
        first = [offer(number) for number in range(3)]
        assert [caller.refused("offer", **head) for head in first] == [WAITS] * 3
        for number in range(3, 6):
            frame = caller.send("offer", **offer(number))
            assert "3 offers wait" in frame.head["reason"]
            assert frame.head["again"]  # its server asks again, and may find room
        assert {file.stem for file in folder.folder.iterdir()} == {digest(head) for head in first}
        folder.decide(digest(first[0]), REFUSED)
        assert caller.refused("offer", **offer(9)) == WAITS
        long = offer(10, rounds=list(range(100_000)))
        assert "a ledger keeps 200,000" in caller.refused("offer", **long)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        lambda tree: {**tree, "lapses": 10**18, "offer": tree["offer"].replace("0.5", "0.7")},
        lambda tree: {**tree, "extra": 1},
    ],
)
def test_a_damaged_file_is_no_offer_and_its_approval_none(config, damage):
    with calling(config) as caller:
        caller.refused("offer", **offer())
    (file,) = (config.state / "offers").iterdir()
    whole = file.read_bytes()
    PendingOffers(config.state).decide(file.stem, APPROVED)
    file.write_bytes(damage if isinstance(damage, bytes) else json.dumps(damage(json.loads(whole))).encode())
    with calling(config, head=caller.head) as caller:
        assert caller.refused("offer", **offer()) == WAITS
    assert json.loads(file.read_bytes())["offer"] == json.loads(whole)["offer"]
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.slow
def test_a_daemon_killed_at_any_write_has_an_offer_waiting_approved_or_admitted():
    """Of a real process. Where nothing was approved nothing is admitted, and what was is admitted once."""
    with short_folder() as home:
        silo = Daemon(enrolled_silo(home, approve="ask"))
        folder = PendingOffers(silo.home / "state")
        died = [0, 0]  # before the approval, after it
        for write in range(100):
            asked = one_server.offer(session=write + 1, epsilon=0.1)
            name = named(asked.text)
            silo.start(partial(kill_at_write, write), wait=False)
            waits = said(silo, asked)
            if waits is not None:
                assert waits["reason"] == WAITS
                folder.decide(name, APPROVED)
            admitted = None if waits is None else said(silo, asked)
            survived = admitted is not None
            silo.kill()
            died[waits is not None] += not survived
            book = read(silo.ledger)
            assert waits is not None or asked.session not in book.sessions
            silo.start()
            if waits is None:
                assert said(silo, asked)["reason"] == WAITS
                folder.decide(name, APPROVED)
            run = said(silo, asked)["run"]
            assert survived is False or run == admitted["run"]
            assert said(silo, asked)["run"] == run
            assert folder.decision(name) == ("", "")
            assert folder.find(name, 0) is None
            silo.kill()
            if survived:
                break
        book = read(silo.ledger)
        assert len(book.runs) == len(book.sessions) == write + 1
        assert book.account.reserved.mu_sq == pytest.approx(
            sum(r.price.whole.mu_sq for r in book.runs.values())
        )
        assert min(died) >= 3, died


def said(silo: Daemon, asked: Offer) -> Any:
    """The head of the daemon's answer; None if it died before."""
    until = time.monotonic() + 60
    while silo.process is not None and silo.process.is_alive() and time.monotonic() < until:
        if silo.listens():
            with OneServer(silo.socket, silo.identity) as server:
                data = server.exchange(one_server.frame(asked))
            if len(data) > 8:
                return decode(opened(data[8:])[0]).head
        time.sleep(0.005)
    return None


def test_where_the_policy_decides_nothing_waits(tmp_path):
    config = config_of(tmp_path, approve="policy")
    with calling(config) as caller:
        caller.admitted(offer())
    assert not (config.state / "offers").exists()


def test_what_the_operator_reads_is_what_is_admitted(config):
    with calling(config) as caller:
        caller.refused("offer", **offer())
        (kept,) = PendingOffers(config.state).all(0)
        assert kept.lapses - kept.asked == 7 * DAY
        PendingOffers(config.state).decide(kept.digest, APPROVED)
        run = caller.silo.ledger.run(caller.admitted(offer())["run"]).record
        assert run.offer == kept.digest
        assert dict(run.terms) == kept.terms
        assert run.price.whole.tree() == kept.cost
        assert len(run.price.rounds) == kept.rounds


def test_a_wait_that_is_kept_twice_is_kept_once(tmp_path):
    folder = PendingOffers(tmp_path)
    waits = Pending('{"a": 1}', "00", {}, {}, 1, "", 0, 10)
    for _ in range(2):
        with pytest.raises(Busy):
            folder.keep(waits)
    assert folder.all(5) == [waits]
    with pytest.raises(Busy):
        folder.keep(replace(waits, offer='{"a": 2}', asked=11, lapses=20))
    assert [each.offer for each in folder.all(0)] == ['{"a": 2}']  # the first had lapsed by then


def test_a_refusal_that_comes_while_an_offer_is_tried_out_stays(tmp_path):
    """As does the draft of a command that writes one beside the daemon."""
    folder = PendingOffers(tmp_path)
    waits = Pending('{"a": 1}', "00", {}, {}, 1, "", 0, 10)
    with pytest.raises(Busy):
        folder.keep(waits)
    folder.decide(waits.digest, APPROVED)
    folder.decide(waits.digest, REFUSED, "no")
    draft = folder.folder / ".deciding-x"
    draft.touch()
    with pytest.raises(Busy):
        folder.keep(waits)
    assert folder.decision(waits.digest) == (REFUSED, "no")
    assert draft.exists()
    folder.begin(5)
    assert not draft.exists()


def test_the_policys_fields_are_checked(tmp_path):
    (path,) = write_silos(tmp_path, RESOLVED, policy={"approve": "maybe"})[:1]
    with pytest.raises(InputError, match=r"silo\.policy\.approve: 'maybe'"):
        load_config(path)
    assert "approve" not in POLICY
    assert issubclass(Busy, Refused)
