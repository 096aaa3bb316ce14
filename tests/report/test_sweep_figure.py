"""Error against epsilon shows every point, bar and twin that it is given, each line with its own look."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.report import style
from fedsim.report.style import look
from fedsim.report.sweep_figure import Point, draw

LEVELS = (6.0, 0.75, 1.5, 18.0)
ERRORS = (0.2, 0.4, 0.3, 0.1)
LOWS, HIGHS = (0.15, 0.3, 0.2, 0.1), (0.3, 0.45, 0.4, 0.12)
FIRST = [Point("MB-SGD", *each) for each in zip(LEVELS, ERRORS, LOWS, HIGHS, strict=True)]
THREE = [
    *FIRST,
    *(Point("accelerated", *each) for each in zip(LEVELS, (0.1, 0.3, 0.2, 0.05), strict=True)),
    Point("local SGD $x$ <&>", 1.5, 0.35, 0.3, 0.4),
]
SERIES = [
    *THREE,
    Point("MB-SGD (non-private)", None, 0.08, family="MB-SGD"),
    Point("accelerated (non-private)", None, 0.04, family="accelerated"),
    Point("Table 2", 1.0, 0.3, trials=None),
    Point("Table 2", 4.0, 0.2, trials=None),
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    kept = style.save

    def save(figure: Figure, folder: Path, stem: str) -> str:
        figures.append(figure)
        return kept(figure, folder, stem)

    monkeypatch.setattr(style, "save", save)
    return figures


def picture(points: list[Point], folder: Path) -> str:
    figure = draw(points, ["epsilon of each silo"], "test error", "title", "mean of 3 trials")
    return style.save(figure, folder, "figure")


def lines(axes: Axes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        str(bars.get_label()): (np.asarray(bars[0].get_xdata()), np.asarray(bars[0].get_ydata()))
        for bars in axes.containers
    }


def test_points_are_in_order_and_at_their_place(drawn: list[Figure], tmp_path: Path) -> None:
    svg = picture(SERIES, tmp_path)
    axes = drawn[0].axes[0]
    found = lines(axes)
    assert sorted(found) == ["MB-SGD", "Table 2", "accelerated", "local SGD $x$ <&>"]
    x, y = found["MB-SGD"]
    assert x == pytest.approx([0.75, 1.5, 6.0, 18.0], rel=0.05)
    assert y.tolist() == [0.4, 0.3, 0.2, 0.1]
    assert axes.get_xscale() == "log"
    texts = ("MB-SGD", "accelerated", "Table 2", "local SGD $x$ &lt;&amp;&gt;")
    for text in (*texts, "mean of 3 trials", "epsilon of each silo"):
        assert text in svg
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


def test_bars_are_the_intervals(drawn: list[Figure], tmp_path: Path) -> None:
    picture(FIRST, tmp_path)
    bars = drawn[0].axes[0].containers[0][2][0].get_segments()
    spans = [tuple(segment[:, 1]) for segment in bars]
    assert np.array(spans) == pytest.approx(np.array([(0.3, 0.45), (0.2, 0.4), (0.15, 0.3), (0.1, 0.12)]))


def test_twins_are_levels_from_end_to_end(drawn: list[Figure], tmp_path: Path) -> None:
    picture(SERIES, tmp_path)
    across = [line for line in drawn[0].axes[0].lines if list(np.asarray(line.get_xdata())) == [0, 1]]
    assert sorted(float(np.asarray(line.get_ydata())[0]) for line in across) == [0.04, 0.08]
    colours = {str(line.get_color()) for line in across}
    assert colours == {look(0).colour, look(1).colour}
    assert {str(line.get_marker()) for line in across} == {"None"}  # no place on an axis that it is not on


@pytest.mark.parametrize("broad", [False, True])
def test_every_series_is_in_the_legend_which_covers_no_axes(broad: bool) -> None:
    """Below them in two columns; of a broad figure beside them, in one."""
    figure = draw(SERIES, ["epsilon of each silo"], "test error", "title", "mean of 3 trials", broad=broad)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    names = [text.get_text().partition(": ")[0] for text in legend.get_texts()]
    assert set(names) == {point.series for point in SERIES}
    last = {point.series: point.value for point in sorted(SERIES, key=lambda point: point.x or 0)}
    assert [last[name] for name in names] == sorted(last.values(), reverse=True)
    box = legend.get_window_extent()
    boxes = [text.get_window_extent() for text in legend.get_texts()]
    assert box.x0 > figure.axes[0].bbox.x1 if broad else box.y1 < figure.axes[0].bbox.y0
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert len({round(each.x0) for each in boxes}) == (1 if broad else 2)
    assert all(above.y0 >= below.y1 for above, below in pairwise(boxes) if above.x0 == below.x0)
    assert figure.get_figwidth() == (style.WIDE if broad else 4.4)


def test_a_level_far_from_the_lines_is_named_with_its_value_outside_the_axis() -> None:
    points = [Point("a", x, value) for x, value in ((1.0, 0.97), (2.0, 0.99))]
    points += [Point("near", None, 0.96), Point("majority class", None, 0.5)]
    figure = draw(points, ["epsilon of each silo"], "ROC AUC", "title", "")
    low, _ = figure.axes[0].get_ylim()
    assert 0.9 < low < 0.96
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "a",
        "near: 0.96",
        "majority class: 0.5",
    ]


def test_series_at_one_epsilon_stand_side_by_side(drawn: list[Figure], tmp_path: Path) -> None:
    picture(THREE, tmp_path)
    found = lines(drawn[0].axes[0])
    assert len({float(x[np.argmin(abs(x - 1.5))]) for x, _ in found.values()}) == 3


def test_the_error_axis_begins_at_zero_or_says_that_it_does_not(drawn: list[Figure], tmp_path: Path) -> None:
    assert "axis from" not in picture(FIRST, tmp_path)
    assert drawn[0].axes[0].get_ylim()[0] == 0
    high = [Point("high", 1.0, 0.21, 0.2, 0.22), Point("high", 2.0, 0.2)]
    assert "axis from 0.198, not 0" in picture(high, tmp_path)
    low, top = drawn[1].axes[0].get_ylim()
    assert 0.19 < low < 0.2
    assert 0.22 < top < 0.23


def test_without_an_axis_every_series_is_a_row(drawn: list[Figure], tmp_path: Path) -> None:
    rows = [Point(name, None, error) for name, error in (("one", 0.1), ("two", 0.2))]
    picture(rows, tmp_path)
    axes = drawn[0].axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["one", "two"]
    assert [float(bars[0].get_xdata()[0]) for bars in axes.containers] == [0.1, 0.2]


def test_looks_differ_without_colour() -> None:
    plain = {(look(i).dash, look(i).marker) for i in range(20)}
    assert len(plain) == 20


def test_labels_of_epsilons_that_lie_close_do_not_cover_each_other(
    drawn: list[Figure], tmp_path: Path
) -> None:
    picture([Point("a", x, 0.2) for x in (0.5, 2, 4, 8, 8.30327, 9, 9.5)], tmp_path)
    axes = drawn[0].axes[0]
    drawn[0].canvas.draw()
    texts = [text for text in axes.get_xticklabels() if text.get_text()]
    assert [text.get_text() for text in texts] == ["0.5", "2", "4", "8"]
    boxes = [text.get_window_extent() for text in texts]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_twin_that_is_a_line_is_hollow_and_its_run_is_not(drawn: list[Figure], tmp_path: Path) -> None:
    at = ((0.1, 0.2), (0.2, 0.3))
    picture([Point(name, *each, family="a") for name in ("a", "a (non-private)") for each in at], tmp_path)
    run, twin = (bars[0] for bars in drawn[0].axes[0].containers)
    assert (run.get_color(), run.get_marker()) == (twin.get_color(), twin.get_marker())
    assert (run.get_markerfacecolor(), twin.get_markerfacecolor()) == (run.get_color(), "white")
    assert run.get_linestyle() != twin.get_linestyle()


def test_against_a_metric_points_keep_their_order_and_both_bars_on_an_axis_from_zero() -> None:
    """Along a line the weight grows, and the gap falls but once."""
    gaps, errors = (0.2, 0.08, 0.1, 0.02), (0.16, 0.17, 0.168, 0.19)
    points = [
        Point("epsilon=1", gap, error, error - 0.01, error + 0.02, across=(gap - 0.01, gap + 0.03))
        for gap, error in zip(gaps, errors, strict=True)
    ]
    points += [Point("epsilon=3", 0.05, 0.16), Point("epsilon=9", None, 0.15)]
    points += [Point(f"published, epsilon={e}", 0.1, 0.2, trials=None) for e in (1, 3)]
    figure = draw(points, ["parity gap"], "test error", "title", "")
    (axes,) = figure.axes
    x, y = lines(axes)["epsilon=1"]
    assert x.tolist() == list(gaps)
    assert y.tolist() == list(errors)
    assert (axes.get_xscale(), axes.get_xlim()[0]) == ("linear", 0.0)
    across, up = (bars.get_segments() for bars in axes.containers[0][2])
    np.testing.assert_allclose([each[:, 0] for each in across], [(g - 0.01, g + 0.03) for g in gaps])
    np.testing.assert_allclose([each[:, 1] for each in up], [(e - 0.01, e + 0.02) for e in errors])
    colours = {str(bars.get_label()): bars[0].get_color() for bars in axes.containers}
    assert colours["published, epsilon=1"] == colours["epsilon=1"] == look(0).colour
    assert colours["published, epsilon=3"] == colours["epsilon=3"] == look(1).colour
    (level,) = [line for line in axes.lines if list(np.asarray(line.get_xdata())) == [0, 1]]
    assert str(level.get_label()) == "epsilon=9: 0.15"  # its gap is not known


def test_a_broad_figure_against_a_metric_has_its_names_below() -> None:
    points = [Point("a", 0.2, 0.1, across=(0.2, 0.2)), Point("a", 0.1, 0.2, across=(0.1, 0.1))]
    figure = draw(points, ["parity gap"], "test error", "title", "", broad=True)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a"]
