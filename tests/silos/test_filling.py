"""Noise drawn by two threads is the noise drawn by one."""

from __future__ import annotations

import numpy as np
import pytest

from silos import filling
from silos.entropy import Purpose, SeededEntropy
from silos.filling import Filling

NAMES = [f"silo-{i}" for i in range(20)]
WIDTH = 5_000


def _drawn(entropy: SeededEntropy, round_index: int) -> np.ndarray:
    rows = np.empty((len(NAMES), 1, WIDTH))
    Filling(entropy.streams(range(len(NAMES)), round_index, Purpose.NOISE), rows).finish()
    return rows[:, 0]


def _alone(round_index: int) -> np.ndarray:
    streams = SeededEntropy(0, 0, NAMES).streams(range(len(NAMES)), round_index, Purpose.NOISE)
    return np.stack([stream.standard_normal(WIDTH) for stream in streams])


@pytest.mark.parametrize("cores", [1, 2])
def test_threads_change_no_bit(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_cores", lambda: cores)
    entropy = SeededEntropy(0, 0, NAMES)
    for round_index in range(3):
        np.testing.assert_array_equal(_drawn(entropy, round_index), _alone(round_index))


def test_a_round_given_up_half_way_leaves_the_next_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_cores", lambda: 2)
    entropy = SeededEntropy(0, 0, NAMES)
    for round_index in range(1, 20):
        streams = entropy.streams(range(len(NAMES)), 0, Purpose.NOISE)
        Filling(streams, np.empty((len(NAMES), 1, WIDTH))).abandon()
        np.testing.assert_array_equal(_drawn(entropy, round_index), _alone(round_index))


def test_the_other_thread_does_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_cores", lambda: 2)
    streams = SeededEntropy(0, 0, NAMES).streams(range(len(NAMES)), 0, Purpose.NOISE)
    rows = np.empty((len(NAMES), 1, WIDTH))
    drawing = Filling(streams, rows)
    assert drawing._helper is not None
    drawing._helper.result(timeout=30)  # this thread draws nothing
    np.testing.assert_array_equal(rows[:, 0], _alone(0))


def test_a_failure_in_the_other_thread_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_cores", lambda: 2)
    streams = SeededEntropy(0, 0, NAMES).streams(range(len(NAMES)), 0, Purpose.NOISE)
    drawing = Filling(streams, np.empty((len(NAMES), 2 * WIDTH))[:, ::2])  # rows not contiguous
    with pytest.raises(ValueError, match="contiguous"):
        drawing.finish()
    drawing.abandon()
