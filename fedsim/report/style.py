"""The style of every figure: Okabe and Ito's colours (safe for colour-blind readers), for each line another
dash and marker, so that a figure reads in black and white, and axes' limits; sized for a phone's width.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDE = 9.2  # inches of a figure that takes a large screen's width at the same size of letters
GREY = "#666666"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#56B4E9", "#E69F00")
_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_UPPER = 0.5  # values that all lie above this share of the largest leave the axis's lower part empty
_EARLY = 0.1  # the share of the rounds after which a run has begun in earnest
_FLAT = 0.25  # later values that take less than this share of an axis cannot be read on it
_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # names are plain text, dollars too
    "svg.fonttype": "none",  # letters stay letters: small, and they can be searched and copied
    "svg.hashsalt": "fedsim",
}


class Look(NamedTuple):
    """One line's colour, dash and marker."""

    colour: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str


def look(index: int) -> Look:
    """The index-th line's look; colours repeat after 7, combinations with markers after 70."""
    return Look(*(cycle[index % len(cycle)] for cycle in (_COLOURS, _DASHES, _MARKERS)))  # type: ignore[arg-type]


class Picture(Figure):
    """A figure that a notebook shows, whether pyplot is imported or not."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        with _style():
            self.savefig(png, format="png", dpi=120)
        return png.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name may have any letter
        yield


@contextmanager
def styled(height: float = 3.0, width: float = 4.4, legend: bool = True) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one set of axes, to be drawn within; at the end it gets its legend (`legend_below`)."""
    with _style():
        figure = Picture(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        axes.grid(alpha=0.3, linewidth=0.6)
        yield figure, axes
        if legend:
            legend_below(figure, axes)


def label(text: str, most: int = 22) -> str:
    """A name that leaves room for the figure: of a long one both ends, which tell it from others."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    end = most // 3
    cut = f"{shown[: most - end - 1]}\N{HORIZONTAL ELLIPSIS}{shown[-end:]}"
    return shown if len(shown) <= most else cut


def from_zero(axes: Axes, *directions: str) -> None:
    """Let an axis ("x" or "y") begin at zero and end a little above the data."""
    for direction in directions:
        top = axes.dataLim.p1["xy".index(direction)]
        axes.set(**{f"{direction}lim": (0, 1.06 * top if top > 0 else 1)})


def thinned(count: int, most: int = 300) -> np.ndarray:
    """Positions of at most `most` of `count` points, evenly, both ends among them: files stay small."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def legend_below(figure: Figure, axes: Axes, named: tuple[list[Any], list[str]] | None = None) -> None:
    """Put a legend (`named`: handles and labels) under the axes; the figure grows by its height."""
    handles, labels = named or axes.get_legend_handles_labels()
    if not labels:
        return
    columns = next((count for count in (3, 2) if _width(labels, count) <= _LETTERS), 1)
    figure.set_figheight(figure.get_figheight() - _LINE * (-len(labels) // columns))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=1.6,
        handletextpad=0.5,
        columnspacing=0.8,
    )


_LETTERS, _HANDLE, _LINE = 63, 5, 0.19
"""Letters that fit beside each other in a legend, what a handle takes of them, and a line in inches."""


def _width(labels: Sequence[str], columns: int) -> int:
    return sum(_HANDLE + max(map(len, own), default=0) for own in np.array_split(labels, columns))


def by_height(axes: Axes) -> tuple[list[Any], list[str]]:
    """Handles and names of all named lines, by their right ends from the highest."""
    named = [*zip(*axes.get_legend_handles_labels(), strict=True)]
    lines: list[Any] = [one[0] if isinstance(one, tuple) else one for one, _ in named]  # error bars: tuples
    order = sorted(range(len(named)), key=lambda at: -float(lines[at].get_ydata()[-1]))
    return [named[at][0] for at in order], [named[at][1] for at in order]


def settle(figure: Figure) -> None:
    """Give everything its place, for good: saving draws twice otherwise, once for the places."""
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    figure.set_layout_engine(None)


def save(figure: Figure, folder: Path, stem: str) -> str:
    """Write STEM.png and STEM.svg; returns the SVG for a page, its ids prefixed with STEM."""
    svg = _drawn(figure)
    with _style():
        figure.savefig(folder / f"{stem}.png", dpi=200)
    head = svg.index(">", svg.index("<svg")) + 1
    by_night = f'{svg[:head]}\n<style type="text/css"><![CDATA[\n{NIGHT}]]></style>{svg[head:]}'
    (folder / f"{stem}.svg").write_text(by_night, encoding="utf-8")
    return _inline(svg, stem)


def markup(figure: Figure, stem: str) -> str:
    """The SVG for a page alone."""
    return _inline(_drawn(figure), stem)


def _drawn(figure: Figure) -> str:
    svg = io.StringIO()
    with _style():
        settle(figure)
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue()


def _inline(svg: str, stem: str) -> str:
    inline = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    return re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{stem}-", inline)


GROUND, INK = "#14171b", "#e4e7eb"
EXCHANGED = {
    "#ffffff": GROUND,
    "#000000": INK,
    "#666666": "#9aa3ae",
    "#b0b0b0": "#59616b",
    "#0072b2": "#4aa3df",
    "#d55e00": "#f0813c",
    "#009e73": "#2cc49a",
    "#cc79a7": "#e6a3c8",
    "#56b4e9": "#a5dcff",
    "#e69f00": "#f5b942",
}
"""Light to dark, as matplotlib writes colours. A figure keeps its own, which any viewer and paper
show; a browser whose reader prefers dark pages exchanges them.
"""

_RULES = "".join(
    f'svg [style*="{what}: {light}"] {{ {what}: {dark} !important; }}\n'
    for light, dark in EXCHANGED.items()
    for what in ("fill", "stroke")
)
NIGHT = f"@media screen and (prefers-color-scheme: dark) {{\nsvg text {{ fill: {INK}; }}\n{_RULES}}}\n"
"""These rules stand in the page or the file that a figure is in."""


def frame(axes: Axes, direction: str, values: Sequence[float], late: Sequence[float] = ()) -> str:
    """Set an axis ("x" or "y") to show values; returns a note on its limits, empty where it begins at 0. The
    `late` ones are those that a reader came for, where the others may be left out of sight.
    """
    low, high, first = min(values, default=0.0), max(values, default=1.0), ""
    if late and max(late) - min(late) < _FLAT * (high - min(low, 0.0)) and high > 2 * max(late) > 0:
        first, low, high = f"the start is at {high:.3g}", min(late), max(late)
    cut = low > _UPPER * high > 0
    margin = 0.08 * (high - low) or 0.08 * abs(high)
    bottom = low - margin if cut or low < 0 else 0.0
    top = high + margin if high > low or high > 0 else 1.0
    axes.set(**{f"{direction}lim": (bottom, top)})
    shown = f"axis from {bottom:.3g}{f' to {top:.3g}' if first else ', not 0'}" if cut else ""
    return ";\n".join(filter(None, [shown or (first and f"axis to {top:.3g}"), first]))


def frame_lines(axes: Axes) -> None:
    """Let the y axis show all lines, the later nine tenths of them at least, and say in its label where it
    begins. Levels more than twice as high as the rest may lie above it.
    """
    drawn = [(*np.asarray(line.get_data(), dtype=float), line.get_transform()) for line in axes.get_lines()]
    # A level goes from edge to edge: its x is not in the axes' data.
    lines = [(x, y, not where.contains_branch_seperately(axes.transData)[0]) for x, y, where in drawn]
    last = max((x.max() for x, _, level in lines if not level), default=0.0)
    late = [y[x >= _EARLY * last] for x, y, level in lines if not level]
    far = 2 * max(_finite(late), default=np.inf)
    levels = [y for _, y, level in lines if level and y[0] <= far]
    every = [y for _, y, level in lines if not level]
    note = frame(axes, "y", _finite([*every, *levels]), _finite([*late, *levels]))
    if note:
        axes.set_ylabel(f"{axes.get_ylabel()}\n({note})")


def _finite(values: Sequence[np.ndarray]) -> list[float]:
    joined = np.concatenate([*values, np.empty(0)])
    result: list[float] = joined[np.isfinite(joined)].tolist()
    return result
