"""The scaling figure: rounds per second above, memory below, one column for each size that grows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from fedsim.report.style import GREY, look

_SETTINGS = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsim",
}


class Curve(NamedTuple):
    """One line: sizes, rounds per second, and MiB."""

    label: str
    sizes: Sequence[float]
    rounds_per_second: Sequence[float]
    mib: Sequence[float]


def draw(panels: dict[str, list[Curve]], path: Path) -> None:
    """Write the figure as SVG; `panels` are named by the size that grows."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(11, 5), layout="constrained")
        above, below = figure.subplots(2, len(panels))
        for (name, lines), speed, memory in zip(panels.items(), above, below, strict=True):
            for index, line in enumerate(lines):
                style = look(index)
                shared = {"color": style.colour, "linestyle": style.dash, "marker": style.marker}
                speed.plot(line.sizes, line.rounds_per_second, label=line.label, **shared)
                memory.plot(line.sizes, line.mib, label=line.label, **shared)
            _linear(speed, lines[0])
            _finish(speed, "", "rounds per second" if speed is above[0] else "")
            _finish(memory, name, "MiB" if memory is below[0] else "")
            speed.legend(frameon=False, fontsize=8, loc="upper right")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _linear(axes: Axes, line: Curve) -> None:
    """A round whose cost is proportional to the size, through the last point."""
    guide = [line.rounds_per_second[-1] * line.sizes[-1] / size for size in line.sizes]
    axes.plot(
        line.sizes, guide, color=GREY, linewidth=0.8, linestyle=":", label="cost linear in size", zorder=0
    )


def _finish(axes: Axes, horizontal: str, vertical: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=horizontal, ylabel=vertical)
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(LogLocator(subs=(1,) if high / low > 100 else (1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3, linewidth=0.6)
