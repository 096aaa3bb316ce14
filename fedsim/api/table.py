"""A table of results: Arrow's, shown in a notebook, and handed to pandas on request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedsim.api.html import table_html
from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.privacy.rounding import shown_down, shown_up

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SHOWN = 10
_UP = (
    "delta",
    "epsilon",
    "epsilon_guaranteed",
    "epsilon_claimed",
    "epsilon_dp_accounting",
    "epsilon_spent",
    "claimed",
)
_DOWN = ("epsilon_attainable", "attained", "worst_server", "honest_server", "model")
_BOUNDS = {**dict.fromkeys(_UP, shown_up), **dict.fromkeys(_DOWN, shown_down)}
"""How columns of privacy figures are rounded; all others to the nearest."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows and named columns; `arrow` is the pyarrow.Table itself.

    >>> import pyarrow
    >>> table = Table(pyarrow.table({"round": [0, 1], "test_error": [0.5, 0.25]}))
    >>> table
    Table(2 rows: round, test_error)
    >>> table["test_error"]
    [0.5, 0.25]
    >>> table.to_pylist()[1]
    {'round': 1, 'test_error': 0.25}
    """

    arrow: pa.Table

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.arrow.column_names)

    def to_pandas(self) -> pd.DataFrame:
        """The same as a pandas.DataFrame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas  # noqa: F401
        except ImportError:
            expected = "needs pandas: pip install 'fedsim-isrl[pandas]'; to_pylist() and .arrow do without"
            raise InputError("to_pandas", "pandas", expected) from None
        return self.arrow.to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        """One dict a row."""
        rows: list[dict[str, Any]] = self.arrow.to_pylist()
        return rows

    def __getitem__(self, column: str) -> list[Any]:
        if column not in self.arrow.column_names:
            raise InputError("column", column, suggest(column, self.columns))
        values: list[Any] = self.arrow[column].to_pylist()
        return values

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_pylist())

    def __repr__(self) -> str:
        return f"Table({len(self):,} rows: {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        rows = self.arrow.slice(0, SHOWN).to_pylist()
        more = f"<p>{len(self):,} rows</p>" if len(self) > SHOWN else ""
        return table_html(self.columns, [[_cell(*each) for each in row.items()] for row in rows]) + more


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and (shown := _BOUNDS.get(column)):
        return shown(value, 6)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
