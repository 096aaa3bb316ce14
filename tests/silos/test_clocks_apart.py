"""A ledger's time far from the machine's: what start, health, preflight and commands say, really started."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.daemons import LIFETIME, Silo, as_program, daemons, enrolled_silo, write_silo
from support.one_server import OneServer, offer
from typer.testing import CliRunner

from fedsim.cli.main import app
from silos.__main__ import main
from silos.front.config import load_config
from silos.front.enrolment import enrol
from silos.vault import journal
from silos.vault.book import read

NOW = time.time_ns()
SOON = {**LIFETIME, "expires": str(datetime.now(UTC).date() + timedelta(days=300))}


def day(days: int) -> str:
    return str((datetime.now(UTC) + timedelta(days=days)).date())


@pytest.fixture
def away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Silo]:
    """A silo that enrolled when this machine's clock was so many days ahead of what it is."""

    def made(days: int, **more: Any) -> Silo:
        with monkeypatch.context() as patch:
            patch.setattr(journal.time, "time_ns", lambda: NOW + round(days * 86_430 * 1e9))
            return Silo(enrolled_silo(folder, **more))

    return made


def said_of(silo: Silo, *options: str) -> tuple[int, str]:
    return as_program("silos", main, "--config", str(silo.file), *options)


def command(*arguments: str, typed: str = "") -> tuple[int, str]:
    found = CliRunner().invoke(app, arguments, input=typed, env={"COLUMNS": "200"})
    return found.exit_code, found.output


def failed(silo: Silo) -> str:
    """The ledger's line of the preflight, if it is one that fails."""
    lines = command("preflight", "--config", str(silo.file))[1].splitlines()
    return "".join(line for line in lines if line.startswith("FAIL  ledger"))


def test_a_silo_that_was_off_for_long_is_put_back_by_one_command(away):
    silo = away(-40)
    state = str(silo.home / "state")
    for _ in range(2):
        code, said = said_of(silo)
        assert (code, said.count("\n")) == (2, 1)
        assert re.search(r"refused: this machine's clock says .*, 40 days after .* ledger accept-time", said)
        assert read(silo.ledger).length == 1
    assert said_of(silo, "--health")[0] == 1
    assert "40 days behind this machine's clock" in failed(silo)
    assert "40 days behind this machine's clock" in command("ledger", "show", state)[1]
    for wrong in (day(-40), day(5), "today"):
        code, said = command("ledger", "accept-time", state, "--today", wrong)
        assert code == 2
        assert f"--today: '{wrong}': a date as YYYY-MM-DD; this machine's clock says {day(0)}" in said
        assert read(silo.ledger).length == 1
    code, said = command("ledger", "accept-time", state, typed=f"{day(0)}\n")
    assert code == 0, said
    assert said.index("Last entry") < said.index("Today's date") < said.index("Accepted")
    before = read(silo.ledger).head
    code, said = command("ledger", "accept-time", state, "--today", day(0))
    assert (code, "Nothing to accept" in said, read(silo.ledger).head) == (0, True, before)
    with daemons(silo.file) as made:
        assert said_of(silo, "--health") == (0, "")
        assert failed(silo) == ""
        assert "behind" not in command("ledger", "show", state)[1]
        assert made["silo-1"].stop() == 0


def test_a_ledger_that_is_ahead_says_so_everywhere_and_answers_on(away):
    silo, line = away(100, lifetime=SOON), "The ledger's time is 100 days ahead of this machine's clock"
    with daemons(silo.file) as made, OneServer(silo.socket, silo.identity) as server:
        made["silo-1"].until_it_says(line)
        assert said_of(silo, "--health") == (0, f"silo: {line}\n")
        assert line in failed(silo)
        assert line in command("ledger", "show", str(silo.home / "state"))[1]
        greeting = server.hello()
        assert greeting.head["notices"] == [line]
        assert abs(greeting.head["time"] - NOW / 1e9 - 100 * 86_400) < 3600
        server.offer(offer())
        assert server.ask(0).kind == "reply"
        assert (silo.home / "state" / "log").read_text().count(line) == 1


def test_a_life_that_ended_by_its_ledger_is_said_by_health_and_to_the_server(away):
    silo = away(400, lifetime=SOON)
    with daemons(silo.file), OneServer(silo.socket, silo.identity) as server:
        code, said = said_of(silo, "--health")
        assert (code, said.count("\n")) == (1, 1)
        assert said.startswith("silo: Lifetime has ended on ")
        assert "400 days ahead of this machine's clock" in said
        assert server.hello().head == {"reason": said.removeprefix("silo: ").rstrip(), "again": False}
    shown = command("ledger", "show", str(silo.home / "state"))[1]
    assert "Lifetime has ended on" in shown
    assert "400 days ahead of this machine's clock" in shown


def test_an_enrolment_shows_the_day_that_it_begins_by(folder):
    file = write_silo(folder)
    lines: list[str] = []
    enrol(load_config(file), partial(lines.append))
    assert any(f"this machine's clock says {day(0)}" in line for line in lines)
