"""A run's file: whole records, whatever ended the process that wrote them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsim.common.errors import InputError
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
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.checkpoint"


def test_what_was_written_is_read(path: Path) -> None:
    written(path, 3).close()
    made = Checkpoint.open(path)
    assert made.admissions == {"a": ADMISSION}
    assert made.heads == {"a": ADMISSION.head}
    made.next()
    assert made.heads == {"a": f"{100:064x}"}
    made.close()
    assert same(read(path), 3)


def test_it_goes_on_where_it_ended(path: Path) -> None:
    written(path, 2).close()
    made = Checkpoint.open(path)
    while made.next() is not None:
        pass
    made.append(kept(2))
    made.close()
    assert same(read(path), 3)


def test_a_record_torn_at_any_byte_is_as_if_it_had_not_been(path: Path) -> None:
    written(path, 2).close()
    before = path.stat().st_size
    path.unlink()
    written(path, 3).close()
    whole = path.read_bytes()
    assert len(whole) > before + 2 * 8 * D
    for end in range(before, len(whole)):
        path.write_bytes(whole[:end])
        assert same(read(path), 2), end
        assert path.stat().st_size == before
    path.write_bytes(whole)
    assert same(read(path), 3)


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\0"])
def test_a_tail_of_zeros_is_dropped(path: Path, tail: bytes) -> None:
    """A file system may have made room that was never filled."""
    written(path, 2).close()
    path.write_bytes(path.read_bytes() + tail)
    assert same(read(path), 2)


def test_a_last_record_of_the_right_length_and_wrong_bytes_is_dropped(path: Path) -> None:
    written(path, 2).close()
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    assert same(read(path), 1)


def test_damage_before_the_end_is_refused_at_every_byte(path: Path) -> None:
    written(path, 1).close()
    until = path.stat().st_size
    path.unlink()
    written(path, 3).close()
    whole = path.read_bytes()
    for at in range(0, until):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"is damaged at byte \d+ of"):
            Checkpoint.open(path)
        assert path.read_bytes() == bytes(damaged)  # nothing is thrown away


def test_one_process_at_a_time(path: Path) -> None:
    first = written(path, 1)
    with pytest.raises(InputError, match="another process is at this run"):
        Checkpoint.open(path)
    first.close()
    assert same(read(path), 1)


def test_a_run_is_not_begun_over_another(path: Path) -> None:
    written(path, 1).close()
    with pytest.raises(InputError, match="holds a run that did not end"):
        Checkpoint.create(path, RUN, {})
    assert same(read(path), 1)


def test_something_else_is_no_checkpoint(path: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        Checkpoint.open(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is no run's checkpoint"):
        Checkpoint.open(path)


def test_a_full_disk_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = written(path, 2)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            made.append(kept(2))
    made.append(kept(2))  # there is space again
    made.close()
    assert same(read(path), 3)


def test_a_record_is_on_the_disk_when_append_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def watched(handle: Any) -> None:
        real(handle)
        synced.append(os.fstat(handle).st_size)

    made = written(path, 1)
    monkeypatch.setattr(os, "fsync", watched)
    made.append(kept(1))
    assert synced == [path.stat().st_size]
    made.close()


def test_the_size_is_foreseen(path: Path) -> None:
    written(path, 20, 5000).close()
    foreseen = expected_bytes(Form([("g", "h")] * 20, 5000, torch.float64))
    assert 0.9 * foreseen < path.stat().st_size < 1.05 * foreseen
