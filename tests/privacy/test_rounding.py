"""What is shown of an upper bound is never below it, nor of a lower bound above it."""

import math

import numpy as np
import pytest

from fedsim.privacy.rounding import shown_down, shown_up


@pytest.mark.parametrize("digits", [2, 3, 4, 6])
def test_rounding_never_flatters(digits: int) -> None:
    rng = np.random.default_rng(0)
    step = 10.0 ** (1 - digits)
    for value in 10 ** rng.uniform(-12, 6, size=2000):
        assert value <= float(shown_up(value, digits)) <= value * (1 + step)
        assert value * (1 - step) <= float(shown_down(value, digits)) <= value


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (1.0, "1", "1"),
        (0.1, "0.1", "0.1"),
        (0.99991, "1", "0.9999"),
        (math.nextafter(1, 2), "1.001", "1"),
        (math.nextafter(1, 0), "1", "0.9999"),
        (9.9999, "10", "9.999"),
        (1e-9, "1e-09", "1e-09"),
        (0.0, "0", "0"),
        (math.inf, "inf", "inf"),
        (None, "none", "none"),
    ],
)
def test_at_the_edges(value: float | None, up: str, down: str) -> None:
    assert (shown_up(value), shown_down(value)) == (up, down)
