"""Error against epsilon shows every point, bar and twin that it is given, each line with its own look."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.protocol.errors import InputError
from fedsim.report import epsilon
from fedsim.report.epsilon import Published, Series, error_against_epsilon, read_published
from fedsim.report.style import look

LEVELS = [6.0, 0.75, 1.5, 18.0]
SERIES = [
    Series("MB-SGD", LEVELS, [0.2, 0.4, 0.3, 0.1], [0.15, 0.3, 0.2, 0.1], [0.3, 0.45, 0.4, 0.12], twin=0.08),
    Series(
        "accelerated", LEVELS, [0.1, 0.3, 0.2, 0.05], [0.1, 0.3, 0.2, 0.05], [0.1, 0.3, 0.2, 0.05], twin=0.04
    ),
    Series("local SGD $x$ <&>", [1.5], [0.35], [0.3], [0.4]),
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    kept = epsilon.save

    def save(figure: Figure, folder: Path, stem: str) -> str:
        figures.append(figure)
        return kept(figure, folder, stem)

    monkeypatch.setattr(epsilon, "save", save)
    return figures


def lines(axes: Axes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        str(bars.get_label()): (np.asarray(bars[0].get_xdata()), np.asarray(bars[0].get_ydata()))
        for bars in axes.containers
    }


def test_points_are_in_order_and_at_their_place(drawn: list[Figure], tmp_path: Path) -> None:
    svg = error_against_epsilon(SERIES, tmp_path, [Published("Table 2", [1.0, 4.0], [0.3, 0.2])])
    axes = drawn[0].axes[0]
    found = lines(axes)
    assert sorted(found) == sorted(each.name for each in SERIES)
    x, y = found["MB-SGD"]
    assert x == pytest.approx([0.75, 1.5, 6.0, 18.0], rel=0.03)
    assert y.tolist() == [0.4, 0.3, 0.2, 0.1]
    assert axes.get_xscale() == "log"
    for text in (
        "MB-SGD",
        "accelerated",
        "Table 2 (published)",
        "non-private twin",
        "local SGD $x$ &lt;&amp;&gt;",
    ):
        assert text in svg
    assert (tmp_path / "error-against-epsilon.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "error-against-epsilon.svg").read_text().startswith("<?xml")


def test_bars_are_the_intervals(drawn: list[Figure], tmp_path: Path) -> None:
    error_against_epsilon(SERIES[:1], tmp_path)
    bars = drawn[0].axes[0].containers[0][2][0].get_segments()
    spans = [tuple(segment[:, 1]) for segment in bars]
    assert np.array(spans) == pytest.approx(np.array([(0.3, 0.45), (0.2, 0.4), (0.15, 0.3), (0.1, 0.12)]))


def test_twins_are_levels_from_end_to_end(drawn: list[Figure], tmp_path: Path) -> None:
    error_against_epsilon(SERIES, tmp_path)
    axes = drawn[0].axes[0]
    levels = [ys for line in axes.lines if len(ys := np.asarray(line.get_ydata())) == 2 and ys[0] == ys[1]]
    assert sorted(float(ys[0]) for ys in levels) == [0.04, 0.08]


def test_series_at_one_epsilon_stand_side_by_side(drawn: list[Figure], tmp_path: Path) -> None:
    error_against_epsilon(SERIES, tmp_path)
    found = lines(drawn[0].axes[0])
    assert len({float(x[np.argmin(abs(x - 1.5))]) for x, _ in found.values()}) == 3


def test_looks_differ_without_colour() -> None:
    plain = {(look(i).dash, look(i).marker) for i in range(20)}
    assert len(plain) == 20


@pytest.mark.parametrize("levels", [[], [0.0], [-1.0], [float("inf")], [float("nan")]])
def test_what_cannot_be_drawn_is_refused(levels: list[float], tmp_path: Path) -> None:
    ones = [0.1] * len(levels)
    with pytest.raises(ValueError, match="epsilons"):
        error_against_epsilon([Series("a", levels, ones, ones, ones)], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_series_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="'a'"):
        Series("a", [1.0, 2.0], [0.1], [0.1], [0.1])


def test_published_points_are_read_by_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("algorithm,epsilon,error,page\nA,1,0.5,7\nB,1,0.6,7\nA,2,0.4,8\n")
    assert read_published(path) == [Published("A", (1.0, 2.0), (0.5, 0.4)), Published("B", (1.0,), (0.6,))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"", "has none"),
        (b"algorithm,eps,error\nA,1,2\n", "no column 'epsilon'"),
        (b"algorithm,epsilon,error\n", "no points"),
        (b"algorithm,epsilon,error\nA,1,0.5\nA,-1,0.5\n", "line 3: epsilon '-1' is not a positive number"),
        (b"algorithm,epsilon,error\nA,1,much\n", "line 2: error 'much'"),
        (b"algorithm,epsilon,error\nA,1\n", "line 2: error None"),
    ],
)
def test_a_bad_file_of_points_is_refused(text: bytes | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        read_published(path)
    assert expected in str(caught.value)
    assert "points.csv" in str(caught.value)
