"""`fedsim bounds`: the theory's upper and lower bounds for a scenario."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.cli.tables import print_notices
from fedsim.report.privacy import notices
from fedsim.scenario.load import load
from fedsim.theory.bounds import Bound, applying
from fedsim.theory.resolve import resolve
from fedsim.theory.setting import Setting, setting_of

NOTE = "every constant and logarithmic factor in n, R and N is set to one: compare slopes, not heights"


def show(path: Path, overrides: Sequence[str], as_json: bool) -> None:
    """Print a table, or JSON, of the bounds that apply and of what the others need.

    Raises:
        InputError: bad scenario or data, or no epsilon to bound by.
    """
    resolved = resolve(load(path, overrides))
    setting = setting_of(resolved)
    setting.need("a bound")
    found = applying(setting)
    if as_json:
        statement = {
            "scenario": resolved.scenario.name,
            "constants": NOTE,
            "setting": asdict(setting),
            "bounds": [_plain(*row) for row in found],
        }
        typer.echo(json.dumps(statement, indent=2, allow_nan=False))
        return
    console = Console()
    print_notices(console, notices(resolved))
    console.print(f"{resolved.scenario.name}: {_numbers(setting)}", highlight=False, soft_wrap=True)
    _table(console, found)
    console.print(f"Note: {NOTE}.", highlight=False, soft_wrap=True)


def _numbers(setting: Setting) -> str:
    return ", ".join(f"{key} = {value:.6g}" for key, value in asdict(setting).items() if value is not None)


def _plain(bound: Bound, value: float | None, reason: str) -> dict[str, object]:
    return {
        "functions": bound.functions,
        "trust": bound.trust,
        "risk": bound.risk,
        "side": bound.side,
        "source": bound.source,
        "value": value,
        **({"not_applicable": reason} if reason else {}),
    }


def _table(console: Console, found: Sequence[tuple[Bound, float | None, str]]) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)  # fits into 80 characters
    for column in ("functions", "trust", "risk", "side", "theorem"):
        table.add_column(column)
    table.add_column("bound", justify="right")
    for bound, value, _ in found:
        if value is not None:
            row = (bound.functions, bound.trust, bound.risk, bound.side, bound.source)
            table.add_row(*row, f"{value:.3g}")
    console.print(table)
    for reason in dict.fromkeys(reason for _, _, reason in found if reason):
        names = [f"{bound.functions} ({bound.source})" for bound, _, why in found if why == reason]
        console.print(f"Not shown, {reason}: {'; '.join(names)}", highlight=False, soft_wrap=True)
