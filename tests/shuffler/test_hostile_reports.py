"""Bytes that are not quite a report, a request or a release: none is accepted, and nothing breaks."""

import logging
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.rosters import Parties
from support.shufflers import Round

from fedsim.common.errors import Refused
from fedsim.secagg.envelopes import seal
from fedsim.secagg.reports import open_inner, open_report
from fedsim.secagg.shuffling import Release, Request
from fedsim.wire.frames import Frame, encode, head_of, opened, sealed
from shuffler.service import FrameHandler

ALL = {"min_silos": 5}
"""Every silo must count, so that a request of which one report is damaged is refused."""
GATE, MANY, MANY_REQUESTS = 3000, 100_000, 20_000


def fuzzed(rng: random.Random, whole: bytes, others: list[bytes]) -> bytes:
    """Something else than `whole`, by one of the ways in which bytes go wrong."""
    made = bytearray(whole)
    match rng.randrange(7):
        case 0:
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
        case 1:
            del made[rng.randrange(len(made)) :]
        case 2:
            made += rng.randbytes(rng.choice([1, 8, 100, 5000]))
        case 3:
            for _ in range(rng.randint(2, 20)):
                made[rng.randrange(len(made))] = rng.randrange(256)
        case 4:
            other, cut = rng.choice(others), rng.randrange(1, len(made))
            made = made[:cut] + other[cut:]
        case 5:
            start = rng.randrange(len(made))
            piece = made[start : start + rng.randint(1, 64)]
            del made[start : start + len(piece)]
            place = rng.randrange(len(made) + 1)
            made[place:place] = piece
        case _:
            made = bytearray(rng.randbytes(len(made)))
    return bytes(made) if bytes(made) != whole else bytes(made[:-1])


def hostile(made: Round, count: int, seed: int = 0) -> Iterator[bytes]:
    """Reports that are none: damaged, stale, foreign, and sealed again with other content."""
    rng, parties = random.Random(seed), made.parties
    later = replace(made.context, round=1)
    stale = [parties.report(i, row, later) for i, row in enumerate(made.numbers)]
    foreign = Round(Parties()).reports
    info = made.context.info("shuffler")
    contents = [parties.shuffler.open(report, info) for report in made.reports]
    for i in range(count):
        silo = rng.randrange(len(made.reports))
        match i % 10:
            case 0:
                yield rng.choice(stale)
            case 1:
                yield rng.choice(foreign)
            case 2 | 3 | 4:
                yield seal(fuzzed(rng, contents[silo], contents), parties.shuffler.public, info)
            case _:
                yield fuzzed(rng, made.reports[silo], made.reports)


def accepted(made: Round, count: int) -> int:
    """How many hostile reports the shuffler would count."""
    found = 0
    for report in hostile(made, count):
        try:
            open_report(report, made.context, made.parties.roster, made.parties.shuffler)
        except Refused:
            continue
        found += 1
    return found


@pytest.mark.parametrize("count", [GATE, pytest.param(MANY, marks=pytest.mark.slow)])
def test_no_hostile_report_counts(count):
    assert accepted(Round(), count) == 0


def test_that_test_would_notice(monkeypatch):
    """Without signatures, most of what is sealed again would count."""
    monkeypatch.setattr("fedsim.secagg.reports.is_signed", lambda *_: True)
    assert accepted(Round(), 1000) > 50


def test_hostile_reports_beside_good_ones_cost_a_line_each(caplog):
    made = Round(Parties(60))
    bad = list(hostile(made, 30))
    with caplog.at_level(logging.INFO):
        found = made.release(Request(made.context, (*made.reports[:20], *bad, *made.reports[20:30])))
    assert found.silos == tuple(range(30))
    assert (made.total(found) == made.numbers[:30].sum(axis=0)).all()
    assert len(caplog.messages) == len(bad)


@pytest.mark.parametrize("count", [1000, pytest.param(MANY_REQUESTS, marks=pytest.mark.slow)])
def test_a_fuzzed_request_is_answered_with_a_refusal(count, caplog):
    """Or it is the same request written otherwise, such as with a blank more in its JSON."""
    caplog.set_level(logging.CRITICAL, "shuffler")  # five lines a request are a lot to keep
    made, rng = Round(Parties(terms=ALL)), random.Random(1)
    whole = made.request()
    desk, frame = FrameHandler(made.shuffler), sealed(whole.body())
    other = sealed(Request(replace(made.context, round=1), whole.reports).body())
    for _ in range(count):
        data = fuzzed(rng, frame, [other])
        if data[68:] == frame[68:]:
            continue  # nothing rests on who asks
        answer = desk.answer(data)
        if head_of(opened(answer)[0])[0] != "refusal":
            assert Request.read(opened(data)[0]) == whole
    assert made.release().silos == (0, 1, 2, 3, 4)


def test_fuzzed_releases_are_not_believed():
    made, rng = Round(), random.Random(2)
    request = made.request()
    frame = made.shuffler.shuffle(request)
    stranger = Round()
    other = stranger.shuffler.shuffle(stranger.request())
    for _ in range(GATE):
        with pytest.raises(Refused):
            made.read(fuzzed(rng, frame, [other]), request)


def test_fuzzed_envelopes_do_not_open_for_the_server():
    made, rng = Round(), random.Random(3)
    inner = list(made.release().inner)
    for _ in range(GATE):
        with pytest.raises(Refused):
            open_inner(fuzzed(rng, rng.choice(inner), inner), made.context, made.parties.server)


@pytest.mark.parametrize("kind", ["hello", "ask", "offer", "nonsense", "shuffled"])
def test_other_messages_are_refused_or_greeted(kind):
    made = Round()
    answer = FrameHandler(made.shuffler).answer(sealed(encode(Frame(kind, {}))))
    expected = "standing" if kind == "hello" else "refusal"
    assert head_of(opened(answer)[0])[0] == expected


def test_an_error_of_its_own_says_nothing_of_what_was_sent(monkeypatch, caplog):
    made = Round()

    def fails(*_: object) -> None:
        raise ValueError("a secret")

    monkeypatch.setattr(made.shuffler, "shuffle", fails)
    answer = FrameHandler(made.shuffler).answer(sealed(made.request().body()))
    assert head_of(opened(answer)[0]) == (
        "refusal",
        {"reason": "the shuffler could not answer (see its log)", "again": False},
    )
    assert "secret" not in caplog.text
    assert len(caplog.messages) == 1


def test_a_refusal_is_signed_too():
    made = Round()
    frame = FrameHandler(made.shuffler).answer(b"GET / HTTP/1.1")
    with pytest.raises(Refused, match="the shuffler refused: not a frame"):
        made.read(frame, made.request())
    unsigned = sealed(opened(frame)[0])
    with pytest.raises(Refused, match="not signed"):
        Release.read(unsigned, made.request(), bytes.fromhex(made.keys.identity.public))
