"""CSV files as they come: what separates their cells, and how they are encoded."""

from __future__ import annotations

import codecs
import csv
import io
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fedsim.data.reading import DELIMITERS, Reading

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
        """As the options say, and as the file's beginning does where they do not."""
        encoding = reading.encoding or _encoding(path)
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


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(3)
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")


def _delimiter(path: Path, encoding: str) -> str:
    """The one that cuts the first records into equally many cells, and into most."""
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
