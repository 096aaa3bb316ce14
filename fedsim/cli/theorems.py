"""`fedsim theorems`: claimed against true epsilon, and which claims fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import starmap
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.cli.app import PRIVACY, app
from fedsim.privacy.rounding import shown_down, shown_up

if TYPE_CHECKING:
    from fedsim.theory.claims import Entry, Row

_LARGEST = 1000  # beyond that a number says no more than the word
_INTRODUCTION = """\
# What the thesis's theorems truly cost

Written by `fedsim theorems --markdown`; a test compares. Each table takes the noise that a theorem of
A. Lowy's thesis (USC 2023) states for a claimed epsilon and prices the plan that it is added to, under
replace-one adjacency, with fedsim's own accountant (`fedsim/privacy/cost.py`): exact for full and disjoint
batches, an upper bound by about 1e-4 where batches are sampled. A claim fails where the true epsilon
exceeds it for some way to draw the batch that the proof covers. The zCDP column is the thesis's own
conversion, rho + 2 sqrt(rho ln(1/delta)), looser than the exact number and shown where it applies. Epsilons
are rounded up, and lower bounds down. Conditions are those that a setting can be checked for, M being 25.

Theorems whose title has SDP or shuffled speak of all silos' messages without their senders. They ask an
oracle for sums over silos, and their proofs use nothing of it but its (epsilon, delta): "any oracle" is the
run with the one that reveals most, exactly (at least, where records are sampled), and "Gaussian sums" the
same run with the least Gaussian noise on each sum that keeps the same (epsilon, delta). M = N unless said.
"""


@app.command(rich_help_panel=PRIVACY)
def theorems(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/thesis-audit.md.")] = False,
) -> None:
    """Show what each theorem's noise truly costs beside what the theorem claims."""
    from fedsim.theory import claims, shuffle_claims

    entries = (*claims.priced(), *claims.priced(shuffle_claims.SETTINGS))
    if as_json:
        typer.echo(json.dumps([_plain(entry) for entry in entries], indent=2, allow_nan=False))
    elif markdown:
        typer.echo("\n".join([_INTRODUCTION, *map(_section, entries)]), nl=False)
    else:
        _print(entries)


def _section(entry: Entry) -> str:
    columns = list(_cells(entry.rows[0]))
    lines = [f"## {entry.title}", "", f"{entry.numbers}. {entry.verdict}", ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + " ---: |" * len(columns)]
    lines += ["| " + " | ".join(_cells(row).values()) + " |" for row in entry.rows]
    lines += ["", _conditions(entry), *(["", entry.slip] if entry.slip else [])]
    return "\n".join(lines) + "\n"


def _conditions(entry: Entry) -> str:
    return "Conditions: " + "; ".join(starmap(_condition, entry.conditions.items())) + "."


def _condition(condition: str, unmet: Sequence[float]) -> str:
    from fedsim.theory.claims import TARGETS

    where = f" from {unmet[0]:g} on" if unmet and unmet[0] != TARGETS[0] else ""
    return f"{condition}: {'not met' if unmet else 'met'}{where}"


def _cells(row: Row) -> dict[str, str]:
    """By column; those of an entry have the same columns."""
    true = {name: _number(name, value) for name, value in row.true.items()}
    zcdp = {} if row.zcdp is None else {"zCDP": _number("zCDP", row.zcdp)}
    outside = f" (outside: {'; '.join(row.outside)})" if row.outside else ""
    claim = ("fails" if row.fails else "holds") + outside
    return {"claimed": f"{row.target:g}", **true, **zcdp, "claim": claim}


def _number(name: str, value: float) -> str:
    if value > _LARGEST:
        return f"above {_LARGEST:,}"
    return (shown_down if name.endswith("at least") else shown_up)(value, 3)


def _plain(entry: Entry) -> dict[str, object]:
    rows = [asdict(row) | {"fails": row.fails} for row in entry.rows]
    conditions = [
        {"condition": name, "unmet": unmet, "met": not unmet} for name, unmet in entry.conditions.items()
    ]
    stated = {"theorem": entry.title, "setting": entry.numbers, "verdict": entry.verdict}
    return stated | {"slip": entry.slip, "conditions": conditions, "rows": rows}


def _print(entries: Sequence[Entry]) -> None:
    console = Console()
    for entry in entries:
        console.print(f"{entry.title}\n{entry.numbers}", style="italic", highlight=False)
        table = Table(box=SIMPLE_HEAD)
        for column in _cells(entry.rows[0]):
            table.add_column(column, justify="right")
        for row in entry.rows:
            *numbers, claim = _cells(row).values()
            short = claim[:5] + (" *" if row.outside else "")
            table.add_row(*numbers, short, style="bold" if row.fails else "")
        console.print(table)
        if any(row.outside for row in entry.rows):
            console.print("* outside a condition", highlight=False)
        console.print(_conditions(entry), highlight=False)
        console.print(entry.verdict, highlight=False)
        if entry.slip:
            console.print(entry.slip, highlight=False)
        console.print()
