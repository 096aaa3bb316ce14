"""CSV and Parquet files as columns, read no further than asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.data.csv_file import CsvFile
from fedsim.data.folder import check_there
from fedsim.data.reading import DEFAULTS, Reading

Columns = dict[str, Any]  # name to pyarrow.ChunkedArray


class Table(ABC):
    """Named columns of at least one record.

    Attributes:
        title: what errors call it.
        names: of its columns, without spaces around them.
    """

    title: str
    names: tuple[str, ...]

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Records, counted without reading features."""

    @abstractmethod
    def read(self, columns: Collection[str]) -> Columns:
        """The named columns; a CSV file's as texts, so that the schema alone says what they mean."""

    def require(self, column: str, field: str) -> None:
        """InputError on `field` unless the table has such a column."""
        if column not in self.names:
            raise InputError(field, column, f"{self.title} has no such column; {suggest(column, self.names)}")

    def place(self, row: int) -> str:
        """Where record `row`, from 0, stands: errors begin with it."""
        return f"row {row + 1}"


@dataclass(frozen=True, eq=False)
class FileTable(Table):
    """A file; `field` is what an error about it names, `csv` is None for a Parquet file."""

    path: Path
    field: str
    stored: dict[str, str]  # its columns' names in the file
    csv: CsvFile | None

    @property
    def title(self) -> str:  # type: ignore[override]
        """The file's name."""
        return self.path.name

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """In the file's order."""
        return tuple(self.stored)

    @cached_property
    def num_rows(self) -> int:
        """From a Parquet file's metadata or from one column of a CSV file."""
        with _mendable(self.path, self.field, self.csv):
            if self.csv is None:
                return self._not_empty(_parquet().read_metadata(self.path).num_rows)
            with self._lines.stream([next(iter(self.stored.values()))]) as reader:
                return self._not_empty(sum(batch.num_rows for batch in reader))

    @cached_property
    def _lines(self) -> CsvFile:
        """The CSV file, whose every record is a line unless the person says otherwise: how many records there
        are must not hang on what one of them holds.
        """
        assert self.csv is not None
        if line := self.csv.broken():
            expected = (
                f"line {line}: a cell goes on in the next line, as after a quote that nothing closes; mend "
                "it, or if cells may hold line breaks say `multiline: true`"
            )
            raise InputError(self.field, str(self.path), expected)
        return self.csv

    def read(self, columns: Collection[str]) -> Columns:
        """As of any table."""
        stored = {name: self.stored[name] for name in columns}
        with _mendable(self.path, self.field, self.csv):
            if self.csv is None:
                table = _parquet().read_table(self.path, columns=list(stored.values()))
            else:
                with self._lines.stream(list(stored.values())) as reader:
                    table = reader.read_all()
        self._not_empty(table.num_rows)
        return {name: table.column(within) for name, within in stored.items()}

    def _not_empty(self, count: int) -> int:
        if count == 0:
            raise InputError(self.field, str(self.path), "the table has a header and no records")
        return count


def open_table(path: Path, field: str, reading: Reading = DEFAULTS) -> FileTable:
    """Look at the header only.

    Raises:
        InputError: on `field`: the file is no table, or two of its columns have one name.
    """
    if field.startswith("scenario.data"):
        check_there(field, path)
    if not path.is_file():
        raise InputError(field, str(path), "no such file")
    with _mendable(path, field, None):
        csv = None if _looks_like_parquet(path) else CsvFile.found(path, reading)
    with _mendable(path, field, csv):
        if csv is None:
            names = _parquet().read_schema(path).names
        else:
            with csv.stream(None) as reader:
                names = reader.schema.names
    stripped = _unique([name.strip() for name in names], field, str(path))
    return FileTable(path, field, dict(zip(stripped, names, strict=True)), csv)


def _unique(names: Sequence[str], field: str, title: str) -> Sequence[str]:
    twice = [f"{name!r} ({count} times)" for name, count in Counter(names).items() if count > 1]
    if twice:
        expected = f"columns of one name: {', '.join(twice)}; rename or remove all but one"
        raise InputError(field, title, expected)
    return names


@contextmanager
def _mendable(path: Path, field: str, csv: CsvFile | None) -> Iterator[None]:
    """What a reader cannot read inside the block is the person's file, not our fault."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        if csv is not None and (line := csv.undecodable()):
            expected = (
                f"not a readable CSV or Parquet table (line {line} is not {csv.encoding} text); of a CSV "
                "file say how it is encoded: `encoding: latin-1`, cp1252, utf-16, ..."
            )
            raise InputError(field, str(path), expected) from error
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
