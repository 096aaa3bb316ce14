"""Streams of random numbers: one for each silo, round and purpose, and no two alike."""

import itertools

import numpy as np
import pytest

from silos.entropy import Purpose, SeededEntropy

NAMES = ["north", "south", "east"]
RUNS = ["run"] * 3


def _numbers(entropy: SeededEntropy, member: int, r: int, purpose: Purpose, count: int = 64) -> np.ndarray:
    (stream,) = entropy.streams([member], r, purpose)
    return stream.integers(2**63, size=count)


def test_every_silo_round_and_purpose_has_a_stream_of_its_own() -> None:
    """No 64-bit number of one turns up in another, nor one stream's beginning inside another."""
    entropy = SeededEntropy(0, 0, NAMES, RUNS)
    places = list(itertools.product(range(3), range(4), Purpose))
    drawn = np.concatenate([_numbers(entropy, *place) for place in places])
    assert len(np.unique(drawn)) == 64 * len(places)


def test_streams_differ_between_seeds_trials_and_runs() -> None:
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (11, 0), (1, 10)]
    runs = [SeededEntropy(*place, NAMES, [run] * 3) for place in places for run in ("run", "ru", "another")]
    drawn = np.concatenate([_numbers(run, 0, 0, purpose) for run in runs for purpose in Purpose])
    assert len(np.unique(drawn)) == 64 * len(runs) * len(Purpose)


def test_every_silo_has_a_run() -> None:
    with pytest.raises(ValueError, match="shorter"):
        SeededEntropy(0, 0, NAMES, ["run"])


def test_cohorts_joined_keep_their_streams() -> None:
    parts = [SeededEntropy(0, trial, NAMES, [f"run {trial}"] * 3) for trial in (0, 1)]
    joined = SeededEntropy.joined(parts)
    for place in range(6):
        alone = _numbers(parts[place // 3], place % 3, 1, Purpose.NOISE)
        assert np.array_equal(_numbers(joined, place, 1, Purpose.NOISE), alone)


def test_a_stream_begins_anew_whenever_it_is_asked_for() -> None:
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


def test_members_streams_do_not_disturb_each_other() -> None:
    entropy = SeededEntropy(0, 0, NAMES, RUNS)
    together = [stream.standard_normal(8) for stream in entropy.streams([0, 2], 1, Purpose.NOISE)]
    for member, drawn in zip([0, 2], together, strict=True):
        (alone,) = entropy.streams([member], 1, Purpose.NOISE)
        assert np.array_equal(alone.standard_normal(8), drawn)
