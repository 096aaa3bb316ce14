"""Verdicts on claimed orderings: each word where it must come, and nowhere else."""

import numpy as np
import pytest

from benchmarks.thesis.trials import Curve
from benchmarks.thesis.verdicts import Claim, Verdict, differences_of, interval, judge, verdict

TRIALS = 20
CLAIM = Claim(text="a is better than b", scenario="made_up", less="a", than="b")


def curve(name: str, by_epsilon: dict, private: bool = True, setting: str = "") -> Curve:
    at = {e: dict(enumerate(map(float, values))) for e, values in by_epsilon.items()}
    return Curve(setting, name, private, at)


def shared() -> np.ndarray:
    """What a trial's split does to every algorithm: far more than their difference."""
    return 0.5 + 0.2 * np.random.default_rng(3).standard_normal(TRIALS)


def noise(seed: int, scale: float = 0.01) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(TRIALS)


def judged(difference: float, **claim: object) -> Verdict:
    """`a` is worse than `b` by this much, at both epsilons."""
    base = shared()
    a = curve("a", {e: base + difference + noise(i) for i, e in enumerate([1.0, 3.0])})
    return verdict(CLAIM.model_copy(update=claim), [a, curve("b", {1.0: base, 3.0: base})])


def test_pairing_sees_a_difference_that_splits_would_hide():
    assert judged(-0.02).word == "holds"
    assert judged(+0.02).word == "fails"
    shuffled = np.random.default_rng(0).permutation(shared())
    apart = [curve("a", {1.0: shared() - 0.02}), curve("b", {1.0: shuffled})]
    assert verdict(CLAIM, apart).word == "undecided"


def test_a_small_difference_is_undecided():
    found = judged(0.0)
    assert found.word == "undecided"
    assert found.deciding is not None
    name, (_, low, high) = found.deciding
    assert name.startswith("epsilon")
    assert low < 0 < high
    assert found.sides == (0, 2, 0)


def test_one_epsilon_against_it_is_enough_to_fail_and_none_may_be_open_to_hold():
    base = shared()
    b = curve("b", {1.0: base, 3.0: base})
    against = verdict(CLAIM, [curve("a", {1.0: base - 0.02 + noise(1), 3.0: base + 0.02 + noise(2)}), b])
    open_ = verdict(CLAIM, [curve("a", {1.0: base - 0.02 + noise(1), 3.0: base + noise(2)}), b])
    assert (against.word, against.sides) == ("fails", (1, 0, 1))
    assert against.deciding is not None
    assert against.deciding[0] == "epsilon 3"
    assert (open_.word, open_.sides) == ("undecided", (1, 1, 0))
    assert open_.deciding is not None
    assert open_.deciding[0] == "epsilon 3"


def test_a_tie_is_never_worse_and_not_better():
    base = shared()
    same = [curve("a", {1.0: base}), curve("b", {1.0: base})]
    assert verdict(CLAIM, same).word == "undecided"
    assert verdict(CLAIM.model_copy(update={"strict": False}), same).word == "holds"


def test_failing_among_many_comparisons_takes_more_than_one_alone():
    """One of twenty is against at 95 % and not at Bonferroni's level: chance alone would do that."""
    values = noise(5)
    values += 2.4 * values.std(ddof=1) / np.sqrt(TRIALS) - values.mean()  # t = 2.4
    assert judge({"one": values}).word == "fails"
    others = {f"{i}": noise(10 + i) - 0.1 for i in range(19)}
    assert judge(others | {"one": values}).word == "undecided"


def test_factor_margin_level_and_epsilons():
    assert judged(-0.02, margin=0.01).word == "holds"
    assert judged(-0.02, margin=0.04).word == "fails"
    base = shared()
    a, b = curve("a", {1.0: 0.8 * base, 3.0: 2 * base}), curve("b", {1.0: base, 3.0: base})
    less = CLAIM.model_copy(update={"epsilons": (1.0,)})
    assert verdict(less.model_copy(update={"factor": 0.9}), [a, b]).word == "holds"
    assert verdict(less.model_copy(update={"factor": 0.7}), [a, b]).word == "fails"
    assert verdict(CLAIM, [a, b]).word == "fails"  # at epsilon 3
    level = CLAIM.model_copy(update={"than": None, "margin": -0.7})
    assert verdict(level, [curve("a", {1.0: 0.6 + noise(1)})]).word == "holds"
    assert verdict(level, [curve("a", {1.0: 0.8 + noise(1)})]).word == "fails"


def test_a_twin_is_compared_at_every_epsilon():
    base = shared()
    claim = CLAIM.model_copy(update={"than_private": False})
    a = curve("a", {12.0: base - 0.02 + noise(1), 18.0: base - 0.03 + noise(2)})
    twin, private = curve("b", {None: base}, private=False), curve("b", {12.0: base - 1, 18.0: base - 1})
    assert verdict(claim, [a, private, twin]).word == "holds"
    assert verdict(CLAIM, [a, private, twin]).word == "fails"


def test_an_average_may_hold_where_single_ones_do_not():
    base = shared()
    a = curve("a", {1.0: base - 0.1 + noise(1), 3.0: base + 0.02 + noise(2)})
    b = curve("b", {1.0: base, 3.0: base})
    assert verdict(CLAIM, [a, b]).word == "fails"
    found = verdict(CLAIM.model_copy(update={"average": True}), [a, b])
    assert found.word == "holds"
    assert found.deciding is not None
    assert found.deciding[1].mean == pytest.approx(-0.04, abs=0.01)


def test_settings_are_compared_within_themselves():
    base = shared()
    here = [
        curve("a", {1.0: base - 0.02 + noise(1)}, setting="M = 3"),
        curve("b", {1.0: base}, setting="M = 3"),
    ]
    there = [
        curve("a", {1.0: base + 0.02 + noise(2)}, setting="M = 7"),
        curve("b", {1.0: base}, setting="M = 7"),
    ]
    assert list(differences_of(CLAIM, here + there)) == ["M = 3, epsilon 1", "M = 7, epsilon 1"]
    assert verdict(CLAIM, here).word == "holds"
    assert verdict(CLAIM, here + there).word == "fails"


def test_a_trial_that_is_missing_decides_nothing():
    whole, cut = np.full(10, -1.0) + 0.01 * np.arange(10), np.full(9, -1.0) + 0.01 * np.arange(9)
    assert judge({"one": whole, "two": whole}).word == "holds"
    assert judge({"one": whole, "two": cut}).word == "undecided"


def test_nothing_to_compare_is_undecided():
    base = shared()
    assert verdict(CLAIM, []) == Verdict("undecided", None)
    assert verdict(CLAIM, [curve("a", {1.0: base})]) == Verdict("undecided", None)
    assert verdict(CLAIM, [curve("a", {1.0: base[:1]}), curve("b", {1.0: base[:1]})]).word == "undecided"
    assert verdict(CLAIM, [curve("a", {1.0: base}), curve("b", {3.0: base})]).word == "undecided"


def test_trials_that_only_one_of_them_has_are_left_out():
    base = shared()
    a, b = curve("a", {1.0: base - 0.02}), curve("b", {1.0: base})
    del b.at[1.0][0]
    (found,) = differences_of(CLAIM, [a, b]).values()
    assert len(found) == TRIALS - 1
    assert found == pytest.approx(-0.02)


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    drawn = [interval(rng.standard_normal(5)) for _ in range(500)]
    covered = np.mean([low <= 0 <= high for _, low, high in drawn])
    assert covered == pytest.approx(0.95, abs=0.03)
