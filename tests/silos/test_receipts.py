"""Identity keys and signed receipts."""

import json
import os
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.deployed import silo_file
from support.ledgers import CAPS, answer, broadcast, enrolled, hexed, open_run
from support.refusals import ANY, refused

from fedsim.common.errors import InputError, Refused
from fedsim.common.identity import Identity, is_signed, public_key
from fedsim.protocol.receipts import verified_receipt
from fedsim.secagg.envelopes import EnvelopeKey
from silos.front.config import Config, load_config
from silos.front.enrolment import enrol
from silos.front.own_records import read_records
from silos.front.silo import Silo
from silos.vault.ledger_file import LedgerFile, signed_receipt


def test_a_key_is_its_owners_and_stays(tmp_path):
    made = Identity.create(tmp_path)
    assert (tmp_path / "identity.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "identity.pub").read_text() == f"{made.public}\n"
    assert Identity.load(tmp_path).public == made.public
    with refused("identity", ANY, "already"):
        Identity.create(tmp_path)
    (tmp_path / "identity.key").chmod(0o640)
    with refused("identity", ANY, "chmod 600"):
        Identity.load(tmp_path)


@pytest.mark.parametrize("mask", [0o000, 0o077])
@pytest.mark.parametrize(("key", "name"), [(Identity, "identity"), (EnvelopeKey, "envelopes")])
def test_a_public_half_is_everyones_and_a_key_its_owners_whatever_the_umask(tmp_path, key, name, mask):
    os.umask(mask)
    key.create(tmp_path)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == {f"{name}.key": 0o600, f"{name}.pub": 0o644}


def test_a_file_that_is_no_key_is_named_and_not_quoted(tmp_path):
    with refused("identity", ANY, "can be read"):
        Identity.load(tmp_path)
    for content in (b"secret", b"ab" * 31, b"\xff\xfe"):
        (tmp_path / "identity.key").write_bytes(content)
        (tmp_path / "identity.key").chmod(0o600)
        with pytest.raises(InputError) as found:
            Identity.load(tmp_path)
        assert "secret" not in str(found.value)
        assert "abab" not in str(found.value)


def test_a_signature_is_of_one_key_and_one_body_and_the_same_each_time(tmp_path):
    (tmp_path / "other").mkdir()
    key, other = Identity.create(tmp_path), Identity.create(tmp_path / "other")
    signature = key.sign(b"body")
    assert len(signature) == 64
    assert signature == key.sign(b"body") == Identity.load(tmp_path).sign(b"body")
    assert is_signed(public_key(key.public), b"body", signature)
    assert not is_signed(public_key(key.public), b"bodY", signature)
    assert not is_signed(public_key(other.public), b"body", signature)
    assert not is_signed(public_key(key.public), b"body", bytes(64))
    assert not is_signed(public_key(key.public), b"body", b"")
    for bad in ("", "ab", "x" * 64):
        with refused("identity", ANY, "64 hexadecimal digits"):
            public_key(bad)


@pytest.fixture
def receipt(tmp_path):
    path, identity = enrolled(tmp_path)
    with LedgerFile.open(path) as file:
        run = open_run(file, terms={"epsilon_guaranteed": 0.75, "delta": 1e-6})
        with pytest.raises(Refused, match="once it is closed"):
            signed_receipt(file.enrolment, run.record, identity)
        answer(run, 0)
    with LedgerFile.open(path, {"notices": ["Noise is seeded."]}) as file:
        run = file.run(run.run)
        answer(run, 5)
        file.close_run(run.run, {"epsilon_spent": 0.25})
        made = signed_receipt(file.enrolment, run.record, identity)
    with LedgerFile.open(path) as file:
        again = signed_receipt(file.enrolment, file.run(run.run).record, identity)  # of another process
        assert again == made
    return made, identity


def test_a_receipt_states_what_was_done(receipt):
    text, identity = receipt
    stated = verified_receipt(text, identity.public)
    expected = {
        "silo": "silo-1",
        "run": hexed(501),
        "session": hexed(1),
        "study": {"name": "a study", "purpose": "to know"},
        "offer": hexed(1001),
        "plan": hexed(2001),
        "terms": {"epsilon_guaranteed": 0.75, "delta": 1e-6},
        "rounds": [0, 5],
        "broadcasts": [broadcast(0).hex(), broadcast(5).hex()],
        "lifetime": CAPS.tree(),
        "facts": {"epsilon_spent": 0.25},
        "notices": ["Noise is seeded."],
        "public_key": identity.public,
    }
    assert {key: stated[key] for key in expected} == expected
    assert 0 < stated["charged"]["mu_sq"] < stated["reserved"]["mu_sq"]
    assert stated["head_before"] != stated["head_after"]


def test_any_change_of_a_receipt_is_noticed(receipt, tmp_path):
    text, identity = receipt
    stated, harmless = verified_receipt(text, identity.public), 0
    for place, old in enumerate(text):
        changed = f"{text[:place]}{chr(ord(old) ^ 1)}{text[place + 1 :]}"
        with suppress(Refused):  # 0.10000000000000001 and 0.10000000000000002 are one number
            assert verified_receipt(changed, identity.public) == stated
            harmless += 1
    assert harmless < 10
    (tmp_path / "other").mkdir()
    with pytest.raises(Refused, match="another silo"):
        verified_receipt(text, Identity.create(tmp_path / "other").public)
    reordered = json.dumps(dict(reversed(json.loads(text).items())), indent=2)
    assert verified_receipt(reordered, identity.public) == verified_receipt(text, identity.public)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "1", '{"signature": 1}', '{"signature": "ab"}', "[" * 10_000]
)
def test_what_is_no_receipt_is_refused(text):
    key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    with pytest.raises(Refused):
        verified_receipt(text, key)


def test_a_key_that_is_not_the_silos_signs_no_receipt(tmp_path):
    path, _ = enrolled(tmp_path)
    (tmp_path / "other").mkdir()
    with LedgerFile.open(path) as file:
        run = open_run(file)
        file.close_run(run.run)
        with pytest.raises(Refused, match="not the one"):
            signed_receipt(file.enrolment, run.record, Identity.create(tmp_path / "other"))


# A command of the operator's own writes the silo's table, once, and stays out of the daemon.

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
    table = {"name": "csv", "path": "patients.csv", "target": "ill", "schema": schema, **records}
    return load_config(silo_file(folder, "north", table, reader=[sys.executable, "export.py"]))


@pytest.fixture
def hospital(tmp_path):
    with sqlite3.connect(tmp_path / "hospital.db") as database:
        database.execute("create table patients (age, ill)")
        rows = [(30 + i, "yes" if i % 3 else "no") for i in range(12)]
        database.executemany("insert into patients values (?, ?)", rows)
    return tmp_path


def test_a_reader_writes_the_table_once_for_its_owner_alone(hospital):
    config = config_of(hospital, WRITES)
    assert enrol(config)["n"] == 12
    assert (hospital / "patients.csv").stat().st_mode & 0o077 == 0
    Silo.open(config).close()
    assert read_records(config).rows.n == 12
    assert (hospital / "runs").read_text() == "once\n"
    with refused("silo.state", ANY, "enrolled already"):
        enrol(config)
    assert (hospital / "runs").read_text() == "once\n"


def test_what_a_reader_wrote_is_checked_by_the_schema(hospital):
    config = config_of(hospital, "print('age,ill\\n50,yes\\n50,perhaps')")
    with refused("silo.records.schema.ill", "perhaps"):
        enrol(config)
    assert not config.ledger.exists()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("print('age,ill\\n50,yes'); raise SystemExit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
    ],
)
def test_a_reader_that_fails_leaves_no_table(hospital, script, expected):
    config = config_of(hospital, script)
    with pytest.raises(InputError, match=rf"silo\.reader: .*{expected}"):
        enrol(config)
    assert not (hospital / "patients.csv").exists()
    assert not list(hospital.glob(".writing-*"))


def test_a_reader_that_is_not_there_is_named(hospital):
    config = config_of(hospital, "").model_copy(update={"reader": ("no-such-command",)})
    with refused("silo.reader", ANY, "no-such-command", "cannot be started"):
        enrol(config)


def test_a_reader_writes_one_file(hospital):
    with refused("silo.reader", ANY, "must name one file"):
        config_of(hospital, WRITES, path={"a": "a.csv", "b": "b.csv"})
