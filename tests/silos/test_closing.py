"""A silo's operator closes a run that will not go on, by the daemon that holds the ledger."""

from pathlib import Path

import pytest
from support.daemons import daemons, enrolled_silo, short_folder
from support.one_server import OneServer, offer
from typer.testing import CliRunner, Result

from fedsim.cli.main import app
from silos.vault.book import read


def close(file: Path, run: str) -> Result:
    return CliRunner().invoke(app, ["silo", "--config", str(file), "close", run])


@pytest.fixture
def file():
    with short_folder() as folder:
        yield enrolled_silo(folder)


def test_an_open_run_is_closed_once_and_gives_back_what_it_has_not_used(file):
    with daemons(file) as made, OneServer(made["silo-1"].socket, made["silo-1"].identity) as server:
        server.offer(offer())
        server.ask(0)
        done = close(file, server.run[:8])
        assert (done.exit_code, done.stderr) == (0, "")
        assert (
            done.stdout
            == f"Closed run {server.run[:16]}: 1 of 3 rounds were paid for, and no other will be.\n"
        )
        (run,) = read(made["silo-1"].ledger).runs.values()
        assert run.charged == run.price.of([0]) != run.price.whole
        refused = server.ask(1).head
        assert (refused["reason"], refused["lost"]) == ("the run is closed", True)
        again = close(file, server.run[:8])
        assert (again.exit_code, again.stdout, again.stderr.count("\n")) == (2, "", 1)
        assert "is closed already" in again.stderr


def test_bad_input_is_one_line(file):
    for digits in ("", "abcdef01"):
        none = close(file, digits)
        assert (none.exit_code, none.stderr.count("\n")) == (2, 1)
        assert f"RUN: {digits!r}: the first digits, 8 or more, of one run's id; 0 begin so" in none.stderr
    with daemons(file) as made, OneServer(made["silo-1"].socket, made["silo-1"].identity) as server:
        server.offer(offer())
    away = close(file, server.run[:8])
    assert (away.exit_code, away.stderr.count("\n")) == (2, 1)
    assert "a daemon that runs, which alone writes to the ledger" in away.stderr
    assert next(iter(read(made["silo-1"].ledger).runs.values())).open
