"""What a person sees at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

MOST_ROWS = 20


def metrics_line(summary: dict[str, Any]) -> str:
    """Test error beside the non-private error of the same run."""
    metrics = summary["metrics"]
    parts = [f"test error {_with_interval(metrics, 'test_error')}"]
    if summary["privacy"]["mechanism"] != "none" and metrics["test_error_nonprivate"] is not None:
        parts.append(f"non-private {_with_interval(metrics, 'test_error_nonprivate')}")
    trials = summary["trials"]["finished"]
    note = f"mean of {trials} trials, 90 % of them in brackets" if trials > 1 else "one trial"
    return f"{summary['scenario']}: {', '.join(parts)} ({note})"


def _with_interval(metrics: dict[str, Any], name: str) -> str:
    value, interval = metrics[name], metrics[f"{name}_interval90"]
    if value is None:
        return "not measured (no trial is complete)"
    if interval[0] == interval[1]:
        return f"{value:.4f}"
    return f"{value:.4f} [{interval[0]:.4f}, {interval[1]:.4f}]"


def silo_table(silos: Sequence[dict[str, Any]]) -> Table:
    """For each silo its records, budget, cost and noise; long federations are cut."""
    table = Table(title="Epsilon per silo (replace one record)")
    table.add_column("silo")
    spent = "epsilon_spent" in silos[0]
    costs = ["guaranteed", "spent"] if spent else ["guaranteed"]
    columns = ["n", "budget", "delta", *costs, "noise mult.", "releases"]
    for column in columns:
        table.add_column(column, justify="right")
    for silo in silos[:MOST_ROWS]:
        table.add_row(*_cells(silo, spent))
    if len(silos) > MOST_ROWS:
        table.caption = f"and {len(silos) - MOST_ROWS} more silos"
    return table


def _cells(silo: dict[str, Any], spent: bool) -> list[str]:
    return [
        silo["name"],
        str(silo["n"]),
        _epsilon(silo["epsilon_budget"], 6),
        f"{silo['delta']:.3g}",
        _epsilon(silo["epsilon_guaranteed"]),
        *([_epsilon(silo["epsilon_spent"])] if spent else []),
        f"{silo['noise_multiplier']:.4g}",
        str(silo["releases"]),
    ]


def _epsilon(value: float | None, digits: int = 4) -> str:
    return "none" if value is None else f"{value:.{digits}g}"
