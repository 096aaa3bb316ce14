"""Who takes part: fixed and random numbers, availability, attendance; laws, effective M and held sets."""

from itertools import combinations, pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.helpers import FALSE_ALARM
from support.refusals import refused

from fedsim.theory.participants import (
    Available,
    Participants,
    RandomSize,
    Recorded,
    attendance_law,
    effective_m,
    pull,
)
from server.participation import admitted_rounds, rounds_of_silos, schedule

CHANCES = (0.9, 0.2, 0.5)
HOLDS = [False, True, True, False, True, False]


def draw(participants: Participants, silos: int, rounds: int = 6000, seed: int = 0) -> list[tuple[int, ...]]:
    return [tuple(members) for members in schedule(silos, participants, [False] * rounds, seed, 0)]


def fits(drawn: list[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> bool:
    counts = np.array([drawn.count(members) for members in law])
    assert counts.sum() == len(drawn)
    return bool(stats.chisquare(counts, np.array(list(law.values())) * len(drawn)).pvalue > FALSE_ALARM)


def conditional_law(chances: tuple[float, ...]) -> dict[tuple[int, ...], float]:
    """Independent attendance given that somebody comes, by adding up all cases."""
    law = {}
    for there in product([False, True], repeat=len(chances)):
        members = tuple(i for i, here in enumerate(there) if here)
        law[members] = prod(p if here else 1 - p for p, here in zip(chances, there, strict=True))
    empty = law.pop(())
    return {members: p / (1 - empty) for members, p in law.items() if p > 0}


def test_every_set_of_m_silos_is_drawn_alike():
    law = dict.fromkeys(combinations(range(5), 2), 1 / 10)
    drawn = draw(2, 5)
    assert fits(drawn, law)
    assert not fits([*drawn, *[(0, 1)] * 300], law)


def test_rounds_are_drawn_independently():
    drawn = draw(1, 4)
    law = dict.fromkeys(product(range(4), repeat=2), 1 / 16)
    assert fits([(*a, *b) for a, b in pairwise(drawn)], law)


def test_a_random_size_is_uniform_and_so_are_the_sets_of_each_size():
    sets = [members for m in (2, 3) for members in combinations(range(4), m)]
    law = {members: 0.5 / (6 if len(members) == 2 else 4) for members in sets}
    drawn = draw(RandomSize(2, 3), 4)
    assert fits(drawn, law)
    assert not fits(drawn, dict.fromkeys(sets, 1 / 10))  # uniform over sets is another law


@pytest.mark.parametrize("chances", [CHANCES, (0.05, 0.02, 0.03), (1.0, 0.3, 0.3)])
def test_availability_is_independent_given_that_somebody_comes(chances):
    drawn = draw(Available(chances), 3)
    assert fits(drawn, conditional_law(chances))
    other = (*chances[:2], chances[2] + 0.1)
    assert not fits(drawn, conditional_law(other))


def test_a_silo_that_hardly_ever_comes_does_not_stall_the_draw():
    assert all(len(members) == 1 for members in draw(Available((1e-9,) * 4), 4, rounds=50))


@pytest.mark.parametrize(
    ("participants", "closed_form"),
    [
        (None, 1 / 3),
        (2, 1 / 2),
        (RandomSize(1, 3), (1 + 1 / 2 + 1 / 3) / 3),
        (Available(CHANCES), sum(p / len(members) for members, p in conditional_law(CHANCES).items())),
    ],
)
def test_the_effective_number_has_its_closed_form(participants, closed_form):
    assert effective_m(participants, 3) == pytest.approx(1 / closed_form, rel=1e-12)
    seen = np.array([1 / len(members) for members in draw(participants, 3, seed=5)])
    error = seen.std() / np.sqrt(len(seen))
    assert abs(seen.mean() - closed_form) <= 5 * error + 1e-12
    assert error < 0.005  # so that 1 / E[M_r], which is 5 to 20 errors away, would be seen


def test_a_recorded_attendance_has_its_average():
    record = Recorded(((0,), (0, 1, 2)), False, False, "file")
    assert effective_m(record, 3) == pytest.approx(2 / (1 + 1 / 3))


def test_a_full_round_counts_all_silos_exactly_however_it_comes_about():
    """1 / (1 / N) is below N for 141 of these N, and then the theorems' terms for M < N come in."""
    inexact = [n for n in range(1, 2001) if 1 / (1 / n) < n]
    assert len(inexact) == 141
    for n in range(1, 2001):
        everyone = tuple(range(n))
        ways: list[Participants] = [None, n, RandomSize(n, n), Recorded((everyone,) * 3, True, True, "file")]
        ways += [Available((1.0,) * n)] if n in (1, 2, *inexact[:6], 103, 1000) else []
        assert {effective_m(way, n) for way in ways} == {n}


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 3000))
def test_the_effective_number_is_between_the_least_and_the_largest(low, width, more):
    high = low + width
    assert low < effective_m(RandomSize(low, high), high + more) < high
    assert effective_m(high, high + more) == high


PULLS: list[Participants] = [
    None,
    2,
    RandomSize(1, 3),
    Available(CHANCES),
    Available((1.0, 0.3, 1e-6)),
    Available((1e-9, 2e-9, 3e-9)),
    Recorded(((0,), (0, 1, 2)), False, False, "file"),
]


@pytest.mark.parametrize("participants", PULLS, ids=str)
def test_the_pull_of_a_silo_is_what_its_coefficient_is_on_average(participants):
    """By adding up all sets: 1 for sets that are uniform given their size, and for no others."""
    laws = {
        0: {(0, 1, 2): 1.0},
        1: dict.fromkeys(combinations(range(3), 2), 1 / 3),
        2: {s: 1 / 3 / count for m, count in ((1, 3), (2, 3), (3, 1)) for s in combinations(range(3), m)},
    }
    if isinstance(participants, Available):
        law = conditional_law(participants.probabilities)
    elif isinstance(participants, Recorded):
        law = dict.fromkeys(participants.attendance, 0.5)
    else:
        law = laws[PULLS.index(participants)]
    expected = [sum(3 * p / len(members) for members, p in law.items() if i in members) for i in range(3)]
    np.testing.assert_allclose(pull(participants, 3), expected, rtol=1e-7)  # 1 - prod (1 - p) above is short
    if isinstance(participants, Available | Recorded):
        assert max(expected) > 1.05
    else:
        np.testing.assert_allclose(expected, 1)


def test_the_pull_is_exact_for_many_silos():
    """Two kinds: with A and B others of each kind there, P(M' = m) is a convolution of binomial laws."""
    often, seldom = 0.9, 0.05
    found = pull(Available((often,) * 700 + (seldom,) * 300), 1000)
    for p, counts in ((often, (699, 300)), (seldom, (700, 299))):
        kinds = zip(counts, (often, seldom), strict=True)
        others = np.convolve(*(stats.binom(n, q).pmf(range(n + 1)) for n, q in kinds))
        expected = 1000 * p * others @ (1 / np.arange(1, 1001))
        assert found[0 if p == often else 999] == pytest.approx(expected, rel=1e-10)
    assert found.sum() == pytest.approx(1000, rel=1e-10)


def test_the_attendance_law_of_equal_chances_is_binomial():
    np.testing.assert_allclose(attendance_law((0.3,) * 12), stats.binom(12, 0.3).pmf(range(13)), rtol=1e-10)


@pytest.mark.parametrize("participants", [5, RandomSize(1, 20), Available((0.4,) * 30)])
def test_every_way_holds_its_silos_and_follows_seed_and_trial(participants):
    drawn = schedule(30, participants, HOLDS, 3, 0)
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[3] == drawn[4]
    assert drawn[0] != drawn[3] != drawn[5]
    assert drawn == schedule(30, participants, HOLDS, 3, 0)
    assert drawn != schedule(30, participants, HOLDS, 3, 1)
    assert drawn != schedule(30, participants, HOLDS, 4, 0)
    assert schedule(30, participants, [True], 0, 0)[0]
    assert schedule(30, None, [False, True], 0, 0) == [list(range(30))] * 2


def record(*attendance: tuple[int, ...], repeat: bool = False, known: bool = False) -> Recorded:
    return Recorded(attendance, repeat, known, "there.csv")


def test_a_record_is_followed_and_may_be_longer_than_the_run():
    assert schedule(3, record((0,), (1, 2), (2,)), [False] * 2, 0, 0) == [[0], [1, 2]]


def test_of_held_silos_those_that_the_record_has_there_answer():
    slots = ((0, 1, 2), (0, 3), (3,), (1, 2, 3), (3,))
    assert schedule(4, record(*slots), [False, True, True, False], 0, 0) == [[0, 1, 2], [0], [1, 2], [3]]


def test_a_record_that_is_too_short_is_refused_or_repeated():
    with refused("scenario.participation.path", "there.csv", "2 rounds", "2 of the run's 3", "repeat: true"):
        schedule(2, record((0,), (1,)), [False] * 3, 0, 0)
    with refused("scenario.participation.path", "there.csv", "1 of the run's 2"):  # one never returns
        schedule(2, record((0,), (1,)), [False, True], 0, 0)
    repeated = record((0,), (1,), repeat=True)
    assert schedule(2, repeated, [False] * 5, 0, 0) == [[0], [1], [0], [1], [0]]
    assert schedule(2, repeated, [False, True], 0, 0) == [[0], [0]]


def test_a_plan_covers_all_rounds_unless_attendance_is_known_at_admission():
    rounds = [[0], [0, 1]]
    known: list[Participants] = [None, 1, RandomSize(1, 2), record((0,), known=True)]
    for participants in known:
        assert [list(own) for own in admitted_rounds(participants, rounds, 2)] == [[0, 1], [1]]
    unknown: list[Participants] = [Available((0.5, 0.5)), record((0,))]
    for participants in unknown:
        assert [list(own) for own in admitted_rounds(participants, rounds, 2)] == [[0, 1], [0, 1]]


def test_rounds_of_silos_transposes_the_schedule():
    assert [list(own) for own in rounds_of_silos([[0, 2], [1, 2], [2]], 4)] == [[0], [1], [0, 1, 2], []]
    assert [list(own) for own in rounds_of_silos([[0, 1], [0, 1]], 2)] == [[0, 1]] * 2
    for active in (None, 2):
        drawn = schedule(4, active, [False] * 25, seed=0, trial=0)
        own = rounds_of_silos(drawn, 4)
        assert [[m for m in range(4) if r in own[m]] for r in range(25)] == drawn
