"""Streams of random numbers: one for each silo, round and purpose, and no two alike."""

import itertools

import numpy as np
import pytest
from scipy import stats
from support.helpers import FALSE_ALARM

from silos.vault.entropy import Purpose, SeededEntropy, SystemEntropy, new_secret

NAMES = ["north", "south", "east"]
RUNS = ["run"] * 3


def _numbers(entropy: SeededEntropy, member: int, r: int, purpose: Purpose, count: int = 64) -> np.ndarray:
    (stream,) = entropy.streams([member], r, purpose)
    return stream.integers(2**63, size=count)


def test_every_silo_round_and_purpose_has_a_stream_of_its_own():
    """No 64-bit number of one turns up in another, nor one stream's beginning inside another."""
    entropy = SeededEntropy(0, 0, NAMES, RUNS)
    places = list(itertools.product(range(3), range(4), Purpose))
    drawn = np.concatenate([_numbers(entropy, *place) for place in places])
    assert len(np.unique(drawn)) == 64 * len(places)


def test_streams_differ_between_seeds_trials_and_runs():
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (11, 0), (1, 10)]
    runs = [SeededEntropy(*place, NAMES, [run] * 3) for place in places for run in ("run", "ru", "another")]
    drawn = np.concatenate([_numbers(run, 0, 0, purpose) for run in runs for purpose in Purpose])
    assert len(np.unique(drawn)) == 64 * len(runs) * len(Purpose)


def test_every_silo_has_a_run():
    with pytest.raises(ValueError, match="shorter"):
        SeededEntropy(0, 0, NAMES, ["run"])


def test_cohorts_joined_keep_their_streams():
    parts = [SeededEntropy(0, trial, NAMES, [f"run {trial}"] * 3) for trial in (0, 1)]
    joined = SeededEntropy.joined(parts)
    for place in range(6):
        alone = _numbers(parts[place // 3], place % 3, 1, Purpose.NOISE)
        assert np.array_equal(_numbers(joined, place, 1, Purpose.NOISE), alone)


def test_a_stream_begins_anew_whenever_it_is_asked_for():
    """Whatever was drawn in between, and in whatever amounts: half a buffer left over must not matter."""
    entropy = SeededEntropy(5, 2, NAMES, RUNS)
    first = _numbers(entropy, 1, 3, Purpose.NOISE)
    for count in (1, 2, 3, 5):
        (stream,) = entropy.streams([1], 3, Purpose.NOISE)
        stream.standard_normal(count)
        stream.integers(10, size=count, dtype=np.uint32)
        _numbers(entropy, 0, 9, Purpose.NOISE, count)
        assert np.array_equal(_numbers(entropy, 1, 3, Purpose.NOISE), first)
    assert np.array_equal(_numbers(SeededEntropy(5, 2, ["south"], ["run"]), 0, 3, Purpose.NOISE), first)


# A deployed silo's streams are new whenever they are asked for, but for permutations.

DRAWN_ANEW = [purpose for purpose in Purpose if purpose is not Purpose.PERMUTATION]


def _fresh_numbers(
    secret: bytes, purpose: Purpose, member: int = 0, r: int = 0, count: int = 64
) -> np.ndarray:
    (stream,) = SystemEntropy(secret).streams([member], r, purpose)
    return stream.integers(2**63, size=count)


@pytest.mark.parametrize("purpose", DRAWN_ANEW)
def test_streams_are_new_each_time(purpose):
    """For the same round, of one object and of another with the same secret: no number comes twice."""
    entropy, secret = SystemEntropy(bytes(32)), bytes(32)
    streams = [stream for _ in range(20) for stream in entropy.streams([0, 1], 3, purpose)]
    drawn = [stream.integers(2**63, size=64) for stream in streams]
    drawn += [_fresh_numbers(secret, purpose) for _ in range(20)]
    assert len(np.unique(np.concatenate(drawn))) == 60 * 64


def test_a_permutation_survives_a_restart():
    secret = new_secret()
    first = SystemEntropy(secret)
    before = [stream.permutation(100) for stream in first.streams([0, 2], 0, Purpose.PERMUTATION)]
    again = [stream.permutation(100) for stream in first.streams([0, 2], 0, Purpose.PERMUTATION)]
    (alone,) = SystemEntropy(secret).streams([2], 0, Purpose.PERMUTATION)
    assert np.array_equal(before, again)
    assert np.array_equal(before[1], alone.permutation(100))


def test_permutations_differ_between_secrets_members_and_rounds():
    secrets = [new_secret() for _ in range(10)] + [bytes(32), bytes(33)]
    drawn = [
        _fresh_numbers(secret, Purpose.PERMUTATION, member, r)
        for secret in secrets
        for member, r in ((0, 0), (0, 1), (1, 0), (11, 0), (1, 10))
    ]
    assert len(np.unique(np.concatenate(drawn))) == len(drawn) * 64


def test_a_permutation_is_not_another_streams_beginning():
    secret = new_secret()
    drawn = [_fresh_numbers(secret, purpose) for purpose in Purpose]
    assert len(np.unique(np.concatenate(drawn))) == len(Purpose) * 64


def test_numbers_are_those_they_should_be():
    """Gaussian within and between streams, whose keys are all that differs between them."""
    streams = SystemEntropy(new_secret()).streams(range(500), 0, Purpose.NOISE)
    drawn = np.array([stream.standard_normal(100) for stream in streams])
    assert stats.kstest(drawn.ravel(), "norm").pvalue > FALSE_ALARM
    assert stats.kstest(drawn.mean(axis=1) * 10, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(drawn[:, 0], "norm").pvalue > FALSE_ALARM


def test_first_places_of_permutations_are_uniform():
    first = [
        SystemEntropy(new_secret()).streams([0], 0, Purpose.PERMUTATION)[0].permutation(10)[0]
        for _ in range(2000)
    ]
    assert stats.chisquare(np.bincount(first, minlength=10)).pvalue > FALSE_ALARM


def test_secrets_are_long_and_new():
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(new_secret()) == 32
    with pytest.raises(ValueError, match="16 bytes, not 32"):
        SystemEntropy(bytes(16))
