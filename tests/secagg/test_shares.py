"""Two shares of an integer: each alone is uniform, both together are exact."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.helpers import FALSE_ALARM
from support.uniform import narrow_split, slightly_odd_split, worst_byte

from fedsim.secagg.reports import Words, add, split, total

Splitter = Callable[[np.ndarray], tuple[Words, Words]]
NUMBERS = 40_000


@pytest.mark.parametrize("value", [0, 1, -1, 12345, -(2**63), 2**63 - 1])
def test_each_share_alone_is_uniform_whatever_it_hides(value: int) -> None:
    for share in split(np.full(NUMBERS, value, np.int64)):
        assert worst_byte(share) > FALSE_ALARM


@pytest.mark.parametrize("splitter", [narrow_split, slightly_odd_split])
def test_that_test_rejects_a_splitter_that_is_not(splitter: Splitter) -> None:
    for share in splitter(np.full(NUMBERS, 12345, np.int64)):
        assert worst_byte(share) < FALSE_ALARM


def test_no_two_splits_share_words() -> None:
    counts = np.zeros(1000, np.int64)
    assert len(np.unique(np.concatenate([split(counts)[0] for _ in range(5)]))) == 5000


@given(arrays(np.int64, (7, 3), elements=st.integers(-(2**60), 2**60 - 1)))
def test_sums_are_exact(counts: np.ndarray) -> None:
    for_server, for_shuffler = zip(*(split(row) for row in counts), strict=True)
    assert (total(add(for_server), add(for_shuffler)) == counts.sum(axis=0)).all()


def test_sums_wrap_at_two_to_the_64() -> None:
    counts = np.array([[2**63 - 1], [1], [-(2**63)], [-1]], np.int64)
    a, b = split(counts)
    assert total(add(a[:2]), add(b[:2])) == [-(2**63)]
    assert total(add(a[2:]), add(b[2:])) == [2**63 - 1]
    assert total(add(a), add(b)) == [-1]


def test_shares_have_the_shape_of_what_they_split() -> None:
    for share in split(np.arange(24).reshape(2, 3, 4)[:, ::2]):
        assert (share.shape, share.dtype) == ((2, 2, 4), np.uint64)
