"""A deployed silo's streams are new whenever they are asked for, but for permutations."""

import numpy as np
import pytest
from scipy import stats
from support.helpers import FALSE_ALARM

from silos.entropy import Purpose, SystemEntropy, new_secret

DRAWN_ANEW = [purpose for purpose in Purpose if purpose is not Purpose.PERMUTATION]


def _numbers(secret: bytes, purpose: Purpose, member: int = 0, r: int = 0, count: int = 64) -> np.ndarray:
    (stream,) = SystemEntropy(secret).streams([member], r, purpose)
    return stream.integers(2**63, size=count)


@pytest.mark.parametrize("purpose", DRAWN_ANEW)
def test_streams_are_new_each_time(purpose: Purpose) -> None:
    """For the same round, of one object and of another with the same secret: no number comes twice."""
    entropy, secret = SystemEntropy(bytes(32)), bytes(32)
    streams = [stream for _ in range(20) for stream in entropy.streams([0, 1], 3, purpose)]
    drawn = [stream.integers(2**63, size=64) for stream in streams]
    drawn += [_numbers(secret, purpose) for _ in range(20)]
    assert len(np.unique(np.concatenate(drawn))) == 60 * 64


def test_a_permutation_survives_a_restart() -> None:
    secret = new_secret()
    first = SystemEntropy(secret)
    before = [stream.permutation(100) for stream in first.streams([0, 2], 0, Purpose.PERMUTATION)]
    again = [stream.permutation(100) for stream in first.streams([0, 2], 0, Purpose.PERMUTATION)]
    (alone,) = SystemEntropy(secret).streams([2], 0, Purpose.PERMUTATION)
    assert np.array_equal(before, again)
    assert np.array_equal(before[1], alone.permutation(100))


def test_permutations_differ_between_secrets_members_and_rounds() -> None:
    secrets = [new_secret() for _ in range(10)] + [bytes(32), bytes(33)]
    drawn = [
        _numbers(secret, Purpose.PERMUTATION, member, r)
        for secret in secrets
        for member, r in ((0, 0), (0, 1), (1, 0), (11, 0), (1, 10))
    ]
    assert len(np.unique(np.concatenate(drawn))) == len(drawn) * 64


def test_a_permutation_is_not_another_streams_beginning() -> None:
    secret = new_secret()
    drawn = [_numbers(secret, purpose) for purpose in Purpose]
    assert len(np.unique(np.concatenate(drawn))) == len(Purpose) * 64


def test_numbers_are_those_they_should_be() -> None:
    """Gaussian within and between streams, whose keys are all that differs between them."""
    streams = SystemEntropy(new_secret()).streams(range(500), 0, Purpose.NOISE)
    drawn = np.array([stream.standard_normal(100) for stream in streams])
    assert stats.kstest(drawn.ravel(), "norm").pvalue > FALSE_ALARM
    assert stats.kstest(drawn.mean(axis=1) * 10, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(drawn[:, 0], "norm").pvalue > FALSE_ALARM


def test_first_places_of_permutations_are_uniform() -> None:
    first = [
        SystemEntropy(new_secret()).streams([0], 0, Purpose.PERMUTATION)[0].permutation(10)[0]
        for _ in range(2000)
    ]
    assert stats.chisquare(np.bincount(first, minlength=10)).pvalue > FALSE_ALARM


def test_secrets_are_long_and_new() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(new_secret()) == 32
    with pytest.raises(ValueError, match="16 bytes, not 32"):
        SystemEntropy(bytes(16))
