"""What a person sees at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.scenario.resolve import Resolved

MOST_ROWS = 20


def shown(path: Path) -> str:
    """A path as a person would type it: from here, where it is below."""
    place, here = path.resolve(), Path.cwd()
    return str(place.relative_to(here) if place.is_relative_to(here) else path)


def print_notices(console: Console, lines: Sequence[str]) -> None:
    """What must be read before any number."""
    for line in lines:
        console.print(line, style="bold", markup=False, highlight=False, soft_wrap=True)


def print_parameters(console: Console, resolved: Resolved) -> None:
    """The numbers that a theorem chose for the algorithm; nothing where all are given."""
    derived = resolved.derived
    if derived is None:
        return
    values = ", ".join(f"{key} = {_short(value)}" for key, value in derived.values.items())
    console.print(f"{derived.theorem}: {values or 'every number is given'}", highlight=False, soft_wrap=True)
    if derived.notes:
        notes = ", ".join(f"{key} = {_short(value)}" for key, value in derived.notes.items())
        console.print(f"  set by the theorem, not applied here: {notes}", highlight=False, soft_wrap=True)
    if derived.predicted:
        expected = ", ".join(f"{key} = {_short(value)}" for key, value in derived.predicted.items())
        console.print(
            f"  with this plan's own noise, constants one: {expected}", highlight=False, soft_wrap=True
        )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(map(_short, value.values()))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def metrics_line(summary: dict[str, Any]) -> str:
    """Test error beside the non-private error of the same run."""
    metrics = summary["metrics"]
    parts = [f"test error {_with_interval(metrics, 'test_error')}"]
    if summary["privacy"]["mechanism"] != "none" and metrics["test_error_nonprivate"] is not None:
        parts.append(f"non-private {_with_interval(metrics, 'test_error_nonprivate')}")
    trials = summary["trials"]["finished"]
    note = f" (mean of {trials} trials, 90 % of them in brackets)" if trials > 1 else " (one trial)"
    return f"{summary['scenario']}: {', '.join(parts)}{note if trials else ''}"


def _with_interval(metrics: dict[str, Any], name: str) -> str:
    value, interval = metrics[name], metrics[f"{name}_interval90"]
    if value is None:
        return "not measured (no trial is complete)"
    if interval[0] == interval[1]:
        return f"{value:.4f}"
    return f"{value:.4f} [{interval[0]:.4f}, {interval[1]:.4f}]"


def silo_table(silos: Sequence[dict[str, Any]]) -> Table:
    """For each silo its records, budget, cost and noise; long federations are cut."""
    columns = {key: title for key, title in COLUMNS.items() if key in silos[0]}
    padding = 1 if len(columns) < 7 else 0  # all of them fit into 80 characters
    title = "Epsilon per silo (replace one record)"
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, padding))
    table.add_column("silo", overflow="fold", min_width=7)
    for title in columns.values():
        table.add_column(title, justify="right", no_wrap=True)  # half a number is a wrong number
    for silo in silos[:MOST_ROWS]:
        cells = {key: _cell(key, silo[key]) for key in columns}
        if silo["epsilon_budget"] is None and silo["epsilon_guaranteed"] is not None:
            cells["epsilon_budget"] = "unlimited"
        table.add_row(silo["name"], *cells.values())
    if len(silos) > MOST_ROWS:
        table.caption = f"and {len(silos) - MOST_ROWS} more silos"
    return table


COLUMNS = {
    "n": "n",
    "epsilon_budget": "budget",
    "delta": "delta",
    "epsilon_guaranteed": "guaranteed",
    "epsilon_attainable": "at least",
    "epsilon_claimed": "claimed",
    "epsilon_dp_accounting": "verified",
    "epsilon_spent": "spent",
    "noise_multiplier": "noise\nmult.",
    "releases": "releases",
}


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, int):
        return str(value)
    return f"{value:.6g}" if key == "epsilon_budget" else f"{value:.4g}"


def sweep_table(summary: dict[str, Any]) -> Table:
    """One row per combination: what was varied and chosen, error and cost."""
    trials = summary["trials"]
    note = f"mean of {trials} trials, 90 % of them in brackets" if trials > 1 else "one trial"
    title = f"Test error: {note}"
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title, title_justify="left")
    rows = summary["combinations"]
    chosen = list(dict.fromkeys(key for row in rows for key in row["chosen"] or {}))
    for name in summary["varied"]:
        table.add_column(name.split(".")[-1], overflow="fold")
    for name in chosen:
        table.add_column(f"chosen {name.split('.')[-1]}", justify="right")
    for name in ("test error", "guaranteed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [_value(row["varied"].get(name, "-")) for name in summary["varied"]]
        cells += [_value((row["chosen"] or {}).get(name, "-")) for name in chosen]
        table.add_row(*cells, *_measured(row))
    return table


def _measured(row: dict[str, Any]) -> list[str]:
    guaranteed = f"{row['epsilon_guaranteed']:.4g}" if row["epsilon_guaranteed"] is not None else "none"
    if row["test_error"] is None:
        return ["failed", guaranteed]
    return [_with_interval(row, "test_error"), guaranteed]


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
