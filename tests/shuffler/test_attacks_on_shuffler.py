"""Attacks on secure aggregation: each succeeds against a copy that lacks one rule, not against the product.

What a server wants is one silo's own contribution, `numbers[k]`, which no sum over enough silos shows.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.helpers import FALSE_ALARM
from support.rosters import Parties, identity
from support.shufflers import Round
from support.uniform import narrow_split, worst_byte

from fedsim.common.errors import InputError, Refused
from fedsim.secagg import reports
from fedsim.secagg.envelopes import OVERHEAD, seal
from fedsim.secagg.reports import Form, aggregators_noise, open_share, seal_report, total
from fedsim.secagg.roster import Roster
from fedsim.secagg.shuffling import Request, totals
from shuffler.rounds import Shuffler
from shuffler.store import MemoryStore, Note

VICTIM = 4


class ForgetsRequests(MemoryStore):
    """Serves every new request of a round."""

    def find(self, run: str, round_index: int) -> Note | None:
        return None

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None: ...


def by_subtraction(made: Round) -> np.ndarray:
    """The round again, without the victim."""
    whole = made.total(made.release())
    return whole - made.total(made.release(made.request([0, 1, 2, 3])))


def test_a_round_repeated_without_a_silo_shows_it():
    weak = Round(store=ForgetsRequests())
    assert (by_subtraction(weak) == weak.numbers[VICTIM]).all()
    with pytest.raises(Refused, match="released to another request"):
        by_subtraction(Round())


class NotesByRoster(Shuffler):
    """Takes a round under another roster for another round."""

    def shuffle(self, request: Request) -> bytes:
        if self.noted_roster != request.context.roster:
            self.store.connection.execute("DELETE FROM entries WHERE kind = 'released'")
        self.noted_roster = request.context.roster
        return super().shuffle(request)

    noted_roster = ""


def smaller_roster(parties: Parties) -> Roster:
    """The same federation before the victim joined: everybody has pinned both."""
    silos = {
        name: silo.public for name, silo in parties.silos.items() if name != parties.roster.names[VICTIM]
    }
    return parties.made(silos=silos)


def by_another_roster(made: Round, other: Roster) -> np.ndarray:
    """The round again, under a roster without the victim, by silos that would answer that too."""
    whole = made.total(made.release())
    context = replace(made.context, roster=other.digest)
    again = [made.parties.report(i, made.numbers[i], context, other) for i in range(4)]
    return whole - made.total(made.release(Request(context, tuple(again))))


def test_a_round_repeated_under_another_roster_shows_who_is_not_in_it():
    parties = Parties()
    other = smaller_roster(parties)
    weak = Round(parties, NotesByRoster, rosters=[other])
    assert (by_another_roster(weak, other) == weak.numbers[VICTIM]).all()
    with pytest.raises(Refused, match="released to another request"):
        by_another_roster(Round(parties, rosters=[other]), other)


def by_fakes(made: Round) -> np.ndarray:
    """The victim among silos that the server plays, in the places of others and with keys of its own."""
    fakes = np.ones_like(made.numbers[:2])
    own = [
        seal_report(row, made.context, made.parties.roster, i, identity().sign) for i, row in enumerate(fakes)
    ]
    found = made.release(Request(made.context, (*own, made.reports[VICTIM])))
    return made.total(found) - fakes.sum(axis=0)


def test_a_server_that_plays_silos_learns_the_last_one(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(reports, "is_signed", lambda *_: True)
        weak = Round()
        assert (by_fakes(weak) == weak.numbers[VICTIM]).all()
    with pytest.raises(Refused, match="1 reports count"):
        by_fakes(Round())


def by_own_roster(made: Round, seal: Any) -> np.ndarray:
    """The victim in a roster that the server wrote, among fakes that it enrolled there."""
    keys = [identity() for _ in range(2)]
    silos = {f"fake{i}": key.public for i, key in enumerate(keys)}
    victim = made.parties.roster.names[VICTIM]
    roster = made.parties.made(silos={**silos, victim: made.parties.silos[victim].public})
    with suppress(AttributeError):
        made.shuffler.pins_what_it_is_sent(roster)
    context = replace(made.context, roster=roster.digest)
    numbers = np.zeros_like(made.numbers[0])
    own = [seal_report(numbers, context, roster, i, key.sign) for i, key in enumerate(keys)]
    lured = seal(made.numbers[VICTIM], context, roster, 2, made.parties.silos[victim].sign)
    return made.total(made.release(Request(context, (*own, lured))))


class PinsAnything(Shuffler):
    """Takes the server's word for who is a silo."""

    def pins_what_it_is_sent(self, roster: Roster) -> None:
        self.rosters[roster.digest] = roster


def test_a_server_that_enrols_silos_learns_the_last_one():
    """Both the shuffler and a silo stand in the way, each alone."""
    weak = Round(kind=PinsAnything)
    assert (by_own_roster(weak, seal_report) == weak.numbers[VICTIM]).all()
    with pytest.raises(Refused, match="has not pinned"):
        by_own_roster(Round(), seal_report)

    def careful(numbers: Any, context: Any, _: Roster, position: int, sign: Any) -> bytes:
        return seal_report(numbers, context, weak.parties.roster, position, sign)

    with pytest.raises(InputError, match="the roster that is pinned"):
        by_own_roster(Round(kind=PinsAnything), careful)


class CountsNone(Shuffler):
    """Releases whatever came."""

    def __init__(self, rosters: Any, keys: Any, store: Any) -> None:
        super().__init__(rosters, keys, store)
        self.rosters = {
            digest: roster.model_copy(update={"min_silos": 0}) for digest, roster in self.rosters.items()
        }


def test_a_sum_over_one_silo_shows_it():
    weak = Round(kind=CountsNone)
    assert (weak.total(weak.release(weak.request([VICTIM]))) == weak.numbers[VICTIM]).all()
    made = Round()
    with pytest.raises(Refused, match="1 reports count"):
        made.release(made.request([VICTIM]))


def by_duplicates(made: Round) -> np.ndarray:
    """One silo often enough."""
    found = made.total(made.release(made.request([VICTIM] * 3)))
    return found // 3


class CountsTwice(Shuffler):
    """Does not look who has reported before."""

    def _counted(self, request: Request, roster: Roster) -> Any:
        key = self.keys.envelopes
        opened = [reports.open_report(each, request.context, roster, key) for each in request.reports]
        return dict(enumerate(opened))


def test_one_silo_three_times_is_not_three_silos():
    weak = Round(kind=CountsTwice)
    assert (by_duplicates(weak) == weak.numbers[VICTIM]).all()
    with pytest.raises(Refused, match="1 reports count"):
        by_duplicates(Round())


class PassesSharesOn(Shuffler):
    """Sends the server the other shares too, shuffled, as if their order were what links them."""

    def _summed(self, counted: Any, form: Form) -> Any:
        self.passed_on = np.random.default_rng().permutation([each.share for each in counted.values()])
        return super()._summed(counted, form)


def matched(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Every pair of shares whose totals are small in all coordinates, as contributions are."""
    table: dict[int, list[np.ndarray]] = {}
    for share in theirs:
        table.setdefault(-int(share[0]) % 2**64 >> 44, []).append(share)
    found = []
    for share in ours:
        near = int(share[0]) >> 44
        others = [other for step in (-1, 0, 1) for other in table.get((near + step) % 2**20, [])]
        sums = (total(share, other) for other in others)
        found += [both for both in sums if (np.abs(both) < 2**42).all()]
    return found


def test_shares_of_both_kinds_at_the_server_are_matched():
    """200 silos: every contribution is found and none too many; the product's one sum matches nothing."""
    parties = Parties(200)
    weak, made = Round(parties, PassesSharesOn), Round(parties)
    seen = _own_shares(weak)
    passed_on = weak.shuffler.passed_on
    found = matched(seen, passed_on)
    assert sorted(map(bytes, found)) == sorted(bytes(row.ravel()) for row in weak.numbers)
    assert matched(_own_shares(made), [made.release().sum]) == []


def _own_shares(made: Round) -> list[np.ndarray]:
    release = made.release()
    parties = made.parties
    return [open_share(each, made.context, parties.roster, parties.server)[1] for each in release.inner]


LARGE = Form("shares", 8000, (0.0,))


def views(form: Form = LARGE) -> dict[str, np.ndarray]:
    """All that each aggregator has of a round in which every silo's numbers are the same."""
    made = Round(form=form)
    made.numbers[:] = 12345
    made.reports = [made.parties.report(i, row, made.context) for i, row in enumerate(made.numbers)]
    opened = [
        reports.open_report(each, made.context, made.parties.roster, made.parties.shuffler)
        for each in made.reports
    ]
    return {
        "server": np.array(_own_shares(made)),
        "shuffler": np.array([each.share for each in opened]),
        "shuffler's sum": made.release().sum,
    }


def test_one_aggregator_alone_sees_uniform_words(monkeypatch):
    for words in views().values():
        assert worst_byte(words) > FALSE_ALARM
    monkeypatch.setattr(reports, "split", narrow_split)
    for words in views().values():
        assert worst_byte(words) < FALSE_ALARM


def test_a_release_is_nothing_without_the_servers_key():
    """A party that hears shuffler and server talk has uniform words and closed envelopes."""
    made = Round(form=LARGE)
    release = made.release()
    for stranger in (made.parties.shuffler, Parties(1).server):
        with pytest.raises(Refused):
            totals(release, made.parties.roster, stranger, np.zeros(LARGE.words, np.uint64))
    heard = np.frombuffer(b"".join(each[52:] for each in release.inner), "<u8")
    assert worst_byte(heard) > FALSE_ALARM


def test_what_the_server_relays_tells_it_nothing():
    made = Round(form=LARGE)
    with pytest.raises(Refused):
        made.parties.server.open(made.reports[0], made.context.info("shuffler"))
    sealed = b"".join(report[48 : -(len(report) % 8) or None] for report in made.reports)
    assert worst_byte(np.frombuffer(sealed[: len(sealed) // 8 * 8], "<u8")) > FALSE_ALARM
    assert len({len(report) for report in made.reports}) == 1


def test_a_shuffler_cannot_put_shares_of_its_own_in_place_of_others():
    """Zeros for all silos but one, and the sum would be that one's answer."""
    made = Round()
    release, roster, server = made.release(), made.parties.roster, made.parties.server
    opened = [reports.open_report(each, made.context, roster, made.parties.shuffler) for each in made.reports]
    victim, zeros = opened[0], np.zeros(made.form.words, np.uint64)
    nothing = seal(bytes(made.form.inner_bytes - OVERHEAD), server.public, made.context.info("server"))
    fakes = [nothing] * (len(opened) - 1)
    for inner in ([victim.inner, *fakes], [victim.inner] * len(opened), [victim.inner]):
        with pytest.raises(Refused, match="share"):
            totals(replace(release, inner=tuple(inner), sum=victim.share), roster, server, zeros)


def test_an_aggregators_noise_is_on_the_sum_before_anything_is_read_of_it():
    """A silo that sends 2^63 less a guess would learn on which side of it the others are, without noise."""
    parties = Parties(3, {"noise_by": "aggregators"})
    made = Round(parties, form=Form("shares", 64, (2.0**23,)))
    made.numbers[:] = 0
    signs = []
    for last in (2**63 - 1, -(2**63)):
        made.numbers[2] = last
        made.reports = [parties.report(i, row, made.context) for i, row in enumerate(made.numbers)]
        fresh = Round(parties, form=made.form)
        fresh.reports = made.reports
        release, key = fresh.release(), parties.shuffler
        opened = [reports.open_report(each, made.context, parties.roster, key) for each in made.reports]
        known = np.add.reduce([each.share for each in opened])  # the sum without the noise that it knows
        noise = aggregators_noise(made.form)
        told = totals(replace(release, sum=known), parties.roster, parties.server, noise)
        signs.append((told > 0).mean())
    assert all(0.1 < share < 0.9 for share in signs)  # 64 coins: outside with probability 1e-11
