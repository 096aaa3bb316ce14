"""A release does not say whose message is whose: metadata carry nothing, and a classifier is at chance.

Only contents could: where a silo's are like no other's, they identify it, which epsilon covers. So contents
here are exchangeable across silos, extreme values included.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from support.linking import SILOS, Seen, hits, rounds, threshold
from support.rosters import Parties
from support.shufflers import Round

from fedsim.secagg.reports import Form, open_report
from fedsim.secagg.shuffling import Release, Request
from fedsim.wire.frames import decode_words, opened
from shuffler.rounds import Shuffler

ALARM = 1e-6
MESSAGES = Form("messages", 6, (0.0, 0.0))


class InRosterOrder(Shuffler):
    """Does not permute: whose message is whose follows from its slot."""

    def _released(self, request: Request) -> Release:
        released = super()._released(request)
        counted = self._counted(request, self.rosters[request.context.roster])
        return replace(released, inner=tuple(counted[silo].inner for silo in sorted(counted)))


class InOrderOfArrival(Shuffler):
    """Does not permute: it releases as reports came in."""

    def _released(self, request: Request) -> Release:
        released = super()._released(request)
        roster = self.rosters[request.context.roster]
        inner = [
            open_report(each, request.context, roster, self.keys.envelopes).inner for each in request.reports
        ]
        return replace(released, inner=tuple(inner))


class OddSizes(Shuffler):
    """Permutes, and leaves something of the silo's position in a message's size."""

    def released(self, request: Request) -> Release:
        released = super()._released(request)
        counted = self._counted(request, self.rosters[request.context.roster])
        owner = {report.inner: silo for silo, report in counted.items()}
        return replace(released, inner=tuple(each + bytes(8 * owner[each]) for each in released.inner))


def _before_framing(shuffler: Shuffler, request: Request, parties: Parties) -> Release:
    assert isinstance(shuffler, OddSizes)
    return shuffler.released(request)


def _linked(seen: list[Seen]) -> bool:
    """Whether an attacker guesses better than by chance; false alarm below 1e-6."""
    found, guesses = hits(seen)
    return found > threshold(guesses, ALARM)


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_a_classifier_given_all_that_the_server_saw_is_at_chance(count):
    """30 guesses (100 of 200 rounds) of one in four.

    One who is right in nine of ten is found with power above 0.99 (1 - 1e-15); of 200 rounds one who is right
    in two of three with power above 0.999.
    """
    guesses = count // 2
    assert stats.binom.sf(threshold(guesses, ALARM), guesses, 0.9) > 0.99
    assert guesses < 100 or stats.binom.sf(threshold(guesses, ALARM), guesses, 2 / 3) > 0.999
    assert not _linked(rounds(Shuffler, MESSAGES, count))


@pytest.mark.parametrize("kind", [InRosterOrder, InOrderOfArrival])
def test_the_classifier_links_messages_that_are_not_permuted(kind):
    assert _linked(rounds(kind, MESSAGES, 60))


def test_the_classifier_links_messages_whose_sizes_differ():
    assert _linked(rounds(OddSizes, MESSAGES, 60, _before_framing))


def test_every_order_is_as_likely():
    """Pearson's test of the 24 orders over 600 releases, false alarm 1e-6.

    Of 23 orders it is sure, and of one that is kept once in two.
    """
    whole = Round(Parties(SILOS), form=Form("messages", 1, (0.0,)))
    counted = whole.shuffler._counted(whole.request(), whole.parties.roster)
    owner = {report.inner: silo for silo, report in counted.items()}
    orders = Counter(
        tuple(owner[inner] for inner in whole.shuffler._released(whole.request()).inner) for _ in range(600)
    )
    assert len(orders) == 24
    counts = np.array(list(orders.values()))
    assert stats.chisquare(counts).pvalue > ALARM
    assert stats.chisquare(counts / 2 + [300, *[0] * 23]).pvalue < ALARM


@pytest.mark.parametrize("form", [MESSAGES, Form("shares", 6, (0.0, 0.0))], ids=["messages", "shares"])
def test_a_release_has_no_place_for_anything_else(form):
    """Its frame's size follows from form and count; who reported is listed in the roster's order."""
    sizes = set()
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        whole = Round(Parties(SILOS), form=form)
        frame = whole.shuffler.shuffle(whole.request(order))
        body, _ = opened(frame)
        said = decode_words(body)
        assert set(said.head) == {"run", "round", "roster", "request", "silos", "mark"}
        assert list(said.head["silos"]) == [0, 1, 2, 3]
        assert set(said.arrays) == {"inner"} | ({"sum"} if form.transport == "shares" else set())
        assert said.arrays["inner"].shape == (SILOS, form.inner_bytes)
        sizes.add(len(frame))
    assert len(sizes) == 1


@pytest.mark.parametrize(
    "form", [MESSAGES, Form("shares", 6, (0.0, 0.0)), Form("shares", 7, (2.0,))], ids=str
)
def test_reports_have_one_size_whatever_is_in_them(form):
    parties = Parties(SILOS)
    shape, context = (len(form.scales), form.dimension), parties.context(form=form)
    kinds = [0, 2**62, -(2**62)] if form.transport == "shares" else [0.0, 1e308, float("nan")]
    made = [parties.report(silo, np.full(shape, kind), context) for silo in range(SILOS) for kind in kinds]
    assert {len(report) for report in made} == {form.report_bytes}
    inner = [open_report(report, context, parties.roster, parties.shuffler).inner for report in made]
    assert {len(each) for each in inner} == {form.inner_bytes}
