"""`fedsim theorems`: claimed against true epsilon, and which claims fail.

The numbers are computed by `python -m benchmarks.thesis.audit`, which is not installed; what it writes is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.cli.app import PRIVACY, app
from fedsim.privacy.rounding import shown_down, shown_up

Entry = Mapping[str, Any]
"""One theorem: theorem, setting, verdict, slip, conditions [{condition, met, unmet}] and rows.

A row has the claimed epsilon (target), {way to draw a batch: true epsilon}, zcdp, outside and fails.
"""

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
    text = (files("fedsim.theory") / "audit.json").read_text(encoding="utf-8")
    if as_json:
        typer.echo(text, nl=False)
    elif markdown:
        typer.echo(page(json.loads(text)), nl=False)
    else:
        _print(json.loads(text))


def page(entries: Sequence[Entry]) -> str:
    """docs/thesis-audit.md."""
    return "\n".join([_INTRODUCTION, *map(_section, entries)])


def _section(entry: Entry) -> str:
    rows = [_cells(row) for row in entry["rows"]]
    lines = [f"## {entry['theorem']}", "", f"{entry['setting']}. {entry['verdict']}", ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|" + " ---: |" * len(rows[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    lines += ["", _conditions(entry), *(["", entry["slip"]] if entry["slip"] else [])]
    return "\n".join(lines) + "\n"


def _conditions(entry: Entry) -> str:
    lowest = entry["rows"][0]["target"]
    return "Conditions: " + "; ".join(_condition(each, lowest) for each in entry["conditions"]) + "."


def _condition(condition: Mapping[str, Any], lowest: float) -> str:
    unmet = condition["unmet"]
    where = f" from {unmet[0]:g} on" if unmet and unmet[0] != lowest else ""
    return f"{condition['condition']}: {'not met' if unmet else 'met'}{where}"


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """By column; those of an entry have the same columns."""
    true = {name: _number(name, value) for name, value in row["true"].items()}
    zcdp = {} if row["zcdp"] is None else {"zCDP": _number("zCDP", row["zcdp"])}
    outside = f" (outside: {'; '.join(row['outside'])})" if row["outside"] else ""
    claim = ("fails" if row["fails"] else "holds") + outside
    return {"claimed": f"{row['target']:g}", **true, **zcdp, "claim": claim}


def _number(name: str, value: float) -> str:
    if value > _LARGEST:
        return f"above {_LARGEST:,}"
    return (shown_down if name.endswith("at least") else shown_up)(value, 3)


def _print(entries: Sequence[Entry]) -> None:
    console = Console()
    for entry in entries:
        console.print(f"{entry['theorem']}\n{entry['setting']}", style="italic", highlight=False)
        table = Table(box=SIMPLE_HEAD)
        for column in _cells(entry["rows"][0]):
            table.add_column(column, justify="right")
        for row in entry["rows"]:
            *numbers, claim = _cells(row).values()
            short = claim[:5] + (" *" if row["outside"] else "")
            table.add_row(*numbers, short, style="bold" if row["fails"] else "")
        console.print(table)
        if any(row["outside"] for row in entry["rows"]):
            console.print("* outside a condition", highlight=False)
        console.print(_conditions(entry), highlight=False)
        console.print(entry["verdict"], highlight=False)
        if entry["slip"]:
            console.print(entry["slip"], highlight=False)
        console.print()
