"""Tables: of text for terminal, page and notebook, and of rows and named columns; what notebooks show."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from fedsim.common.errors import InputError, suggest
from fedsim.privacy.rounding import shown_down, shown_up

if TYPE_CHECKING:
    import pandas as pd

MEANS = "Means; weighing: records."
Row = TypeVar("Row")


@dataclass(frozen=True)
class TextTable:
    """Text in rows; `total` is a last row for all, `short` titles for a terminal; empty where not needed."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    total: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        caption: str,
        rows: Iterable[Row],
        columns: Mapping[str, Callable[[Row], str]],
        short: Sequence[str] = (),
    ) -> Self:
        """A table with a row for each of `rows`, and {title: what writes its cell} for the columns."""
        cells = [[write(row) for write in columns.values()] for row in rows]
        return cls(caption, list(columns), cells, short=list(short))

    @property
    def html(self) -> str:
        """The table as HTML.

        >>> TextTable("", ["silo"], [["a < b"]]).html
        '<table><thead><tr><th>silo</th></tr></thead><tbody><tr><td>a &lt; b</td></tr></tbody></table>'
        """
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        rows = [*self.rows, *([self.total] if self.total else [])]
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_SHOWN = 10
_UP = "epsilon", "delta", "claimed"  # columns of privacy figures begin so, and are rounded up
_DOWN = "epsilon_attainable", "attained", "worst_server", "honest_server", "model"


@dataclass(frozen=True, eq=False)
class Table:
    """Rows and named columns; `arrow` is the pyarrow.Table itself.

    >>> import pyarrow
    >>> table = Table(pyarrow.table({"round": [0, 1], "error": [0.5, 0.25]}))
    >>> table
    Table(2 rows: round, error)
    >>> table["error"]
    [0.5, 0.25]
    >>> table.to_pylist()[1]
    {'round': 1, 'error': 0.25}
    """

    arrow: pa.Table

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.arrow.column_names)

    def to_pandas(self) -> pd.DataFrame:
        """The same as a pandas.DataFrame."""
        return self.arrow.to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows, each as a dict."""
        return self.arrow.to_pylist()  # type: ignore[no-any-return]

    def __getitem__(self, column: str) -> list[Any]:
        if column not in self.arrow.column_names:
            raise InputError("column", column, suggest(column, self.columns))
        return self.arrow[column].to_pylist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_pylist())

    def __repr__(self) -> str:
        return f"Table({len(self):,} rows: {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        cells = [[_cell(*each) for each in row.items()] for row in self.arrow.slice(0, _SHOWN).to_pylist()]
        more = f"<p>{len(self):,} rows</p>" if len(self) > _SHOWN else ""
        return TextTable("", self.columns, cells).html + more


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and (column in _DOWN or column.startswith(_UP)):
        return (shown_down if column in _DOWN else shown_up)(value, 6)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def capital(text: str) -> str:
    """The text with a capital letter, for a sentence's start."""
    return f"{text[0].upper()}{text[1:]}"


def lines_html(lines: Sequence[str]) -> str:
    """Lines of text as HTML, each a paragraph."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def figure_html(plot: Callable[[], Any]) -> str:
    """A figure (`fedsim.report.style.Picture`) in a notebook's HTML; empty where there is nothing to show."""
    try:
        png: bytes = plot()._repr_png_()
    except InputError:
        return ""
    return f'<img src="data:image/png;base64,{b64encode(png).decode()}">'
