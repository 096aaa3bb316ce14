"""CSV and Parquet files as columns, read no further than asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest

Columns = dict[str, Any]  # name to pyarrow.ChunkedArray


@dataclass(frozen=True)
class Table:
    """A file that is a table with at least one record; `field` is what an error about the file names."""

    path: Path
    field: str
    names: tuple[str, ...]
    is_parquet: bool

    def require(self, column: str, field: str) -> None:
        """InputError on `field` unless the table has exactly one such column."""
        if column not in self.names:
            raise InputError(
                field, column, f"{self.path.name} has no such column; {suggest(column, self.names)}"
            )
        if self.names.count(column) > 1:
            raise InputError(
                field, column, f"{self.path.name} has {self.names.count(column)} columns of this name"
            )

    def num_rows(self) -> int:
        """Records, from a Parquet file's metadata or from one column of a CSV file."""
        with _mendable(self.path, self.field):
            if self.is_parquet:
                return self._not_empty(_parquet().read_metadata(self.path).num_rows)
            with _open_csv(self.path, [self.names[0]]) as reader:
                return self._not_empty(sum(batch.num_rows for batch in reader))

    def read(self, columns: Collection[str]) -> Columns:
        """The named columns; a CSV file's as texts, so that the schema alone says what they mean."""
        names = list(dict.fromkeys(columns))
        with _mendable(self.path, self.field):
            if self.is_parquet:
                table = _parquet().read_table(self.path, columns=names)
            else:
                with _open_csv(self.path, names) as reader:
                    table = reader.read_all()
        self._not_empty(table.num_rows)
        return {name: table.column(name) for name in names}

    def _not_empty(self, count: int) -> int:
        if count == 0:
            raise InputError(self.field, str(self.path), "the table has a header and no records")
        return count


def open_table(path: Path, field: str) -> Table:
    """Look at the header only.

    Raises:
        InputError: on `field`: the file is no table.
    """
    if not path.is_file():
        raise InputError(field, str(path), "no such file")
    with _mendable(path, field):
        if is_parquet := _looks_like_parquet(path):
            names = _parquet().read_schema(path).names
        else:
            with _open_csv(path, None) as reader:
                names = reader.schema.names
    return Table(path, field, tuple(names), is_parquet)


@contextmanager
def _mendable(path: Path, field: str) -> Iterator[None]:
    """What a reader cannot read inside the block is the person's file, not our fault."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        reason = _printable((str(error).splitlines() or [type(error).__name__])[0])
        raise InputError(field, str(path), f"not a readable CSV or Parquet table ({reason})") from error


def _printable(text: str) -> str:
    """Short, and with every control character escaped: a reader may quote a binary file's bytes."""
    escaped = repr(text)[1:-1]
    return escaped if len(escaped) <= 160 else escaped[:157] + "..."


def _looks_like_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" or path.suffix.lower() in (".parquet", ".pq")


def _parquet() -> Any:
    import pyarrow.parquet as pq

    return pq


def _open_csv(path: Path, columns: list[str] | None) -> Any:
    """Stream a CSV file; a cell may hold line breaks, and an empty cell is an empty text."""
    import pyarrow as pa
    from pyarrow import csv

    convert = csv.ConvertOptions(
        include_columns=columns,
        column_types={name: pa.string() for name in columns or []},
        strings_can_be_null=False,
    )
    return csv.open_csv(
        path, parse_options=csv.ParseOptions(newlines_in_values=True), convert_options=convert
    )
