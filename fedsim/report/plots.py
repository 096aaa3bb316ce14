"""The figures of one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter

from fedsim.report.style import GREY, Look, from_zero, label, legend_below, look, save, styled, thinned
from fedsim.results.read import Run

_VARIANTS = {"private": (0, "private"), "nonprivate": (1, "non-private twin")}
_MOST_NAMED = 30
"""Silos that get a row of their own."""

Spread = tuple[float, float, float]
"""Mean, 5th and 95th percentile over trials."""


def error_against_rounds(run: Run, folder: Path) -> str:
    """Mean test error over trials, with the range that 90 % of the trials fall in."""
    with styled() as (figure, axes):
        for variant, look_, name in variants_of(run):
            draw_curve(axes, *curves(run.metrics, variant, "test_error"), look_, name, variant)
        axes.set(xlabel="rounds", ylabel="test error")
        from_zero(axes, "y")
        legend_below(figure, axes)
        return save(figure, folder, "error-against-rounds")


OBJECTIVE = {
    "excess_risk": ("excess-risk", "excess risk F(w) - F(w*)"),
    "gradient_mapping_sq": ("gradient-mapping", "squared gradient mapping"),
}
"""Metrics of the training objective: a file's name, and an axis's."""


def objective_against_rounds(run: Run, folder: Path, column: str) -> str | None:
    """One of `OBJECTIVE` on a logarithmic axis, as the test error; None where it was not measured."""
    stem, name = OBJECTIVE[column]
    with styled() as (figure, axes):
        for variant, look_, label_ in variants_of(run):
            draw_curve(axes, *curves(run.metrics, variant, column), look_, label_, variant)
        if not axes.lines:
            return None
        axes.set(xlabel="rounds", ylabel=name)
        logarithmic(axes)
        legend_below(figure, axes)
        return save(figure, folder, f"{stem}-against-rounds")


def logarithmic(axes: Axes) -> None:
    """A logarithmic axis, down to what rounding leaves of a number: below that nothing is measured."""
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], _ROUNDING))
    axes.yaxis.set_major_formatter(LogFormatter())  # the usual one writes mathematics
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.2, 0.5)))


_ROUNDING = 1e-14


def draw_curve(
    axes: Axes, rounds: np.ndarray, values: np.ndarray, look_: Look, name: str, variant: str
) -> None:
    """The mean of values (trials, rounds), with the range that 90 % of the trials fall in."""
    if not len(rounds):
        return
    kept = thinned(len(rounds))
    rounds, values = rounds[kept], values[:, kept]
    every = max(1, len(rounds) // 8)
    axes.plot(
        rounds,
        values.mean(0),
        color=look_.colour,
        linestyle=look_.dash,
        marker=look_.marker,
        markersize=4.5,
        markevery=(int(every * _VARIANTS[variant][0] / 2), every),
        markerfacecolor=look_.colour if variant == "private" else "white",
        label=name,
    )
    if len(values) > 1:
        low, high = np.percentile(values, [5, 95], axis=0)
        axes.fill_between(rounds, low, high, color=look_.colour, alpha=0.15, linewidth=0)
        for edge in (low, high):
            axes.plot(rounds, edge, color=look_.colour, linestyle=look_.dash, linewidth=0.6)


def curves(metrics: dict[str, list[Any]], variant: str, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, values (trials, rounds)), as far as every trial that was begun has come and has a value."""
    rows: dict[int, dict[int, float]] = {}
    columns = (metrics[name] for name in ("trial", "variant", "round", column))
    for trial, kind, index, value in zip(*columns, strict=True):
        if kind == variant and value is not None:
            rows.setdefault(trial, {})[index] = value
    rounds = sorted(set.intersection(*map(set, rows.values()))) if rows else []
    return np.array(rounds), np.array([[row[r] for r in rounds] for row in rows.values()])


def variants_of(run: Run) -> Iterator[tuple[str, Look, str]]:
    """(variant, look, name) of the run and its twin."""
    alone = run.summary.privacy.mechanism == "none"
    for variant, (index, name) in _VARIANTS.items():
        yield variant, look(index), "no privacy" if alone else name


def silo_errors(run: Run, folder: Path) -> str | None:
    """Each silo's own test error, mean and 90 % of the trials; of many silos the sorted curve.

    None where no trial is complete, or no silo has an error of its own.
    """
    spreads = {variant: by_silo(run.silos, variant) for variant in _VARIANTS}
    names = list(dict.fromkeys(name for spread in spreads.values() for name in spread))
    if not names:
        return None
    few = len(names) <= _MOST_NAMED
    with styled(1.0 + 0.28 * len(names) if few else 3.0) as (figure, axes):
        for variant, look_, name in variants_of(run):
            spread = spreads[variant]
            if spread and few:
                _rows(axes, names, spread, look_, name)
            elif spread:
                _sorted(axes, spread, look_, name)
        if few:
            axes.locator_params("x", nbins=6)
            axes.set_yticks(range(len(names)), [label(name) for name in names])
            axes.set(xlabel="test error on the silo's own records", ylim=(len(names) - 0.4, -0.6))
            from_zero(axes, "x")
        else:
            axes.set(xlabel="silos, in order of error", ylabel="test error on its own records")
            from_zero(axes, "y")
        legend_below(figure, axes)
        return save(figure, folder, "error-by-silo")


def by_silo(silos: dict[str, list[Any]], variant: str) -> dict[str, Spread]:
    """{silo: (mean, 5th, 95th percentile) over trials}; silos without an error are left out."""
    errors: dict[str, list[float]] = {}
    columns = (silos[name] for name in ("variant", "silo", "test_error"))
    for kind, name, error in zip(*columns, strict=True):
        if kind == variant and error is not None:
            errors.setdefault(name, []).append(error)
    spread: dict[str, Spread] = {}
    for count in set(map(len, errors.values())):  # all silos at once: there may be ten thousand
        own = {name: values for name, values in errors.items() if len(values) == count}
        matrix = np.array(list(own.values()))
        low, high = np.percentile(matrix, [5, 95], axis=1)
        rows = np.stack([matrix.mean(1), low, high], axis=1).tolist()
        spread |= {name: (row[0], row[1], row[2]) for name, row in zip(own, rows, strict=True)}
    return {name: spread[name] for name in errors}


def _rows(axes: Axes, names: list[str], spread: dict[str, Spread], look_: Look, name: str) -> None:
    private = name != _VARIANTS["nonprivate"][1]
    rows = [names.index(silo) + (-0.14 if private else 0.14) for silo in spread]
    mean, low, high = np.array(list(spread.values())).T
    axes.hlines(rows, low, high, color=look_.colour, linewidth=1.6, linestyle="-" if private else (0, (2, 1)))
    axes.plot(
        mean,
        rows,
        look_.marker,
        color=look_.colour,
        markerfacecolor=look_.colour if private else "white",
        markersize=5.5,
        clip_on=False,
        label=name,
    )


def _sorted(axes: Axes, spread: dict[str, Spread], look_: Look, name: str) -> None:
    """How the silos' means are distributed, and the band's edges likewise, each in its own order."""
    kept = thinned(len(spread))
    mean, low, high = np.sort(np.array(list(spread.values())), axis=0)[kept].T
    axes.plot(kept + 1, mean, color=look_.colour, linestyle=look_.dash, label=name)
    axes.fill_between(kept + 1, low, high, color=look_.colour, alpha=0.15, linewidth=0)


def spend(run: Run, folder: Path) -> str | None:
    """Epsilon spent over rounds per silo, and its budget as a level; None where nothing is guaranteed."""
    lines: dict[str, list[tuple[int, float | None, float | None]]] = {}
    for silo, *point in zip(*run.spend.values(), strict=True):
        lines.setdefault(silo, []).append(tuple(point))
    if not lines:
        return None
    with styled(3.2) as (figure, axes):
        for index, (silo, points) in enumerate(lines.items()):
            _spend_line(axes, points, look(index), index, label(silo, 16))
        axes.plot([], [], color=GREY, linewidth=0.9, linestyle=":", label="budget")
        axes.set(xlabel="rounds", ylabel="epsilon spent")
        from_zero(axes, "x", "y")
        legend_below(figure, axes)
        return save(figure, folder, "spend-over-rounds")


def _spend_line(
    axes: Axes, points: list[tuple[int, float | None, float | None]], look_: Look, index: int, name: str
) -> None:
    rounds, spent, budgets = zip(*points, strict=True)
    values = np.array([np.nan if value is None else value for value in spent])
    every = max(1, len(rounds) // 5)
    axes.plot(
        rounds,
        values,
        color=look_.colour,
        linestyle=look_.dash,
        marker=look_.marker,
        markersize=4.5,
        markevery=(min(index % every + 1, len(rounds) - 1), every),
        drawstyle="steps-post" if len(rounds) < 8 else "default",
        label=name,
    )
    if budgets[0] is not None:
        axes.axhline(budgets[0], color=GREY, linewidth=0.9, linestyle=":")
