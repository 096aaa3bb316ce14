"""What a command prints, and where to: a terminal, a program that reads JSON, or nowhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from fedsim.api.run import Run
    from fedsim.report.summary import Privacy
    from fedsim.report.tables import TextTable


class Output:
    """Consoles by the options --quiet (nothing but errors) and --json (the summary alone on stdout).

    Attributes:
        progress: how far it is.
        results: what came of it.
        errors: beside the results where those are shown.
    """

    def __init__(self, quiet: bool = False, as_json: bool = False) -> None:
        self._as_json = as_json
        self.progress = Console(stderr=as_json, quiet=quiet)
        self.results = Console(quiet=quiet or as_json)
        self.errors = Console(stderr=quiet or as_json)

    def summary(self, tree: Mapping[str, Any]) -> None:
        """Print it if JSON is asked for."""
        if self._as_json:
            print_json(tree)


def print_json(tree: Mapping[str, Any]) -> None:
    """Print a tree as JSON on stdout."""
    typer.echo(json.dumps(tree, indent=2, allow_nan=False))


def shown(path: Path) -> str:
    """A path as one would type it: from here, where it is below."""
    place, here = path.resolve(), Path.cwd()
    return str(place.relative_to(here) if place.is_relative_to(here) else path)


def say(console: Console, *lines: str, style: str = "") -> None:
    """Print lines of plain text without markup; the terminal wraps them."""
    for line in lines:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_notices(console: Console, lines: Sequence[str]) -> None:
    """Print notices in bold, before any number."""
    say(console, *lines, style="bold")


def print_warnings(console: Console, lines: Sequence[str]) -> None:
    """Print warnings: allowed settings that are hardly intended."""
    say(console, *(f"warning: {line}" for line in lines), style="yellow")


def rendered(table: TextTable, title: str) -> RichTable:
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


def print_silos(console: Console, privacy: Privacy) -> None:
    """Print each silo's size, budget, cost and noise, of many the tightest's, and what that is worth."""
    from fedsim.report.tables import capital
    from fedsim.report.texts import silo_table, worth_lines

    table = silo_table(privacy)
    console.print(rendered(table, f"Epsilon per silo ({privacy.title})"))
    say(console, *map(capital, worth_lines(privacy)))


def titled(
    title: str | None = None,
    padding: int | tuple[int, int] = (0, 1),
    texts: Sequence[str] = (),
    whole: Sequence[str] = (),
    numbers: Sequence[str] = (),
    rest: str = "",
) -> RichTable:
    """Columns of texts, texts on one line, numbers (half of one is wrong), and `rest` of what is left."""
    made = RichTable(
        title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding
    )
    for name in texts:
        made.add_column(name, overflow="fold")
    for name in whole:
        made.add_column(name, no_wrap=True)
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    if rest:
        made.expand = True
        made.add_column(rest, no_wrap=True, overflow="ellipsis", ratio=1)
    return made


def printable(text: str) -> str:
    """What another party wrote, for a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def print_facts(console: Console, lines: Iterable[str], rows: Iterable[tuple[str, str]]) -> None:
    """Print lines and named rows, which go on below their beginning; what they quote may be another's."""
    for line in lines:
        console.print(printable(line), highlight=False, markup=False)
    for name, value in rows:
        row = fill(f"{name:12}{printable(value)}", max(80, console.width), subsequent_indent=" " * 12)
        console.print(row, highlight=False, markup=False, soft_wrap=True)


def slug(name: str) -> str:
    """A scenario's name as the name of a directory."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"


def dated(name: str) -> Path:
    """Where results go by default: runs/NAME-TIME."""
    return Path("runs") / f"{slug(name)}-{datetime.now():%Y%m%d-%H%M%S}"


def print_run(console: Console, done: Run, directory: Path) -> None:
    """Print a run's result, what it cost whom, and where its files are."""
    from fedsim.report import texts
    from fedsim.report.page import listing

    summary = done.summary
    print_notices(console, summary.privacy.notices)
    print_warnings(console, summary.warnings)
    console.print(texts.result_line(summary))
    for line in texts.remarks(summary):
        console.print(line, markup=False, highlight=False)
    if summary.trials.finished and (summary.deployment is None or summary.baselines):
        console.print("", rendered(texts.metrics_table(summary), texts.METRICS_TITLE), sep="\n")
    for title, table in texts.section_tables(summary):
        console.print("", rendered(table, title), sep="\n")
    if summary.privacy.silos:
        console.print()
        print_silos(console, summary.privacy)
        console.print()
    say(console, f"Wrote {shown(directory)}/ ({', '.join(listing(directory))})")
