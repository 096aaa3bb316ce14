"""What a notebook shows of results; all text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedsim.results.silo_table import silo_table
from fedsim.results.summary import SiloRow

_MOST_SILOS = 20


def lines_html(lines: Sequence[str]) -> str:
    """A paragraph a line."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text as HTML.

    >>> table_html(["silo"], [["a < b"]])
    '<table><thead><tr><th>silo</th></tr></thead><tbody><tr><td>a &lt; b</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def silos_html(silos: Sequence[SiloRow]) -> str:
    """What each silo pays; of many the tightest."""
    table = silo_table(silos, _MOST_SILOS)
    rows = [*table.rows, *([table.total] if table.total else [])]
    return lines_html([table.caption]) + table_html(table.columns, rows)
