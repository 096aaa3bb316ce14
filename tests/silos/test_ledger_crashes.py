"""SIGKILL at random moments: what a process had said is in the ledger, and the ledger is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.ledgers import enrolled, on_disk, state

import silos
from silos.book import Run, read
from silos.chain import entries, reading

SUPPORT = Path(__file__).parents[1]


def _killed(path: Path, kills: int) -> list[list[Any]]:
    script = SUPPORT / "support" / "ledger_process.py"
    here = os.pathsep.join([str(SUPPORT), str(Path(silos.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, str(script), str(path), str(kills), "0"],
        env={**os.environ, "PYTHONPATH": here},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_what_was_said_is_in_the_ledger_after_any_kill(tmp_path: Path, kills: int) -> None:
    path = enrolled(tmp_path)[0]
    heard = _killed(path, kills)
    assert len(heard) == kills
    book = read(path)
    assert state(book) == state(on_disk(path))
    with reading(path) as connection:
        heads = {entry.hash.hex() for entry in entries(connection)}
    for kind, run, index, head in (word for child in heard for word in child):
        assert head in heads
        _check_there(book.runs[run], kind, index, head)
    debits = sum(len(run.rounds) for run in book.runs.values())
    said = {(run, index) for child in heard for kind, run, index, _ in child if kind == "debited"}
    assert len(said) <= debits <= len(said) + kills  # at most one debit a kill was not heard of


def _check_there(run: Run, kind: str, index: int, head: str) -> None:
    if kind == "debited":
        assert index in run.rounds
    elif kind == "replied":
        assert run.rounds[index].head == head  # whatever came later: no second reply
    elif kind == "closed":
        assert not run.open
