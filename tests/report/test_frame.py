"""Axes show what was measured, and say where they begin."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fedsim.report.ends import apart
from fedsim.report.frame import frame

CASES: dict[str, tuple[list[float], list[float], tuple[float, float], str]] = {
    "from zero": ([0.1, 0.5], [], (0.0, 0.532), ""),
    "in the upper half": ([0.2, 0.3], [], (0.192, 0.308), "axis from 0.192, not 0"),
    "all alike": ([0.2, 0.2], [], (0.184, 0.216), "axis from 0.184, not 0"),
    "below zero": ([-0.5, 0.5], [], (-0.58, 0.58), ""),
    "a start far above the rest": (
        [0.6, 0.08, 0.1],
        [0.08, 0.1],
        (0.0784, 0.1016),
        "axis from 0.0784 to 0.102; the start is at 0.6",
    ),
    "a start that can be seen": ([0.6, 0.2, 0.4], [0.2, 0.4], (0.0, 0.632), ""),
    "nothing": ([], [], (0.0, 1.08), ""),
}


@pytest.mark.parametrize("case", CASES)
def test_an_axis_shows_its_values_and_says_where_it_begins(case: str) -> None:
    values, late, limits, said = CASES[case]
    axes = Figure().subplots()
    assert frame(axes, "y", values, late) == said
    assert axes.get_ylim() == pytest.approx(limits, rel=0.01)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 2)), max_size=8), st.floats(0.5, 20))
def test_places_apart_keep_their_order_their_distance_and_to_their_room(
    rows: list[tuple[float, float]], room: float
) -> None:
    wanted, heights = [row[0] for row in rows], [row[1] for row in rows]
    found = apart(wanted, heights, room)
    order = sorted(range(len(rows)), key=lambda i: wanted[i])
    for low, high in pairwise(order):
        assert found[high] - found[low] >= (heights[low] + heights[high]) / 2 - 1e-6
    if sum(heights) <= room:
        for at, height in zip(found, heights, strict=True):
            assert height / 2 - 1e-6 <= at <= room - height / 2 + 1e-6
