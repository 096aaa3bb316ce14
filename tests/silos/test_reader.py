"""A command of the operator's own writes the silo's table, once, and stays out of the daemon."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.deployed import POLICY

from fedsim.common.errors import InputError
from silos.config import Config, load_config
from silos.enrolment import enrol
from silos.own_records import read_records
from silos.silo import Silo

WRITES = """
import pathlib, sqlite3
with pathlib.Path("runs").open("a") as runs:
    runs.write("once\\n")
with sqlite3.connect("hospital.db") as hospital:
    rows = hospital.execute("select age, ill from patients").fetchall()
print("age,ill", *(f"{age},{ill}" for age, ill in rows), sep="\\n")
"""


def config_of(folder: Path, script: str, **records: Any) -> Config:
    (folder / "export.py").write_text(script)
    schema = {
        "age": {"kind": "number", "lower": 0, "upper": 110},
        "ill": {"kind": "category", "categories": ["no", "yes"]},
    }
    tree = {
        "name": "north",
        "reader": [sys.executable, "export.py"],
        "records": {"name": "csv", "path": "patients.csv", "target": "ill", "schema": schema, **records},
        "state": "state",
        "listen": {"socket": "silo.sock"},
        "policy": POLICY,
    }
    (folder / "silo.yaml").write_text(yaml.safe_dump(tree))
    return load_config(folder / "silo.yaml")


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "hospital.db") as database:
        database.execute("create table patients (age, ill)")
        rows = [(30 + i, "yes" if i % 3 else "no") for i in range(12)]
        database.executemany("insert into patients values (?, ?)", rows)
    return tmp_path


def test_a_reader_writes_the_table_once_for_its_owner_alone(hospital: Path) -> None:
    config = config_of(hospital, WRITES)
    assert enrol(config).n == 12
    assert (hospital / "patients.csv").stat().st_mode & 0o077 == 0
    Silo.open(config).close()
    assert read_records(config).n == 12
    assert (hospital / "runs").read_text() == "once\n"
    with pytest.raises(InputError, match="enrolled already"):
        enrol(config)
    assert (hospital / "runs").read_text() == "once\n"


def test_what_a_reader_wrote_is_checked_by_the_schema(hospital: Path) -> None:
    config = config_of(hospital, "print('age,ill\\n50,yes\\n50,perhaps')")
    with pytest.raises(InputError, match=r"silo\.records.*perhaps"):
        enrol(config)
    assert not config.ledger.exists()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("print('age,ill\\n50,yes'); raise SystemExit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
    ],
)
def test_a_reader_that_fails_leaves_no_table(hospital: Path, script: str, expected: str) -> None:
    config = config_of(hospital, script)
    with pytest.raises(InputError, match=rf"silo\.reader: .*{expected}"):
        enrol(config)
    assert not (hospital / "patients.csv").exists()
    assert not list(hospital.glob(".writing-*"))


def test_a_reader_that_is_not_there_is_named(hospital: Path) -> None:
    config = config_of(hospital, "").model_copy(update={"reader": ("no-such-command",)})
    with pytest.raises(InputError, match=r"silo\.reader: .*no-such-command.*cannot be started"):
        enrol(config)


def test_a_reader_writes_one_file(hospital: Path) -> None:
    with pytest.raises(InputError, match=r"silo\.reader: .*must name one file"):
        config_of(hospital, WRITES, path={"a": "a.csv", "b": "b.csv"})
