"""Who takes part: uniform, public, and the same for everyone who knows the seed."""

from itertools import combinations, pairwise

import numpy as np
from scipy import stats
from support.helpers import FALSE_ALARM

from server.participation import rounds_of_silos, schedule


def _uniform(counts: np.ndarray) -> bool:
    return bool(stats.chisquare(counts).pvalue > FALSE_ALARM)


def test_every_set_of_m_silos_is_drawn_alike() -> None:
    drawn = schedule(5, 2, [False] * 4000, seed=0, trial=0)
    sets = list(combinations(range(5), 2))
    counts = np.array([drawn.count(list(members)) for members in sets])
    assert counts.sum() == 4000
    assert _uniform(counts)
    assert not _uniform(counts + np.where(np.arange(len(sets)) == 0, 200, 0))


def test_rounds_are_drawn_independently() -> None:
    drawn = schedule(4, 1, [False] * 4000, seed=1, trial=0)
    pairs = np.bincount([4 * a[0] + b[0] for a, b in pairwise(drawn)], minlength=16)
    assert _uniform(pairs)


def test_positions_are_ascending_and_in_range() -> None:
    for members in schedule(7, 3, [False] * 200, seed=2, trial=0):
        assert members == sorted(set(members))
        assert len(members) == 3
        assert set(members) <= set(range(7))


def test_hold_keeps_the_silos_of_the_round_before() -> None:
    holds = [False, True, True, False, True, False]
    drawn = schedule(50, 5, holds, seed=3, trial=0)
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[3] == drawn[4]
    assert drawn[0] != drawn[3] != drawn[5]


def test_a_first_round_that_holds_draws() -> None:
    assert len(schedule(6, 2, [True, True], seed=0, trial=0)[0]) == 2


def test_without_m_all_take_part() -> None:
    assert schedule(3, None, [False, True], seed=0, trial=0) == [[0, 1, 2]] * 2


def test_the_schedule_is_a_function_of_seed_and_trial() -> None:
    def draw(seed: int, trial: int) -> list[list[int]]:
        return schedule(20, 4, [False] * 30, seed, trial)

    assert draw(1, 2) == draw(1, 2)
    assert draw(1, 2) != draw(1, 3)
    assert draw(1, 2) != draw(2, 2)


def test_rounds_of_silos_transposes_the_schedule() -> None:
    assert [list(own) for own in rounds_of_silos([[0, 2], [1, 2], [2]], 4)] == [[0], [1], [0, 1, 2], []]
    assert [list(own) for own in rounds_of_silos([[0, 1], [0, 1]], 2)] == [[0, 1]] * 2
    for active in (None, 2):
        drawn = schedule(4, active, [False] * 25, seed=0, trial=0)
        own = rounds_of_silos(drawn, 4)
        assert [[m for m in range(4) if r in own[m]] for r in range(25)] == drawn
