"""Reads who was there in each round from a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.data.table import Table, open_table

FIELD = "scenario.participation.path"
Attendance = tuple[tuple[int, ...], ...]
_THERE = {"0": False, "1": True, "false": False, "true": True}


def read_attendance(path: Path, names: Sequence[str]) -> Attendance:
    """The silos' positions in each round that has any, ascending.

    Args:
        path: a table with columns `round` and `silo`, or with a 0/1 column for each silo.
        names: silos in canonical order.

    Raises:
        InputError: names the file, the value in it and what would be right.
    """
    table = open_table(path, FIELD)
    sets = _rows(table, names) if {"round", "silo"} <= set(table.names) else _flags(table, names)
    attended = tuple(members for members in sets if members)
    if not attended:
        raise InputError(FIELD, str(path), "has no round with a silo in it")
    return attended


def _rows(table: Table, names: Sequence[str]) -> list[tuple[int, ...]]:
    """A row for each attendance."""
    place = {name: i for i, name in enumerate(names)}
    there: dict[int, set[int]] = defaultdict(set)
    for line, (when, who) in enumerate(zip(*_texts(table, ["round", "silo"]), strict=True), 1):
        if who not in place:
            raise InputError(FIELD, who, f"row {line} of {table.title}: no such silo; {suggest(who, names)}")
        there[_round(when, line, table)].add(place[who])
    return [tuple(sorted(there[r])) for r in sorted(there)]


def _flags(table: Table, names: Sequence[str]) -> list[tuple[int, ...]]:
    """A 0/1 column for each silo, beside an optional `round` that counts from 0."""
    for name in table.names:
        if name != "round" and name not in names:
            expected = f"{table.title} has a column that is no silo; {suggest(name, names)}"
            raise InputError(FIELD, name, expected)
    for name in names:
        table.require(name, FIELD)
    if "round" in table.names:
        for line, when in enumerate(_texts(table, ["round"])[0], 1):
            if _round(when, line, table) != line - 1:
                raise InputError(FIELD, when, f"row {line} of {table.title}: rounds must be 0, 1, 2, ...")
    rows = zip(*_texts(table, list(names)), strict=True)
    return [
        tuple(i for i, cell in enumerate(cells) if _flag(cell, line, names[i], table))
        for line, cells in enumerate(rows, 1)
    ]


def _texts(table: Table, columns: list[str]) -> list[list[str]]:
    read = table.read(columns)
    return [
        ["" if cell is None else str(cell).strip() for cell in read[name].to_pylist()] for name in columns
    ]


def _round(text: str, line: int, table: Table) -> int:
    if not text.isdecimal():
        expected = f"row {line} of {table.title}: a round must be a whole number from 0"
        raise InputError(FIELD, text, expected)
    return int(text)


def _flag(text: str, line: int, name: str, table: Table) -> bool:
    if text.lower() not in _THERE:
        raise InputError(FIELD, text, f"row {line} of {table.title}, silo {name}: must be 0 or 1")
    return _THERE[text.lower()]
