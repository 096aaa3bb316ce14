"""Several files as one table: a file for each silo, whose name becomes a column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.column_values import Cells
from fedsim.data.reading import Reading
from fedsim.data.table import Columns, FileTable, open_table

SILO = "silo"
"""What the column of silos is called unless the person says otherwise."""


class JoinedTable:
    """The files' records one after another, and a column that names the silo.

    Args:
        paths: of the files by silo.
        silo_column: what the column is called.
        field: what an error is about; of one file `field.silo`.
        reading: how the files are read.

    Raises:
        InputError: names the file that is no table, or that has such a column already.
    """

    title = "the table of several files"

    def __init__(self, paths: Mapping[str, Path], silo_column: str, field: str, reading: Reading) -> None:
        self._parts = {silo: open_table(path, f"{field}.{silo}", reading) for silo, path in paths.items()}
        self._silo_column = silo_column
        for silo, part in self._parts.items():
            if silo_column in part.names:
                hint = f"{part.title} has a column {silo_column!r}: call the silos' column otherwise"
                raise InputError(f"{field}.{silo}", str(part.path), f"{hint}, by silo_column")
        shared = set.intersection(*(set(part.names) for part in self._files))
        self.names = (*(name for name in self._files[0].names if name in shared), silo_column)

    @property
    def _files(self) -> list[FileTable]:
        return list(self._parts.values())

    @cached_property
    def _ends(self) -> list[int]:
        """Records up to each file's end."""
        return list(accumulate(part.num_rows for part in self._files))

    @property
    def num_rows(self) -> int:
        """Of all files."""
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
        """As of any table; where files differ in a column's type, as texts."""
        stored = [name for name in columns if name != self._silo_column]
        found = [part.read(stored) for part in self._files]
        read = {name: _joined([each[name] for each in found], name) for name in stored}
        return {name: read[name] if name in read else self._silos() for name in columns}

    def _silos(self) -> Any:
        import pyarrow as pa

        counts = [part.num_rows for part in self._files]
        return pa.chunked_array([pa.array(np.repeat(list(self._parts), counts), pa.string())])


Table = FileTable | JoinedTable


def _joined(pieces: list[Any], name: str) -> Any:
    import pyarrow as pa

    if len({piece.type for piece in pieces}) > 1:
        pieces = [Cells(piece, np.arange(len(piece)), name).as_texts() for piece in pieces]
        return pa.chunked_array(pieces)
    return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], pieces[0].type)


def open_tables(
    paths: Path | Sequence[Path], field: str, reading: Reading, silo_column: str | None = None
) -> tuple[Table, str | None]:
    """One file as it is, or several as a silo each, named as the files are; and the column of silos.

    Raises:
        InputError: on `field`: a file is no table.
    """
    paths = [paths] if isinstance(paths, Path) else list(paths)
    if len(paths) == 1:
        return open_table(paths[0], field, reading), silo_column
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise InputError(field, str(twice), "is given twice")
    stems = [path.stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    silos = silo_column or SILO
    return JoinedTable(dict(zip(names, paths, strict=True)), silos, field, reading), silos
