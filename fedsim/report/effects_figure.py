"""The figure of columns' effects: a small curve or row of points for each, all on one scale."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from fedsim.data.schema import NumberColumn
from fedsim.report.column_effects import MOST, Effect, Effects
from fedsim.report.curves import curve
from fedsim.report.style import GREY, WIDE, label, legend_below, look, styled

_BESIDE, _BESIDE_BROAD = 2, 4
_HEIGHT = 1.75  # inches of a row
_LETTERS = 14  # of all labels of a column that stand beside each other without being turned


def draw(effects: Effects, broad: bool = False) -> Figure:
    """The first columns' effects; a `broad` figure has more of them beside each other."""
    shown, beside = effects.found[:MOST], _BESIDE_BROAD if broad else _BESIDE
    rows, width = -(-len(shown) // beside), {"width": WIDE} if broad else {}
    with styled(_HEIGHT * rows + 0.2, **width, legend=False) as (figure, whole):
        whole.remove()
        grid = figure.subplots(rows, beside, sharey=True, squeeze=False).flat
        for axes, effect in zip(grid, shown, strict=False):
            axes.grid(alpha=0.3, linewidth=0.6)
            axes.axhline(0.0, color=GREY, linewidth=0.9, linestyle=":")
            (_number if isinstance(effect.column, NumberColumn) else _levels)(axes, effect, effects.outputs)
            axes.set_title(label(effect.name))
        grid[0].locator_params("y", nbins=5)
        named = grid[0].get_legend_handles_labels()
        for axes in grid[len(shown) :]:
            axes.remove()
        figure.supylabel("effect on the\n" + label(effects.of, 20 if rows == 1 else 50), fontsize=10)
        if effects.outputs[0]:
            legend_below(figure, grid[0], named)
        return figure


def _number(axes: Axes, effect: Effect, outputs: list[str]) -> None:
    for k, name in enumerate(outputs):
        band = effect.band[..., k] if len(effect.curves) > 1 else None
        curve(axes, np.asarray(effect.points), effect.mean[:, k], look(k), label(name), band)
    if isinstance(effect.column, NumberColumn) and effect.column.scale == "log":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(LogFormatter())
        axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.2, 0.5)))
    else:
        axes.locator_params("x", nbins=4)


def _levels(axes: Axes, effect: Effect, outputs: list[str]) -> None:
    shown = effect.shown
    for k, name in enumerate(outputs):
        its, mean, (low, high) = look(k), effect.mean[shown, k], effect.band[:, shown, k]
        x = np.arange(len(shown)) + 0.15 * (k - (len(outputs) - 1) / 2)
        bars = (mean - low, high - mean) if len(effect.curves) > 1 else None
        axes.errorbar(x, mean, bars, fmt=its.marker, color=its.colour, markersize=4.5, label=label(name))
    texts = [label(str(effect.points[place]), 10) for place in shown]
    turned = sum(map(len, texts)) > _LETTERS
    axes.set_xticks(range(len(shown)), texts, rotation=90 if turned else 0)
    axes.set_xlim(-0.6, len(shown) - 0.4)
