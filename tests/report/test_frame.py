"""Axes show what was measured, and say where they begin."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from fedsim.report.style import frame

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
