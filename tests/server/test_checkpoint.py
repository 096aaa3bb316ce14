"""A run's file: its records are read as they were written (see tests/common/test_store.py too)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from support.refusals import ANY, refused

from fedsim.common import chain
from fedsim.common.errors import InputError
from fedsim.common.store import Store
from fedsim.wire.messages import Admission, Greeting
from server.checkpoint import Checkpoint, RunRecord, expected_bytes
from server.loop import Kept
from server.replies import Form

HEX = "ab" * 32
GREETING = Greeting(silo="a", n=3, num_features=2, num_classes=2, version="1", notices=(), head=HEX)
RUN = RunRecord(session=HEX, scenario="01" * 32, federation="02" * 32, greetings={"a": GREETING})
ADMISSION = Admission(
    session=HEX,
    run="03" * 32,
    epsilon=1.0,
    delta=1e-6,
    noise_multiplier=0.1 + 0.2,
    epsilon_guaranteed=1.0,
    releases=3,
    accountant="exact",
    notices=(),
    head="04" * 32,
)
D = 40


def kept(r: int, d: int = D) -> Kept:
    noise = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(r))
    return Kept(f"{r:064x}", [0, 2], {1: "late"}, {"g": noise, "h": -noise})


def written(path: Path, rounds: int, d: int = D) -> Checkpoint:
    heads = {"a": ""}
    made = Checkpoint.create(path, RUN, heads)
    made.admit({"a": ADMISSION})
    for r in range(rounds):
        heads["a"] = f"{r + 100:064x}"
        made.append(kept(r, d))
    return made


def read(path: Path) -> list[Kept]:
    made = Checkpoint.open(path)
    assert made.run == RUN
    found = []
    while (each := made.next()) is not None:
        found.append(each)
    made.close()
    return found


def same(found: list[Kept], rounds: int) -> bool:
    assert len(found) == rounds
    return all(
        a[:3] == b[:3] and all(torch.equal(a.aggregate[key], b.aggregate[key]) for key in ("g", "h"))
        for a, b in zip(found, map(kept, range(rounds)), strict=True)
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "record.sqlite"


def test_what_was_written_is_read(path):
    written(path, 3).close()
    made = Checkpoint.open(path)
    assert made.admissions == {"a": ADMISSION}
    assert made.heads == {"a": ADMISSION.head}
    made.next()
    assert made.heads == {"a": f"{100:064x}"}
    made.close()
    assert same(read(path), 3)


def test_it_goes_on_where_it_ended(path):
    written(path, 2).close()
    made = Checkpoint.open(path)
    while made.next() is not None:
        pass
    made.append(kept(2))
    made.close()
    assert same(read(path), 3)


def test_one_process_at_a_time(path):
    first = written(path, 1)
    with refused("record", ANY, "another process"):
        Checkpoint.open(path)
    first.close()
    assert same(read(path), 1)


def test_a_run_is_not_begun_over_another(path):
    written(path, 1).close()
    with refused("record", ANY, "there is one already"):
        Checkpoint.create(path, RUN, {})
    assert same(read(path), 1)


@pytest.mark.parametrize("content", [None, b"", b"no database", "another log", "of before"])
def test_something_else_is_no_checkpoint(path, content):
    if content == "of before":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 3")
            connection.execute("CREATE TABLE entries (number INTEGER PRIMARY KEY, key TEXT UNIQUE)")
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        Store.make(path, chain.RUN, "rows 1", "{}")
    with pytest.raises(InputError) as caught:
        Checkpoint.open(path)
    assert (caught.value.field, caught.value.value) == ("record", str(path))
    assert ("the version of fedsim that wrote it" in str(caught.value)) == (content in (b"", "of before"))


def test_damage_is_refused_and_nothing_is_thrown_away(path):
    written(path, 3).close()
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(InputError) as caught:
        Checkpoint.open(path)
    assert caught.value.field == "record"
    assert path.read_bytes() == bytes(whole)


def test_a_full_disk_leaves_what_was_there(path):
    made = written(path, 2)
    pages = made.store.connection.execute("PRAGMA page_count").fetchone()[0]
    made.store.connection.execute(f"PRAGMA max_page_count = {pages}")
    with refused("record", ANY, "full"):
        made.append(kept(2, 5000))
    made.store.connection.execute(f"PRAGMA max_page_count = {pages + 100}")  # there is space again
    made.append(kept(2))
    made.close()
    assert same(read(path), 3)


def test_the_size_is_foreseen(path):
    written(path, 20, 5000).close()
    foreseen = expected_bytes(Form([(("g", 5000), ("h", 5000))] * 20, torch.float64))
    assert 0.9 * foreseen < path.stat().st_size < 1.05 * foreseen
