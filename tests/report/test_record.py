"""A record: entries are whole, in their order, checked, and of one process at a time."""

import sqlite3
from contextlib import closing
from math import inf
from pathlib import Path
from typing import get_type_hints

import pytest

from fedsim.common.errors import InputError
from fedsim.report.arrow import arrow, columns
from fedsim.report.record import TABLES, CellResult, Measurement, Record, Warned
from fedsim.report.sections.training import ClippedRound

MEASURED = Measurement(0, "private", 2, 0.25, None, 3, 1.5, more={"auc": 0.75, "brier": None})
CELL = CellResult(0.1, 0.2, None, inf, "a", 0.0, "share wrong", 1.0, {"auc": 0.5})


def ignore(text: str) -> None:
    """Told of damage that a test does not ask about."""


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    file = tmp_path / "record.sqlite"
    with Record.open(file, pytest.fail) as record:
        record.append("trial 1", [MEASURED, Warned(1, "odd"), MEASURED._replace(round=4)])
        record.append("cell", [CELL])
    with Record.open(file, pytest.fail) as again:
        assert again.keys == ["trial 1", "cell"]
        again.copy(tmp_path / "copy.sqlite", {"more": [Warned(1, "more")]})
    copied = Record.read(tmp_path / "copy.sqlite")
    assert copied.entry("more") == [Warned(1, "more")]
    for known in (record, again, Record.read(file), copied):
        assert known.rows(Measurement) == [MEASURED, MEASURED._replace(round=4)]
        assert known.rows(CellResult) == known.rows(CellResult, "cell") == [CELL]
        assert known.rows(Warned, "cell") == known.rows(ClippedRound) == []
        assert known.missing(["cell", "trial 1", "trial 2"]) == ["trial 2"]
        assert known.missing(range(3), lambda k: f"trial {k}") == [0, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.sqlite", "record.sqlite"]


def test_a_newer_entry_takes_the_place_of_one_with_its_key(tmp_path: Path) -> None:
    file = tmp_path / "record.sqlite"
    with Record.open(file, pytest.fail) as record:
        record.append("a", [Warned(0, "first")])
        record.append("b", [])
        record.append("a", [Warned(0, "second")])
    with Record.open(file, pytest.fail) as record:
        assert record.rows(Warned) == [Warned(0, "second")]
        assert record.keys == ["b", "a"]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET payload = replace(payload, 'odd', 'od') WHERE kind = 'rows a'",
        "UPDATE entries SET payload = substr(payload, 1, 9) WHERE kind = 'rows a'",
        "UPDATE entries SET payload = CAST(x'ff' AS TEXT) WHERE kind = 'rows a'",
        "UPDATE entries SET hash = x'00' WHERE kind = 'rows a'",
        "UPDATE entries SET kind = 'rows c' WHERE kind = 'rows a'",
    ],
)
def test_a_damaged_entry_is_named_and_missing(damage: str, tmp_path: Path) -> None:
    file, told = tmp_path / "record.sqlite", list[str]()
    with Record.open(file, pytest.fail) as record:
        record.append("a", [Warned(0, "odd")])
        record.append("b", [CELL])
    with closing(sqlite3.connect(file, isolation_level=None)) as log:
        log.execute(damage)
    with Record.open(file, told.append) as record:
        (line,) = told
        assert str(file) in line
        assert "damaged" in line
        assert record.missing(["a", "b", "c"]) == ["a", "c"]
        record.append("a", [Warned(0, "odd")])
    with Record.open(file, ignore) as record:
        assert record.missing(["a", "b"]) == []


def test_rows_of_another_version_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, told = tmp_path / "record.sqlite", list[str]()
    with Record.open(file, pytest.fail) as record:
        record.append("a", [CELL])
    monkeypatch.setitem(TABLES, "cells", TABLES["warnings"])  # another number of columns
    with Record.open(file, told.append) as record:
        assert len(told) == 1
        assert record.missing(["a"]) == ["a"]


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "record.sqlite"
    file.write_bytes(b"x" * 4096)
    with pytest.raises(InputError) as refused, Record.open(file, pytest.fail):
        pass
    assert (refused.value.field, refused.value.value) == ("record", str(file))
    assert file.read_bytes() == b"x" * 4096


def test_a_record_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "record.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE entry (number INTEGER PRIMARY KEY, key TEXT)")
    as_it_was = file.read_bytes()
    with pytest.raises(InputError, match="version of fedsim that wrote it") as refused:
        Record.read(file)
    with pytest.raises(InputError, match="or remove it"), Record.open(file, pytest.fail):
        pass
    assert refused.value.field == "RUN"
    assert file.read_bytes() == as_it_was


def test_a_record_is_open_once_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "record.sqlite"
    with Record.open(file, pytest.fail), pytest.raises(BlockingIOError), Record.open(file, pytest.fail):
        pass
    with Record.open(file, pytest.fail):
        pass


def test_every_table_has_columns_and_metrics_are_columns_of_their_own() -> None:
    for name, table in TABLES.items():
        assert set(get_type_hints(table)) - {"more"} <= set(columns(name))
    made = arrow("metrics", [MEASURED])
    assert made.column_names[:4] == ["trial", "variant", "round", "error"]
    (row,) = made.to_pylist()
    assert (row["auc"], row["brier"], row["r2"], row["participants"]) == (0.75, None, None, 3)
    assert b"simulation_only" in made.schema.metadata
    assert arrow("ledger", []).schema.metadata is None


def test_a_damaged_key_is_noted_so_that_a_record_that_was_mended_is_read(tmp_path: Path) -> None:
    """No other entry takes the place of one whose key is another now; later damage still counts."""
    file, told = tmp_path / "record.sqlite", list[str]()
    with Record.open(file, pytest.fail) as record:
        record.append("trial 0", [Warned(0, "odd")])
        record.append("trial 1", [Warned(1, "even")])
    _altered(file, "UPDATE entries SET kind = 'rows trial p' WHERE kind = 'rows trial 0'")
    with Record.open(file, told.append) as record:
        assert record.missing(["trial 0", "trial 1"]) == ["trial 0"]
        record.append("trial 0", [Warned(0, "odd")])
    assert len(told) == 1
    with Record.open(file, pytest.fail):
        pass
    assert Record.read(file).rows(Warned) == [Warned(1, "even"), Warned(0, "odd")]
    _altered(file, "UPDATE entries SET kind = 'rows trial q' WHERE kind = 'rows trial 1'")
    with pytest.raises(InputError, match="trial q is damaged"):
        Record.read(file)


def test_what_a_killed_process_had_half_written_is_taken_back(tmp_path: Path) -> None:
    file, copy = tmp_path / "record.sqlite", tmp_path / "copy.sqlite"
    with Record.open(file, pytest.fail) as record:
        for trial in range(40):
            record.append(f"trial {trial}", [Warned(trial, "odd" * 500)])
    with closing(sqlite3.connect(file, isolation_level=None)) as log:
        log.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
        log.execute("BEGIN IMMEDIATE")
        log.execute("UPDATE entries SET payload = '{}'")
        for end in ("", "-journal"):
            copy.with_name(copy.name + end).write_bytes(file.with_name(file.name + end).read_bytes())
        log.execute("ROLLBACK")
    assert copy.read_bytes() != file.read_bytes()
    assert Record.read(copy).rows(Warned) == record.rows(Warned)


def _altered(file: Path, change: str) -> None:
    with closing(sqlite3.connect(file)) as log:
        log.execute(change)
        log.commit()
