"""What a person sees at the end of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from fedsim.curves.naming import last_part, title
from fedsim.curves.sweep_summary import Setting, SweepSummary
from fedsim.privacy.rounding import shown_up
from fedsim.report.remarks import value_text
from fedsim.results.silo_table import TITLE, Table, silo_table
from fedsim.results.summary import Parameters, SiloRow, spans
from fedsim.scenario.metric import METRICS

MOST_ROWS = 20


def shown(path: Path) -> str:
    """A path as a person would type it: from here, where it is below."""
    place, here = path.resolve(), Path.cwd()
    return str(place.relative_to(here) if place.is_relative_to(here) else path)


def say(console: Console, line: str, style: str = "") -> None:
    """A line of plain text, whatever is in it, which the terminal wraps."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_notices(console: Console, lines: Sequence[str]) -> None:
    """What must be read before any number."""
    for line in lines:
        say(console, line, "bold")


def print_warnings(console: Console, lines: Sequence[str]) -> None:
    """What is allowed and hardly meant."""
    for line in lines:
        say(console, f"warning: {line}", "yellow")


def print_parameters(console: Console, chosen: Parameters | None) -> None:
    """The numbers that a theorem chose for the algorithm; nothing where all are given."""
    if chosen is None:
        return
    say(console, f"{chosen.theorem}: {_named(chosen.values) or 'every number is given'}")
    if chosen.not_applied:
        say(console, f"  set by the theorem, not applied here: {_named(chosen.not_applied)}")
    if chosen.predicted:
        say(console, f"  with this plan's own noise, constants one: {_named(chosen.predicted)}")


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(map(_short, value.values()))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def rendered(table: Table, title: str) -> RichTable:
    """A table of results in 80 characters, as far as its columns allow."""
    padding = 1 if len(table.columns) < 8 else 0
    shown = RichTable(title=title, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, padding))
    first, *others = table.short or table.columns
    shown.add_column(first, overflow="fold", min_width=7)
    for each in others:
        shown.add_column(each, justify="right", no_wrap=True)  # half a number is a wrong number
    for row in table.rows:
        shown.add_row(*row)
    if table.total:
        shown.add_section()
        shown.add_row(*(cell.replace(" to ", " to\n") for cell in table.total))
        shown.caption = table.caption
    return shown


def print_silos(console: Console, silos: Sequence[SiloRow]) -> None:
    """For each silo its records, budget, cost and noise; of many the tightest."""
    console.print(rendered(silo_table(silos, MOST_ROWS), TITLE))


def titled(title: str) -> RichTable:
    """A table without columns so far."""
    return RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title, title_justify="left")


def sweep_table(sweep: SweepSummary) -> RichTable:
    """One row per combination: what was varied and chosen, error and cost."""
    note = (
        f"mean of {sweep.trials} trials, in brackets {spans(sweep.trials)}"
        if sweep.trials > 1
        else "one trial"
    )
    what = METRICS[sweep.metric].title
    table = titled(f"{what[0].upper()}{what[1:]}: {note}")
    for name in sweep.varied:
        table.add_column(last_part(name), overflow="fold")
    chosen = sweep.chosen if len(sweep.chosen) < 2 else [""]  # several in one column: 80 characters
    for name in chosen:
        table.add_column(f"chosen {last_part(name)}", justify="right", overflow="fold")
    for name in (what, "guaranteed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sweep.combinations:
        cells = [_value(row.varied.get(name, "-")) for name in sweep.varied]
        cells += [_chosen(row.chosen or {}, name) for name in chosen]
        table.add_row(
            *cells, value_text(row.spread(sweep.metric)) or "failed", shown_up(row.epsilon_guaranteed)
        )
    if sweep.baselines:
        table.add_section()
    for label, one in sweep.levels():
        blank = ["-"] * (len(sweep.varied) + len(chosen) - 1)
        table.add_row(label, *blank, value_text(one.spread(sweep.metric)) or "not fitted", "not private")
    return table


def _chosen(chosen: Setting, field: str) -> str:
    """One field's value, or all of them."""
    if field:
        return _value(chosen.get(field, "-"))
    return title(chosen, True) if chosen else "-"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def slug(name: str) -> str:
    """A scenario's name as the name of a directory."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
