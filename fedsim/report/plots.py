"""The figures of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.common.errors import InputError, suggest
from fedsim.common.files import atomic_files
from fedsim.report import curves, style
from fedsim.report.outcome import value
from fedsim.report.record import Measurement, SiloMeasurement, SiloSpend, grouped
from fedsim.report.run_directory import RunData
from fedsim.report.section import Section
from fedsim.report.sections.registry import SECTIONS
from fedsim.report.style import GREY, Look, frame, frame_lines, from_zero, label, look, styled, thinned
from fedsim.report.summary import FEW, OF_TRAINING, SiloRow, Spread
from fedsim.scenario.metric import METRICS

if TYPE_CHECKING:
    from fedsim.report.column_effects import Effects

_MOST, _LEAST = "\N{LESS-THAN OR EQUAL TO}", "\N{GREATER-THAN OR EQUAL TO}"
_MOST_NAMED = 30  # silos that get a row of their own

Points = list[tuple[int, float | None, float | None]]  # (round, epsilon spent, budget)


def draw_runs(axes: Axes, run: RunData, column: str) -> None:
    """Draw a metric against rounds, of the run (filled markers) and its non-private baseline (hollow): the
    mean over trials, and each of few trials as points, or the range of 90 % of many.
    """
    for variant, its, name in curves.variants_of(run.summary.privacy.private):
        own = [row for row in run.rows(Measurement) if row.variant == variant]
        rounds, values = curves.by_round((row.trial, row.round, value(row, column)) for row in own)
        if not len(rounds):
            continue
        kept = thinned(len(rounds))
        rounds, values = rounds[kept], values[:, kept]
        every = max(1, len(rounds) // 8)
        band = np.percentile(values, [5, 95], axis=0) if len(values) >= FEW else None
        marked = int(every * curves.VARIANTS[variant][0] / 2), every
        inside = its.colour if variant == "private" else "white"
        shown: dict[str, Any] = {"markevery": marked, "markerfacecolor": inside}
        curves.curve(axes, rounds, values.mean(0), its, name, band, **shown)
        for row in values if 1 < len(values) < FEW else ():
            axes.plot(rounds[::every], row[::every], ".", color=its.colour, markersize=3, alpha=0.6)


def against_rounds(run: RunData, column: str) -> Figure | None:
    """One of `MEASURED_FIGURES`; None where it was not measured, unless a simulation chose that metric."""
    with styled() as (figure, axes):
        draw_runs(axes, run, column)
        axes.set(xlabel="rounds", ylabel=curves.MEASURED_FIGURES[column][1])
        measured = bool(axes.lines)
        if column in OF_TRAINING and measured:
            curves.logarithmic(axes)
        elif column not in OF_TRAINING:
            for one in run.summary.baselines:
                if one.name in curves.LEVELS and (level := one.spread(column)) is not None:
                    name = f"{one.label}: {level.mean:.3g}"  # the level may lie above the axis
                    dash = curves.LEVELS[one.name]
                    axes.axhline(level.mean, color=GREY, linewidth=0.9, linestyle=dash, label=name)
            frame_lines(axes)
        asked = column == run.summary.metrics.metric and run.summary.deployment is None
        return figure if asked or measured else None


def round_times(run: RunData) -> Figure | None:
    """What each round of a deployed run took; None where it is not known."""
    part = run.summary.deployment
    known = [(r, each) for r, each in enumerate(part.round_seconds if part else (), 1) if each is not None]
    if len(known) < 5:  # too few for a curve
        return None
    with styled(2.6) as (figure, axes):
        rounds, seconds = np.array(known).T
        kept = np.union1d(thinned(len(rounds)), seconds.argsort()[-20:])  # the longest among them
        curves.curve(axes, rounds[kept], seconds[kept], look(0), "")
        axes.set(xlabel="rounds", ylabel="seconds of a round")
        from_zero(axes, "y")
        return figure


def of_section(run: RunData, section: Section) -> Figure | None:
    """The figure of a section; None where it has no rows."""
    rows = run.rows(section.row)
    return section.draw(rows, run.summary.privacy.private) if section.draw and rows else None


def effects(run: RunData) -> Effects | None:
    """Those of its columns (`fedsim.report.column_effects`); None where it has no model, or that has none."""
    if run.summary.algorithm == "release":
        return None
    from fedsim.report.column_effects import effects_of

    return effects_of(run)


def _effects_figure(run: RunData) -> Figure | None:
    from fedsim.report import effects_figure

    found = effects(run)
    return found and effects_figure.draw(found)


def figure_of(run: RunData, what: str) -> Figure:
    """The figure of a metric, or of another name in `known`; InputError if it has nothing to show."""
    column = {short: name for name, (short, _) in curves.MEASURED_FIGURES.items()}.get(what, what)
    known: dict[str, Callable[[RunData], Figure | None]] = {
        **{name: partial(against_rounds, column=name) for name in curves.MEASURED_FIGURES},
        "silos": silo_values,
        "spend": spend,
        "effects": _effects_figure,
        **{one.name: partial(of_section, section=one) for one in SECTIONS if one.draw},
    }
    if column not in known:
        raise InputError("plot", what, suggest(what, known))
    figure = known[column](run)
    if figure is None:
        rows = run.rows(Measurement)
        measured = [n for n in curves.MEASURED_FIGURES if any(value(row, n) is not None for row in rows)]
        hint = f"has nothing to show; measured against rounds: {', '.join(measured) or 'nothing yet'}"
        raise InputError("plot", what, hint)
    return figure


def silo_values(run: RunData) -> Figure | None:
    """The chosen metric on each silo's test records, mean and 90 % of trials; many silos as sorted curves.

    None where no trial is complete, or no silo has a value of its own.
    """
    metric = run.summary.metrics.metric
    spreads = {variant: by_silo(run.rows(SiloMeasurement), variant, metric) for variant in curves.VARIANTS}
    title = METRICS[metric].title
    names = list(dict.fromkeys(name for spread in spreads.values() for name in spread))
    if not names:
        return None
    few = len(names) <= _MOST_NAMED
    with styled(1.0 + 0.28 * len(names) if few else 3.0) as (figure, axes):
        for variant, look_, name in curves.variants_of(run.summary.privacy.private):
            spread = spreads[variant]
            if spread and few:
                _rows(axes, names, spread, look_, name)
            elif spread:  # means in ascending order, and the band's edges likewise, each by itself
                kept = thinned(len(spread))
                mean, *band = np.sort(np.array(list(spread.values())), axis=0)[kept].T
                curves.curve(axes, kept + 1, mean, look_, name, np.array(band))
        if few:
            axes.locator_params("x", nbins=6)
            axes.set_yticks(range(len(names)), [label(name) for name in names])
            axes.set(xlabel=f"{title} on the silo's own records", ylim=(len(names) - 0.4, -0.6))
            values = [end for spread in spreads.values() for row in spread.values() for end in row]
            axes.set_xlabel("\n".join(filter(None, [axes.get_xlabel(), frame(axes, "x", values)])))
        else:
            axes.set(xlabel=f"silos, in order of {title}", ylabel=f"{title} on its own records")
            frame_lines(axes)
        return figure


def by_silo(silos: Sequence[SiloMeasurement], variant: str, metric: str) -> dict[str, Spread]:
    """Of each silo over trials; silos without a value are left out."""
    errors: dict[str, list[float]] = {}
    for row in silos:
        if row.variant == variant and (error := value(row, metric)) is not None:
            errors.setdefault(row.silo, []).append(error)
    spread: dict[str, Spread] = {}
    for count in set(map(len, errors.values())):  # all silos at once: there may be ten thousand
        own = {name: values for name, values in errors.items() if len(values) == count}
        matrix = np.array(list(own.values()))
        low, high = np.percentile(matrix, [0, 100] if count < FEW else [5, 95], axis=1)
        rows = np.stack([matrix.mean(1), low, high], axis=1).tolist()
        spread |= {name: Spread(*row) for name, row in zip(own, rows, strict=True)}
    return {name: spread[name] for name in errors}


def _rows(axes: Axes, names: list[str], spread: dict[str, Spread], look_: Look, name: str) -> None:
    private = name != curves.VARIANTS["nonprivate"][1]
    rows = [names.index(silo) + (-0.14 if private else 0.14) for silo in spread]
    mean, low, high = np.array(list(spread.values())).T
    axes.hlines(rows, low, high, color=look_.colour, linewidth=1.6, linestyle="-" if private else (0, (2, 1)))
    colours: dict[str, Any] = {"color": look_.colour, "markerfacecolor": look_.colour if private else "white"}
    axes.plot(mean, rows, look_.marker, label=name, markersize=5.5, clip_on=False, **colours)


def spend(run: RunData) -> Figure | None:
    """Epsilon spent over rounds per silo, and its budget as a level; None where nothing is guaranteed."""
    lines: dict[str, Points] = {}
    for row in run.rows(SiloSpend):
        lines.setdefault(row.silo, []).append((row.round, row.epsilon_spent, row.budget))
    if not lines:
        return None
    with styled(3.2) as (figure, axes):
        for index, (silo, *others) in enumerate(_alike(lines)):
            name = f"{len(others) + 1} silos, as {label(silo, 16)}" if others else label(silo, 16)
            rounds, spent, _ = np.array(lines[silo], dtype=float).T  # None is not a number
            every = max(1, len(rounds) // 5)
            marked = min(index % every + 1, len(rounds) - 1), every
            steps = "steps-post" if len(rounds) < 8 else "default"
            curves.curve(axes, rounds, spent, look(index), name, markevery=marked, drawstyle=steps)
        budgets = sorted({points[0][2] for points in lines.values() if points[0][2] is not None})
        for i, budget in enumerate(budgets):
            name = "" if i else f"budget{'s' * (len(budgets) > 1)}"
            axes.axhline(budget, color=GREY, linewidth=0.9, linestyle=":", label=name)
        axes.set(xlabel="rounds", ylabel="epsilon spent")
        from_zero(axes, "x", "y")
        return figure


def _alike(lines: dict[str, Points]) -> list[list[str]]:
    """The silos, those together whose curves and budgets no eye could tell apart."""
    top = max((value for points in lines.values() for _, value, _ in points if value), default=1.0)
    width = 0.01 * top  # of a line
    groups: list[list[str]] = []
    for silo, points in lines.items():
        known = next((group for group in groups if _close(lines[group[0]], points, width)), [])
        groups += [] if known else [known]
        known.append(silo)
    return groups


def _close(one: Points, other: Points, least: float) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and a[2] == b[2] and abs((a[1] or 0) - (b[1] or 0)) <= least
        for a, b in zip(one, other, strict=True)
    )


def budgets(silos: Sequence[SiloRow]) -> Figure:
    """For each of the first silos its budget, hatched, and the plan's cost within it, solid."""
    shown = silos[:_MOST_NAMED]
    with styled(0.8 + 0.28 * len(shown)) as (figure, axes):
        rows, limits = np.arange(len(shown)), [silo.epsilon_budget or 0 for silo in shown]
        axes.barh(rows, limits, color="white", edgecolor=GREY, hatch="///")
        axes.barh(rows, [silo.epsilon_guaranteed or 0 for silo in shown], height=0.45, color=look(0).colour)
        axes.set_yticks(rows, [f"{label(silo.name)} (n={silo.n})" for silo in shown], fontsize="small")
        axes.invert_yaxis()
        axes.set_xlabel(f"epsilon: {'budget hatched' if any(limits) else 'no budget'}, guaranteed solid")
        return figure


class Line(NamedTuple):
    """A bound: a column of `OF_TRAINING`, the bound's name, its side (upper or lower), its value."""

    column: str
    name: str
    side: str
    value: float


def measured(run: RunData) -> list[str]:
    """The columns that the run measured. InputError if there is neither."""
    rows = run.rows(Measurement)
    if result := [name for name in OF_TRAINING if any(value(row, name) is not None for row in rows)]:
        return result
    objective = run.summary.objective
    why = f": {objective.reason}" if objective and objective.reason else ""
    hint = f"measured no excess risk{why}; run the scenario again with --set report.excess_risk=true"
    raise InputError("--run", str(run.directory), hint)


def draw(run: RunData, lines: Sequence[Line], directory: Path, folder: str) -> list[Path]:
    """Write a PNG and an SVG for each column that was measured and has a bound; returns the PNGs."""
    bounds = grouped(lines, lambda line: line.column)
    stems = {name: f"bounds-{curves.MEASURED_FIGURES[name][0]}" for name in measured(run) if name in bounds}
    with atomic_files(directory) as draft:
        (draft / folder).mkdir()
        for column, stem in stems.items():
            style.save(_bounded(run, column, bounds[column]), draft / folder, stem)
    return [directory / folder / f"{stem}.png" for stem in stems.values()]


def _bounded(run: RunData, column: str, lines: Sequence[Line]) -> Figure:
    with styled(3.4) as (figure, axes):
        draw_runs(axes, run, column)
        # Levels, about the model that is returned; looks 0 and 1 are the run's and its baseline's.
        for i, line in enumerate(lines, 2):
            side, dash = (_MOST, (7, 2)) if line.side == "upper" else (_LEAST, (1.2, 1.4))
            said = label(f"{side} {line.value:.2g}: {line.name}", 54)
            axes.axhline(line.value, color=look(i).colour, linestyle=(0, dash), linewidth=1.4, label=said)
        axes.set(xlabel="rounds", ylabel=curves.MEASURED_FIGURES[column][1])
        curves.logarithmic(axes)
        return figure
