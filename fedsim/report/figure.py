"""The picture of a run: error against rounds, and what each silo allowed and spent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.report.curves import draw_baselines, draw_runs
from fedsim.report.frame import frame_lines
from fedsim.report.remarks import unmeasured
from fedsim.report.style import GREY, any_text, label, look, settle, styled
from fedsim.results.run_directory import RunData
from fedsim.results.summary import FEW, SiloRow
from fedsim.scenario.metric import METRICS

_MOST_BARS = 30


def draw(run: RunData, path: Path) -> None:
    """Write the picture as PNG."""
    with any_text():
        figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
        errors, budgets = figure.subplots(1, 2, width_ratios=[3, 2])
        _draw_errors(errors, run)
        _draw_budgets(budgets, run)
        silos = run.summary.participation.num_silos
        figure.suptitle(f"{label(run.summary.scenario, 60)}: {run.summary.algorithm}, {silos} silos")
        settle(figure)
        figure.savefig(path)


def _draw_errors(axes: Axes, run: RunData) -> None:
    metric = run.summary.metrics.metric
    what = METRICS[metric].title
    draw_runs(axes, run, metric)
    if not axes.lines and run.summary.deployment is not None:
        _say(axes, f"{what} not measured:\n{unmeasured(run.summary)}")
        return
    trials = run.summary.trials.finished
    spread = f" (mean of {trials} trials{_shown(trials)})" if trials > 1 else ""
    axes.set_title(f"{what[0].upper()}{what[1:]}{spread}", fontsize="medium")
    axes.set(xlabel="rounds", ylabel=run.summary.metrics.error_name if metric == "error" else what)
    draw_baselines(axes, run.summary, metric)
    frame_lines(axes)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)


def _shown(trials: int) -> str:
    return "; band: 90 % of them" if trials >= FEW else "; points: each"


def budgets(silos: Sequence[SiloRow]) -> Figure:
    """Of each silo its budget, and what a plan costs of it."""
    with styled(0.8 + 0.28 * min(len(silos), _MOST_BARS)) as (figure, axes):
        _bars(axes, silos, [silo.epsilon_guaranteed or 0 for silo in silos])
        axes.set_xlabel(axes.get_xlabel() + "guaranteed solid")
        return figure


def _draw_budgets(axes: Axes, run: RunData) -> None:
    privacy = run.summary.privacy
    if not privacy.private or not run.summary.trials.finished:
        _say(axes, "no trial is complete" if privacy.private else "no privacy guarantee")
        return
    _bars(axes, privacy.silos, [silo.epsilon_spent or 0 for silo in privacy.silos])
    more = len(privacy.silos) - _MOST_BARS
    counted = f" (first {_MOST_BARS}, {more} more)" if more > 0 else ""
    axes.set_title(f"Privacy per silo{counted}", fontsize="medium")
    axes.set_xlabel(axes.get_xlabel() + "spent solid")


def _say(axes: Axes, text: str) -> None:
    """Write a text in the place of a picture."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()


def _bars(axes: Axes, silos: Sequence[SiloRow], values: Sequence[float]) -> None:
    """Budgets hatched, values solid, of the first silos."""
    shown = silos[:_MOST_BARS]
    rows, budgets = np.arange(len(shown)), [silo.epsilon_budget or 0 for silo in shown]
    axes.barh(rows, budgets, color="white", edgecolor=GREY, hatch="///")
    axes.barh(rows, values[:_MOST_BARS], height=0.45, color=look(0).colour)
    axes.set_yticks(rows, [f"{label(silo.name)} (n={silo.n})" for silo in shown], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel(f"epsilon: {'budget hatched' if any(budgets) else 'no budget'}, ")
