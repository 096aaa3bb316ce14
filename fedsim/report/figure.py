"""The picture of a run: error against rounds, and what each silo allowed and guaranteed.

Colours are Okabe and Ito's (safe for colour-blind readers); every pair of lines or bars also differs in
dash or hatch, so that it reads in black and white.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.protocol.terms import Statement
from fedsim.report.style import any_text, label
from fedsim.results.outcome import Outcome, variants

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#999999"
_STYLE = {"private": (BLUE, "-", "private"), "nonprivate": (VERMILION, "--", "non-private twin")}
_MOST_BARS = 30


def draw(outcome: Outcome, path: Path) -> None:
    """Write the picture as PNG."""
    with any_text():
        _draw(outcome, path)


def _draw(outcome: Outcome, path: Path) -> None:
    figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    errors, budgets = figure.subplots(1, 2, width_ratios=[3, 2])
    _draw_errors(errors, outcome)
    _draw_budgets(budgets, outcome)
    scenario = outcome.resolved.scenario
    figure.suptitle(
        f"{label(scenario.name, 60)}: {scenario.algorithm.name}, {len(outcome.resolved.names)} silos"
    )
    figure.savefig(path)


def curve(outcome: Outcome, variant: str) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, test errors (trials, rounds)), as far as every trial that was begun has come."""
    rows: dict[int, dict[int, float]] = {}
    for m in outcome.results.measurements:
        if m.variant == variant:
            rows.setdefault(m.trial, {})[m.round] = m.test_error
    rounds = sorted(set.intersection(*map(set, rows.values()))) if rows else []
    return np.array(rounds), np.array([[row[r] for r in rounds] for row in rows.values()])


def _draw_errors(axes: Axes, outcome: Outcome) -> None:
    for variant in variants(outcome.resolved):
        rounds, errors = curve(outcome, variant)
        if not len(rounds):
            continue
        colour, dash, label = _STYLE[variant]
        axes.plot(rounds, errors.mean(0), color=colour, linestyle=dash, label=label)
        if len(errors) > 1:
            low, high = np.percentile(errors, [5, 95], axis=0)
            axes.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
    trials = len(outcome.results.trials)
    spread = f" (mean of {trials} trials; band: 90 % of them)" if trials > 1 else ""
    axes.set_title(f"Test error{spread}", fontsize="medium")
    axes.set_xlabel("round")
    axes.set_ylabel(outcome.resolved.problem.error_name)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)


def _draw_budgets(axes: Axes, outcome: Outcome) -> None:
    first = next(iter(outcome.results.trials.values()), None)
    statements = first.statements[:_MOST_BARS] if first else []
    if outcome.main == "nonprivate" or not statements:
        said = "no privacy guarantee" if outcome.main == "nonprivate" else "no trial is complete"
        axes.text(0.5, 0.5, said, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    rows = np.arange(len(statements))
    limited = [s.admitted.terms.epsilon if isfinite(s.admitted.terms.epsilon) else 0 for s in statements]
    axes.barh(rows, limited, color="white", edgecolor=GREY, hatch="///")
    axes.barh(rows, [s.epsilon_spent for s in statements], height=0.45, color=BLUE)
    axes.set_yticks(rows, [_label(s) for s in statements], fontsize="small")
    axes.invert_yaxis()
    more = len(first.statements) - len(statements) if first else 0
    axes.set_title(
        "Privacy per silo" + (f" (first {_MOST_BARS}, {more} more)" if more else ""), fontsize="medium"
    )
    axes.set_xlabel(f"epsilon: {'budget hatched' if any(limited) else 'no budget'}, spent solid")


def _label(statement: Statement) -> str:
    return f"{label(statement.admitted.terms.name)} (n={statement.admitted.terms.n})"
