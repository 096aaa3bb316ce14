"""CSV and Parquet files, and tables in memory, as columns, read no further than asked."""

from __future__ import annotations

import codecs
import csv
import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from fedsim.common.errors import InputError, suggest
from fedsim.common.files import check_there
from fedsim.data.column_values import Cells
from fedsim.data.schema import DEFAULTS, DELIMITERS, SILO, Reading

Columns = dict[str, Any]  # name to pyarrow.ChunkedArray


@dataclass(frozen=True, eq=False)
class _Named(ABC):
    """Named columns of at least one record, and their place in errors."""

    field: str  # what an error about it names

    @property
    @abstractmethod
    def title(self) -> str:
        """The table's name in errors."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Column names, stripped, in the table's order."""

    def require(self, column: str, field: str) -> None:
        if column not in self.names:
            raise InputError(field, column, f"{self.title} has no such column; {suggest(column, self.names)}")

    def place(self, row: int) -> str:
        """The place of record `row`, from 0, as the start of an error's hint."""
        return f"row {row + 1}"


@dataclass(frozen=True, eq=False)
class ArrowTable(_Named):
    """A table in memory: a data frame, or records that the library `datasets` reads."""

    table: Any  # pyarrow.Table
    title: str = "the table"

    def __post_init__(self) -> None:
        if not self.table.num_rows:
            raise InputError(self.field, self.title, "has no records")
        _unique(self.names, self.field, self.title)

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.table.column_names)

    @property
    def num_rows(self) -> int:
        """Records."""
        return int(self.table.num_rows)

    def read(self, columns: Collection[str]) -> Columns:
        """The named columns."""
        return {name: self.table.column(self.names.index(name)) for name in columns}


@dataclass(frozen=True, eq=False)
class FileTable(_Named):
    """A table in a CSV or Parquet file."""

    path: Path
    stored: dict[str, str]  # its columns' names in the file
    csv: CsvFile | None  # None for a Parquet file

    @property
    @override
    def title(self) -> str:
        return self.path.name

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return tuple(self.stored)

    @cached_property
    def num_rows(self) -> int:
        """Records, counted from a Parquet file's metadata or from one column of a CSV file."""
        with _mendable(self.path, self.field, self.csv):
            if self.csv is None:
                return self._not_empty(_parquet().read_metadata(self.path).num_rows)
            with self._lines.stream([next(iter(self.stored.values()))]) as reader:
                return self._not_empty(sum(batch.num_rows for batch in reader))

    @cached_property
    def _lines(self) -> CsvFile:
        """The CSV file, checked: each record is one line unless `multiline` is set, so that the content of a
        record cannot change the number of records.
        """
        assert self.csv is not None
        if line := self.csv.broken():
            hint = f"line {line}: a cell goes on in the next line, as after a quote that nothing closes; "
            hint += "mend it, or if cells may hold line breaks say `multiline: true`"
            raise InputError(self.field, str(self.path), hint)
        return self.csv

    def read(self, columns: Collection[str]) -> Columns:
        """The named columns; a CSV file's as texts, so that the schema alone says what they mean."""
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
    """Open a file and read its header; InputError on `field` if it is no table or repeats a column."""
    if field.startswith("scenario.data"):
        check_there(field, path)
    if not path.is_file():
        raise InputError(field, str(path), "no such file")
    with _mendable(path, field, None):
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1" or path.suffix.lower() in (".parquet", ".pq")
        csv = None if parquet else CsvFile.found(path, reading)
    with _mendable(path, field, csv):
        if csv is None:
            names = _parquet().read_schema(path).names
        else:
            with csv.stream(None) as reader:
                names = reader.schema.names
    stripped = _unique([name.strip() for name in names], field, str(path))
    return FileTable(field, path, dict(zip(stripped, names, strict=True)), csv)


def _unique(names: Sequence[str], field: str, title: str) -> Sequence[str]:
    twice = [f"{name!r} ({count} times)" for name, count in Counter(names).items() if count > 1]
    if twice:
        hint = f"columns of one name: {', '.join(twice)}; rename or remove all but one"
        raise InputError(field, title, hint)
    return names


@contextmanager
def _mendable(path: Path, field: str, csv: CsvFile | None) -> Iterator[None]:
    """Turn a reader's errors inside the block into an InputError on the user's file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        if csv is not None and (line := csv.undecodable()):
            hint = f"not a readable CSV or Parquet table (line {line} is not {csv.encoding} text); of a CSV "
            hint += "file say how it is encoded: `encoding: latin-1`, cp1252, utf-16, ..."
            raise InputError(field, str(path), hint) from error
        # every control character escaped: a reader may quote a binary file's bytes
        reason = repr((str(error).splitlines() or [type(error).__name__])[0])[1:-1]
        reason = reason if len(reason) <= 160 else reason[:157] + "..."
        raise InputError(field, str(path), f"not a readable CSV or Parquet table ({reason})") from error


def _parquet() -> Any:
    import pyarrow.parquet as pq

    return pq


_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SAMPLE = 100_000  # characters
_RECORDS = 50


@dataclass(frozen=True)
class CsvFile:
    """A CSV file, and how to read it."""

    path: Path
    delimiter: str
    encoding: str
    multiline: bool

    @classmethod
    def found(cls, path: Path, reading: Reading) -> CsvFile:
        """Take the options; where they are not set, detect from the file's beginning."""
        if (encoding := reading.encoding) is None:
            with path.open("rb") as file:
                start = file.read(3)
            encoding = next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")
        return cls(path, reading.delimiter or _delimiter(path, encoding), encoding, reading.multiline)

    def stream(self, columns: list[str] | None) -> Any:
        """A reader of batches; a cell may hold line breaks, and an empty cell is an empty text."""
        import pyarrow as pa
        from pyarrow import csv

        convert = csv.ConvertOptions(
            include_columns=columns,
            column_types={name: pa.string() for name in columns or []},
            strings_can_be_null=False,
        )
        parse = csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        read = csv.ReadOptions(encoding=self.encoding)
        return csv.open_csv(self.path, read_options=read, parse_options=parse, convert_options=convert)

    def broken(self) -> int | None:
        """The first line, from 1, whose last cell goes on in the next, where none may."""
        if self.multiline:
            return None
        with self.path.open(encoding=self.encoding, errors="replace", newline="") as file:
            records, line = csv.reader(file, delimiter=self.delimiter), 0
            try:
                for _ in records:
                    if records.line_num > line + 1:
                        return line + 1
                    line = records.line_num
            except csv.Error:  # a cell of more than 2^17 characters
                return line + 1
        return None

    def undecodable(self) -> int | None:
        """The first line that is not text in this encoding, from 1."""
        decoder = codecs.getincrementaldecoder(self.encoding)()
        with self.path.open("rb") as file:
            for line, raw in enumerate(file, 1):
                try:
                    decoder.decode(raw)
                except UnicodeError:
                    return line
        return None


def _delimiter(path: Path, encoding: str) -> str:
    """The delimiter that splits the first records into the most cells, equally many in each."""
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        sample = file.read(_SAMPLE)
    if len(sample) == _SAMPLE:
        sample = sample[: sample.rfind("\n") + 1]
    return max(DELIMITERS, key=lambda delimiter: _cuts(sample, delimiter))


def _cuts(sample: str, delimiter: str) -> tuple[bool, int]:
    records = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    try:
        widths = [len(record) for record in islice(records, _RECORDS) if record]
    except csv.Error:  # such as a cell without end
        widths = []
    return len(set(widths)) == 1 and widths[0] > 1, widths[0] if widths else 0


class JoinedTable:
    """The records of {silo: file} one after another, and a column `silo_column` that names the silo.
    InputError on `field.silo` for a file that is no table, or has a column of that name.
    """

    title = "the table of several files"

    def __init__(self, paths: Mapping[str, Path], silo_column: str, field: str, reading: Reading) -> None:
        self._parts = {silo: open_table(path, f"{field}.{silo}", reading) for silo, path in paths.items()}
        self._silo_column, self._files = silo_column, list(self._parts.values())
        for silo, part in self._parts.items():
            if silo_column in part.names:
                hint = f"{part.title} has a column {silo_column!r}: call the silos' column otherwise"
                raise InputError(f"{field}.{silo}", str(part.path), f"{hint}, by silo_column")
        shared = set.intersection(*(set(part.names) for part in self._files))
        self.names = (*(name for name in self._files[0].names if name in shared), silo_column)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(part.num_rows for part in self._files))

    @property
    def num_rows(self) -> int:
        """Records of all files together."""
        return self._ends[-1]

    def require(self, column: str, field: str) -> None:
        """InputError on `field` that names the first file without such a column."""
        if column != self._silo_column:
            for part in self._files:
                part.require(column, field)

    def place(self, row: int) -> str:
        """The row in its file."""
        index = int(np.searchsorted(self._ends, row, side="right"))
        start = [0, *self._ends][index]
        part = self._files[index]
        return f"{part.title}, {part.place(row - start)}"

    def read(self, columns: Collection[str]) -> Columns:
        """The named columns; as texts where files differ in a column's type."""
        import pyarrow as pa

        stored = [name for name in columns if name != self._silo_column]
        found = [part.read(stored) for part in self._files]
        read = {name: _joined([each[name] for each in found], name) for name in stored}
        if self._silo_column in columns:
            counts = [part.num_rows for part in self._files]
            silos = pa.array(np.repeat(list(self._parts), counts), pa.string())
            read[self._silo_column] = pa.chunked_array([silos])
        return {name: read[name] for name in columns}


Table = FileTable | JoinedTable | ArrowTable


def _joined(pieces: list[Any], name: str) -> Any:
    import pyarrow as pa

    if len({piece.type for piece in pieces}) > 1:
        pieces = [Cells(piece, np.arange(len(piece)), name).as_texts() for piece in pieces]
        return pa.chunked_array(pieces)
    return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], pieces[0].type)


def open_tables(
    paths: Path | Sequence[Path], field: str, reading: Reading, silo_column: str | None = None
) -> tuple[Table, str | None]:
    """One file as it is, or several as a silo each, named like the files; and the column of silos."""
    paths = [paths] if isinstance(paths, Path) else list(paths)
    if len(paths) == 1:
        return open_table(paths[0], field, reading), silo_column
    if len(set(paths)) < len(paths):
        raise InputError(field, str(next(path for path in paths if paths.count(path) > 1)), "is given twice")
    stems = [path.stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    silos = silo_column or SILO
    return JoinedTable(dict(zip(names, paths, strict=True)), silos, field, reading), silos
