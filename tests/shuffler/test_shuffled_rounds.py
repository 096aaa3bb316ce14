"""What a shuffler releases, to whom, and how often."""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2
from support.helpers import FALSE_ALARM
from support.rosters import FORM, RUN, Parties, identity
from support.shufflers import Round

from fedsim.common.errors import InputError, Refused
from fedsim.secagg.reports import Form, seal_report
from fedsim.secagg.shuffling import Release, Request, messages
from shuffler.keys import Keys
from shuffler.rounds import Shuffler
from shuffler.store import MemoryStore

MESSAGES = Form("messages", 3, (0.0,))
NOISY = Form("shares", 500, (100.0, 3.0))


@pytest.mark.parametrize("members", [[0, 1, 2, 3, 4], [4, 0, 2]])
def test_the_total_is_exactly_that_of_the_silos_in_it(members):
    made = Round()
    release = made.release(made.request(members))
    assert release.silos == tuple(sorted(members))
    assert (made.total(release) == made.numbers[members].sum(axis=0)).all()


def test_whole_messages_arrive_as_they_were_sent_in_another_order():
    made = Round(form=MESSAGES, parties=Parties(20))
    sent = np.random.default_rng(0).normal(size=(20, 1, 3))
    made.reports = [made.parties.report(i, row, made.context) for i, row in enumerate(sent)]
    found = messages(made.release(), made.parties.server)
    assert sorted(map(bytes, found)) == sorted(map(bytes, sent))
    assert (found != sent).any()  # by chance once in 2.4e18


def test_the_same_request_gets_the_same_bytes():
    """Also where the shuffler adds noise: it is drawn once for a round."""
    made = Round(Parties(5, {"noise_by": "aggregators"}), form=NOISY)
    first = made.shuffler.shuffle(made.request())
    assert [made.shuffler.shuffle(made.request()) for _ in range(3)] == [first] * 3


@pytest.mark.parametrize("other", ["fewer", "another order", "a bit", "another form"])
def test_any_other_request_for_a_released_round_gets_nothing(other):
    made = Round()
    made.release()
    flipped = bytes([made.reports[0][0] ^ 1]) + made.reports[0][1:]
    request = {
        "fewer": made.request([0, 1, 2, 3]),
        "another order": made.request([1, 0, 2, 3, 4]),
        "a bit": Request(made.context, (flipped, *made.reports[1:])),
        "another form": made.request(context=replace(made.context, form=Form("shares", 8, (0.0,)))),
    }[other]
    with pytest.raises(Refused, match="released to another request"):
        made.shuffler.shuffle(request)


def test_a_refused_request_does_not_use_the_round_up():
    made = Round()
    with pytest.raises(Refused, match="2 reports count, and the roster needs 3"):
        made.shuffler.shuffle(made.request([0, 1]))
    assert made.release().silos == (0, 1, 2, 3, 4)


def test_rounds_and_runs_are_apart():
    """And of a run the last reply alone is kept."""
    made = Round()
    made.release()
    for context in (replace(made.context, round=1), replace(made.context, run="00" * 32)):
        reports = [made.parties.report(i, row, context) for i, row in enumerate(made.numbers)]
        assert made.release(Request(context, tuple(reports))).silos == (0, 1, 2, 3, 4)
    with pytest.raises(Refused, match="not kept any more"):
        made.shuffler.shuffle(made.request())


def test_two_requests_at_once_are_one_release():
    made = Round()
    asked = [made.request([0, 1, 2, *rest]) for rest in ([3], [4], [3, 4], [])] * 4

    def attempt(request: Request) -> bytes | None:
        try:
            return made.shuffler.shuffle(request)
        except Refused:
            return None

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(attempt, asked))
    assert len({frame for frame in found if frame}) == 1


def test_every_report_that_does_not_count_is_one_line_without_what_is_in_it(caplog):
    made = Round(Parties(8, {"min_silos": 2}))
    stale = made.parties.report(3, made.numbers[3], replace(made.context, round=9))
    strange = seal_report(made.numbers[4], made.context, made.parties.roster, 4, identity().sign)
    cut = made.reports[5][:-1]
    again = made.parties.report(0, made.numbers[7], made.context)
    request = Request(made.context, (*made.reports[:3], stale, strange, cut, again))
    with caplog.at_level(logging.INFO, "shuffler"):
        release = made.release(request)
    assert release.silos == (0, 1, 2)
    assert (made.total(release) == made.numbers[:3].sum(axis=0)).all()
    assert [line.split(": ")[1] for line in caplog.messages] == [
        "an envelope that is not for this key, run, round and roster, or is damaged",
        "a report that the silo which it names has not signed",
        "a report of another size than the round's",
        "a second report of a silo",
    ]
    assert all(line.startswith(f"run {RUN} round 0: ") for line in caplog.messages)


def test_more_reports_than_silos_are_refused_unopened(caplog):
    made = Round()
    with pytest.raises(Refused, match="6 reports of a roster of 5"):
        made.shuffler.shuffle(made.request([0, 1, 2, 3, 4, 4]))
    assert not caplog.messages


def test_an_unknown_roster_is_refused():
    made = Round()
    other = made.parties.made(federation="other")
    with pytest.raises(Refused, match="has not pinned"):
        made.shuffler.shuffle(made.request(context=replace(made.context, roster=other.digest)))


def test_a_roster_with_another_shufflers_keys_is_not_served():
    with pytest.raises(InputError, match=r"roster\.shuffler"):
        Shuffler([Parties().roster], Keys.draw(), MemoryStore())


@pytest.mark.parametrize(
    ("noise_by", "scales", "said"),
    [
        ("aggregators", (0.0, 0.0), "without noise"),
        ("aggregators", (5.0, 0.0), "without noise"),
        ("silos", (5.0, 5.0), "noise of aggregators"),
    ],
)
def test_noise_is_whose_the_roster_says(noise_by, scales, said):
    made = Round(Parties(5, {"noise_by": noise_by}), form=Form("shares", 4, scales))
    with pytest.raises(Refused, match=said):
        made.shuffler.shuffle(made.request())


def test_the_shuffler_adds_the_noise_that_silos_have_signed():
    """The variance of 500 draws is chi-square; a scale 1.5 times off is rejected, power above 1 - 1e-12."""
    made = Round(Parties(5, {"noise_by": "aggregators"}), form=NOISY)
    noise = made.total(made.release()) - made.numbers.sum(axis=0)
    for drawn, scale in zip(noise, NOISY.scales, strict=True):
        assert _far_from(drawn, scale) > FALSE_ALARM
        assert _far_from(drawn, 1.5 * scale) < FALSE_ALARM
        assert _far_from(drawn, scale / 1.5) < FALSE_ALARM


def _far_from(drawn: np.ndarray, scale: float) -> float:
    statistic = float((drawn.astype(float) ** 2).sum() / scale**2)
    return 2 * float(min(chi2.cdf(statistic, drawn.size), chi2.sf(statistic, drawn.size)))


def test_a_server_gets_no_less_noise_than_the_silos_signed():
    made = Round(Parties(5, {"noise_by": "aggregators"}), form=NOISY)
    less = replace(made.context, form=Form("shares", 500, (100.0, 1e-9)))
    with pytest.raises(Refused, match="0 reports count"):
        made.shuffler.shuffle(made.request(context=less))


def test_a_reply_is_believed_for_its_request_and_by_its_signature_alone():
    made = Round()
    request = made.request()
    frame = made.shuffler.shuffle(request)
    with pytest.raises(Refused, match="not signed"):
        Release.read(frame, request, bytes.fromhex(identity().public))
    with pytest.raises(Refused, match="not signed"):
        made.read(frame[:-1] + bytes([frame[-1] ^ 1]), request)
    with pytest.raises(Refused, match="another request"):
        made.read(frame, made.request([0, 1, 2]))


def test_a_silo_whose_share_for_the_server_is_rubbish_costs_the_round_and_no_privacy():
    made = Round()
    other = replace(made.context, round=5)
    own, strange = made.reports[4], made.parties.report(4, made.numbers[4], other)
    keys = made.parties.shuffler
    content, old = keys.open(own, made.context.info("shuffler")), keys.open(strange, other.info("shuffler"))
    assert len(content) == len(old)
    inner = old[68 : 68 + FORM.inner_bytes]
    made.reports[4] = _resigned(made, content, inner)
    with pytest.raises(Refused):
        made.total(made.release())


def _resigned(made: Round, content: bytes, inner: bytes) -> bytes:
    """Silo 4's report with another envelope for the server, as silo 4 may make one."""
    from fedsim.secagg.envelopes import seal

    place, share = content[:4], content[68 + FORM.inner_bytes :]
    signature = made.parties.silos["s004"].sign(made.context.info("silo") + place + inner + share)
    public, info = made.parties.shuffler.public, made.context.info("shuffler")
    return seal(place + signature + inner + share, public, info)
