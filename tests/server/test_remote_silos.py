"""What a server believes of replies, and how a round goes on without a silo."""

from collections.abc import Callable, Mapping

import pytest
import torch
from support.channels import (
    Answer,
    Enrolled,
    Fault,
    InMemory,
    absent,
    enrolled_federation,
    garbled,
    in_round,
    late,
    lying,
    read,
)
from support.deployed import resolved_of
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.deployment.offers import offers_of
from fedsim.wire.frames import Frame, encode, sealed
from server.federation import NOT_ASKED, RemoteSilos, Unanswered
from server.participation import schedule
from server.replies import Form, shown

RESOLVED = resolved_of()
SESSION = "5e" * 32
LIAR, SECOND, THIRD = "silo-00", "silo-01", "silo-02"
D = RESOLVED.problem.dimension
ZERO = {"w": torch.zeros(D, dtype=torch.float64)}


@pytest.fixture
def enrolled(tmp_path):
    return enrolled_federation(tmp_path, RESOLVED)


@pytest.fixture
def channel(enrolled):
    with enrolled.opened(seeded=True) as made:
        yield made


class Run:
    """A run that the enrolled silos have admitted."""

    def __init__(self, enrolled: Enrolled, channel: InMemory, least: int, patience: float) -> None:
        identities = enrolled.federation.identities
        self.silos = RemoteSilos(channel, identities, 0.1, least, patience)
        self.silos.hello()
        rounds = schedule(3, None, RESOLVED.trace.holds, 0, 0)
        self.offers = offers_of(RESOLVED, SESSION, rounds)
        self.admissions, _ = self.silos.offer(self.offers)
        form = Form(RESOLVED.trace.messages, torch.float64)
        self.silos.begin({name: said.run for name, said in self.admissions.items()}, form)

    def ask(self, r: int = 0) -> tuple[list[int], Tensor, Mapping[int, str]]:
        members, messages, left_out = self.silos.answer(r, ZERO, [0, 1, 2])
        assert list(messages) == ["g"]
        assert messages["g"].shape == (len(members), D)
        return list(members), messages["g"], left_out


@pytest.fixture
def start(enrolled, channel):
    return lambda least=2, patience=0.2: Run(enrolled, channel, least, patience)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """What all silos answer to round 0; their noise is seeded."""
    enrolled = enrolled_federation(tmp_path_factory.mktemp("honest"), RESOLVED)
    with enrolled.opened(seeded=True) as channel:
        return Run(enrolled, channel, 3, 0.0).ask()[1]


def test_all_silos_answer(start, honest):
    members, rows, left_out = start().ask()
    assert members == [0, 1, 2]
    assert left_out == {}
    assert torch.equal(rows, honest)
    assert len({tuple(row.tolist()) for row in rows}) == 3


Change = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
LIES: dict[str, tuple[Change, str]] = {
    "NaN": (lambda a: {"g": a["g"].clone().fill_(float("nan"))}, "not finite or above"),
    "one NaN": (lambda a: {"g": a["g"].index_fill(0, torch.tensor([2]), float("nan"))}, "not finite"),
    "infinite": (lambda a: {"g": a["g"] + float("inf")}, "not finite"),
    "huge": (lambda a: {"g": a["g"].clone().fill_(1.1e6)}, "above 1e+06"),
    "longer": (lambda a: {"g": torch.cat([a["g"], a["g"]])}, "another shape or type"),
    "matrix": (lambda a: {"g": a["g"][None]}, "another shape or type"),
    "float32": (lambda a: {"g": a["g"].float()}, "another shape or type"),
    "another name": (lambda a: {"h": a["g"]}, "other arrays"),
    "one more": (lambda a: {"g": a["g"], "h": a["g"]}, "other arrays"),
    "none": (lambda a: {}, "other arrays"),
}


def _unsigned(frame: bytes, silo: Answer) -> bytes | None:
    return sealed(encode(read(silo(frame) or b"")))


def _nonsense(frame: bytes, silo: Answer) -> bytes | None:
    silo(frame)
    return b"nonsense"


FORGERIES: dict[str, tuple[Fault, str]] = {
    "garbled": (garbled, "not signed by its identity"),
    "unsigned": (_unsigned, "not signed by its identity"),
    "nonsense": (_nonsense, "cannot be read"),
}


@pytest.mark.parametrize("wrong", [*LIES, *FORGERIES])
def test_a_silo_whose_reply_is_a_lie_or_forged_is_left_out_by_name(enrolled, channel, start, honest, wrong):
    if wrong in LIES:
        change, said = LIES[wrong]
        fault = lying(enrolled.identity(LIAR), change)
    else:
        fault, said = FORGERIES[wrong]
    channel.faults[LIAR] = in_round(0, fault)
    run = start()
    members, rows, left_out = run.ask()
    assert members == [1, 2]
    assert torch.equal(rows, honest[1:])
    assert list(left_out) == [0]
    assert said in left_out[0]
    channel.faults.clear()
    assert run.ask(1)[0] == [0, 1, 2]  # it is asked again


def test_an_entry_at_the_limit_counts(enrolled, channel, start):
    largest = lying(enrolled.identity(LIAR), lambda a: {"g": a["g"] * 0 - 1e6})
    channel.faults[LIAR] = in_round(0, largest)
    members, rows, _ = start().ask()
    assert members == [0, 1, 2]
    assert rows[0].tolist() == [-1e6] * D


def test_a_silent_silo_is_left_out_and_may_come_back(channel, start, honest):
    channel.faults[SECOND] = in_round([0, 2], late)
    run = start()
    members, rows, left_out = run.ask(0)
    assert members == [0, 2]
    assert torch.equal(rows, honest[[0, 2]])
    assert left_out == {1: "no reply within 0.1 s"}
    assert [run.ask(r)[0] for r in (1, 2, 3)] == [[0, 1, 2], [0, 2], [0, 1, 2]]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("server.federation.time", made)
    return made


def test_a_lost_silo_costs_its_deadline_once(channel, start, clock):
    """It is greeted in the next round and after pauses of 4, 8 .. 120 s, and not asked before it is back."""
    run = start()
    channel.faults[SECOND] = absent
    channel.asked.clear()
    assert run.ask(0)[2] == {1: "no reply within 0.1 s"}
    greeted = []
    for _ in range(300):
        members, _, left_out = run.ask(0)  # the same round again costs nothing
        assert (members, left_out) == ([0, 2], {1: NOT_ASKED})
        if channel.kinds(SECOND)[1:] != ["hello"] * len(greeted):
            greeted.append(clock.now)
        clock.now += 1
    assert greeted == [0, 4, 12, 28, 60, 124, 244]
    channel.faults.clear()
    clock.now += 120
    assert run.ask(0)[0] == [0, 1, 2]
    channel.faults[SECOND] = in_round(1, absent)  # once in time, it is new to being late
    assert run.ask(1)[0] == [0, 2]
    assert run.ask(2)[0] == [0, 1, 2]


def test_a_silo_that_greets_and_is_always_late_is_asked_ever_less(channel, start, clock):
    run = start()
    channel.faults[SECOND] = lambda frame, silo: silo(frame) if read(frame).kind == "hello" else None
    for _ in range(200):
        assert run.ask(0)[0] == [0, 2]
        clock.now += 1
    assert channel.kinds(SECOND).count("ask") == 2 + 5


def test_a_silo_that_is_needed_is_asked_however_often_it_was_late(channel, start, clock):
    run = start(least=3, patience=1000.0)
    losses = iter(range(12))
    channel.faults[SECOND] = lambda frame, silo: None if next(losses, None) is not None else silo(frame)
    assert run.ask(0)[0] == [0, 1, 2]
    assert clock.now < 60


def test_another_silos_reply_is_not_taken(channel, start):
    run = start()
    other = channel.silos[SECOND]

    def stolen(frame: bytes, silo: Answer) -> bytes | None:
        told = read(frame)
        head = {**told.head, "run": run.silos.runs[SECOND], "head": ""}
        return other(sealed(encode(Frame(told.kind, head, told.arrays))))

    channel.faults[LIAR] = in_round(0, stolen)
    members, _, left_out = run.ask()
    assert members == [1, 2]
    assert left_out == {0: "its reply is not signed by its identity"}


def test_another_silos_identity_is_not_admitted(enrolled, channel):
    swapped = InMemory({**channel.silos, LIAR: channel.silos[SECOND]})
    with pytest.raises(Refused, match=r"silo-00: its reply is not signed by its identity"):
        RemoteSilos(swapped, enrolled.federation.identities, 0.1, patience=0.1).hello()


def test_an_old_reply_is_no_answer_to_a_new_round(channel, start):
    old: list[bytes] = []

    def replay(frame: bytes, silo: Answer) -> bytes | None:
        reply = silo(frame)
        if read(frame).kind == "ask":
            old.append(reply or b"")
            return old[0]
        return reply

    channel.faults[LIAR] = replay
    run = start()
    assert run.ask(0)[0] == [0, 1, 2]
    members, _, left_out = run.ask(1)
    assert members == [1, 2]
    assert left_out == {0: "it answered another round"}


def test_a_reply_to_another_broadcast_is_no_answer(channel, start):
    """Somebody on the way asked the silo for something else."""

    def other(frame: bytes, silo: Answer) -> bytes | None:
        told = read(frame)
        return silo(sealed(encode(Frame(told.kind, told.head, {"w": told.arrays["w"] + 1}))))

    channel.faults[LIAR] = in_round(0, other)
    assert start().ask()[2] == {0: "it answered another round"}


def test_what_comes_twice_counts_once(channel, start, honest):
    def twice(frame: bytes, silo: Answer) -> bytes | None:
        first, again = silo(frame), silo(frame)
        if read(frame).kind != "hello":  # the same bytes, whatever else happened
            assert first == again
        return again

    channel.faults = dict.fromkeys((LIAR, SECOND, THIRD), twice)
    run = start(least=3)
    assert torch.equal(run.ask()[1], honest)
    closed, _ = run.silos.close()
    assert [said.rounds for said in closed.values()] == [(0,)] * 3


def test_a_refusal_is_passed_on_in_the_silos_words(channel, start):
    run = start()
    assert run.ask(0)[0] == [0, 1, 2]
    moved = {"w": torch.ones(D, dtype=torch.float64)}
    with pytest.raises(
        Refused, match=r"0 of 3 silos answered, 2 are needed \(silo-00: refused: round 0"
    ) as caught:
        run.silos.answer(0, moved, [0, 1, 2])
    assert "another broadcast" in str(caught.value)


def test_words_of_a_silo_are_tamed():
    assert shown("a\nb\x1b[31m" + "c" * 400) == "a b [31m" + "c" * 289 + "..."


def test_too_few_are_asked_again_until_they_come(channel, start, honest):
    losses = iter(range(2))

    def lossy(frame: bytes, silo: Answer) -> bytes | None:
        return absent(frame, silo) if next(losses, None) is not None else silo(frame)

    run = start(least=3, patience=60.0)
    channel.faults[THIRD] = lossy
    members, rows, left_out = run.ask()
    assert members == [0, 1, 2]
    assert left_out == {}
    assert torch.equal(rows, honest)
    assert channel.kinds(THIRD).count("ask") == 3
    assert channel.kinds(LIAR).count("ask") == 1  # a silo that has answered is not asked again


def test_a_round_with_too_few_ends_once_patience_does(channel, start):
    channel.faults[THIRD] = in_round(0, absent)
    with pytest.raises(Refused, match=r"2 of 3 silos answered, 3 are needed \(silo-02: no reply within"):
        start(least=3).ask()


def test_a_silo_that_says_no_is_not_waited_for(channel, start, enrolled):
    """Patience of an hour, and no round can have its three answers."""
    channel.faults[THIRD] = in_round(0, lying(enrolled.identity(THIRD), LIES["NaN"][0]))
    with pytest.raises(Refused, match="silo-02: its message"):
        start(least=3, patience=3600.0).ask()


def test_a_silo_that_says_later_is_asked_again(channel, start, enrolled):
    busy = iter(range(2))

    def later(frame: bytes, silo: Answer) -> bytes | None:
        if read(frame).kind != "offer" or next(busy, None) is None:
            return silo(frame)
        body = encode(Frame("refusal", {"reason": "ask again", "again": True}))
        return sealed(body, enrolled.identity(THIRD).sign(body))

    channel.faults[THIRD] = later
    assert start(patience=60.0).ask()[0] == [0, 1, 2]
    assert channel.kinds(THIRD).count("offer") == 3


def deciding(identity, times):
    """The silo answers an offer once its operator has been asked for it so often."""
    left = iter(range(times))

    def fault(frame: bytes, silo: Answer) -> bytes | None:
        if read(frame).kind != "offer" or next(left, None) is None:
            return silo(frame)
        body = encode(Frame("refusal", {"reason": "the silo's operator has to decide", "again": True}))
        return sealed(body, identity.sign(body))

    return fault


@pytest.fixture
def offered(enrolled, channel, clock):
    """`offered(patience, least)`: who admits an offer, who is given up, what is said; the deadline: 60 s."""

    def make(patience: float, least: int) -> tuple[list[str], dict[str, str], list[str]]:
        said: list[str] = []
        identities = enrolled.federation.identities
        silos = RemoteSilos(channel, identities, 60.0, least, patience, say=said.append)
        offers = offers_of(RESOLVED, SESSION, schedule(3, None, RESOLVED.trace.holds, 0, 0))
        admitted, given_up = silos.offer(offers, least)
        return sorted(admitted), given_up, said

    return make


def test_an_operator_has_patience_to_decide_and_is_asked_ever_less(enrolled, channel, clock, offered):
    channel.faults[THIRD] = deciding(enrolled.identity(THIRD), 40)
    admitted, given_up, said = offered(86400.0, 2)
    assert (admitted, given_up) == ([LIAR, SECOND, THIRD], {})
    assert said == ["silo silo-02 is waited for, 1 day, 0:00:00 at most: the silo's operator has to decide"]
    assert 30 * 120 < clock.now < 32 * 120  # 0.1, 0.2 .. 120 s
    assert channel.kinds(LIAR) == ["offer"]


def test_an_operator_who_does_not_decide_is_given_up_when_patience_is_over(enrolled, channel, clock, offered):
    channel.faults[THIRD] = deciding(enrolled.identity(THIRD), 10**6)
    admitted, given_up, _ = offered(3600.0, 2)
    assert (admitted, given_up) == ([LIAR, SECOND], {THIRD: "the silo's operator has to decide"})
    assert clock.now == pytest.approx(3600)
    assert channel.kinds(LIAR) == ["offer", "close"]
    with pytest.raises(
        Refused, match=r"2 of 3 silos answered, 3 are needed \(silo-02: the silo's operator"
    ) as no:
        offered(3600.0, 3)
    assert not isinstance(no.value, Unanswered)


def test_no_operator_is_waited_for_where_another_silo_refuses(enrolled, channel, clock, offered):
    """What the operator is to decide is a smaller run: it stays in, and is asked for that."""
    channel.faults[THIRD] = deciding(enrolled.identity(THIRD), 10**6)
    body = encode(Frame("refusal", {"reason": "no", "again": False}))
    channel.faults[SECOND] = lambda frame, silo: sealed(body, enrolled.identity(SECOND).sign(body))
    assert offered(3600.0, 2)[:2] == ([LIAR], {SECOND: "refused: no"})
    assert clock.now == 0
    assert channel.kinds(LIAR) == ["offer", "close"]
    with pytest.raises(Refused, match="1 of 3 silos answered, 3 are needed") as no:
        offered(3600.0, 3)
    assert not isinstance(no.value, Unanswered)
    assert clock.now == 0


def test_what_silent_silos_did_not_join_may_be_asked_again(enrolled, channel, clock, offered):
    channel.faults[SECOND] = absent
    with pytest.raises(Unanswered, match=r"2 of 3 silos answered, 3 are needed"):
        offered(3600.0, 3)


def test_a_silent_silo_has_the_deadline_though_others_decide(enrolled, channel, clock, offered):
    channel.faults = {SECOND: absent, THIRD: deciding(enrolled.identity(THIRD), 10**6)}
    admitted, given_up, _ = offered(3600.0, 2)
    assert (admitted, list(given_up)) == ([LIAR], [SECOND])
    assert clock.now == pytest.approx(60)


def test_a_silo_that_has_asked_for_time_may_be_away_meanwhile(enrolled, channel, clock, offered):
    decides = deciding(enrolled.identity(THIRD), 3)
    calls = iter(range(30))
    channel.faults[THIRD] = lambda f, silo: absent(f, silo) if 1 < next(calls, 99) < 20 else decides(f, silo)
    assert offered(86400.0, 3)[:2] == ([LIAR, SECOND, THIRD], {})
    assert clock.now > 600  # the deadline is 60


def test_one_refused_offer_closes_the_run_everywhere(enrolled, channel):
    silos = RemoteSilos(channel, enrolled.federation.identities, 0.1, patience=0.1)
    silos.hello()
    offers = offers_of(RESOLVED, SESSION, schedule(3, None, RESOLVED.trace.holds, 0, 0))
    offers[THIRD] = offers[THIRD].model_copy(update={"noise_multiplier": 1e-3})
    with pytest.raises(Refused, match=r"silo-02: refused: .*plan costs epsilon"):
        silos.offer(offers)
    assert channel.kinds(LIAR) == channel.kinds(SECOND) == ["hello", "offer", "close"]


def test_the_last_head_seen_is_echoed(channel, start):
    run = start()
    for r in range(3):
        before = dict(run.silos.heads)
        run.ask(r)
        asked = {name: head["head"] for name, kind, head in channel.asked[-3:]}
        assert asked == before
        assert all(run.silos.heads[name] != before[name] for name in before)


def test_a_lying_silo_cannot_roll_its_head_back(channel, start):
    """A reply to another round says nothing of what the server should remember."""
    old: list[bytes] = []
    run = start()
    channel.faults[LIAR] = lambda frame, silo: old.append(silo(frame) or b"") or old[0]
    run.ask(0)
    kept = run.silos.heads[LIAR]
    run.ask(1)
    assert run.silos.heads[LIAR] == kept
