"""`python -m silos` and `fedsim silo`, as an operating system starts, asks and stops them."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from support.breaking import slow_answers
from support.daemons import LIFETIME, PATIENCE, Silo, as_program, daemons, enrolled_silo, write_silo
from support.one_server import OneServer, offer
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.secagg.shuffling import ShufflerGreeting
from fedsim.wire.dial import dial
from fedsim.wire.health import HELLO
from fedsim.wire.messages import Greeting, Hello
from silos.__main__ import main

command = partial(as_program, "silos", main)


def test_a_health_check_asks_as_any_client_does():
    assert Hello().body() == HELLO
    assert [Greeting.kind, ShufflerGreeting.kind] == ["greeting", "standing"]  # as the two __main__ have them


def test_enrol_serve_ask_and_stop(folder):
    file = write_silo(folder)
    line = [sys.executable, "-m", "silos", "--config", str(file)]
    enrolled = subprocess.check_output([*line, "--enrol"], text=True, timeout=PATIENCE)
    silo = Silo(file)
    assert bytes.fromhex(json.loads(enrolled)["identity"]) == silo.identity
    assert command("--config", str(file), "--health")[0] == 1
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "listens" in process.stderr.readline()
            assert command("--config", str(file), "--health") == (0, "")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert not silo.socket.exists()
    kept = silo.home / "state" / "log"
    assert "has stopped" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@pytest.mark.parametrize("days", [20, 40])
def test_the_last_days_of_a_lifetime_are_said_by_daemon_greeting_and_ledger(folder, days):
    last = datetime.now(UTC).date() + timedelta(days=days)
    file = enrolled_silo(folder, lifetime={**LIFETIME, "expires": str(last)})
    with daemons(file) as made, OneServer(made["silo-1"].socket, made["silo-1"].identity) as server:
        greeting = server.hello()
        server.hello()
    told = [f"Lifetime ends on {last + timedelta(days=1)}, in {days} days"] if days == 20 else []
    assert greeting.head["notices"] == told
    assert (file.parent / "state" / "log").read_text().count("Lifetime ends on") == len(told)
    shown = CliRunner().invoke(app, ["ledger", "show", str(file.parent / "state")]).output
    assert all(line in shown for line in told)


def test_one_process_enrols_and_listens_but_once_only(folder):
    file = write_silo(folder)
    line = [sys.executable, "-m", "silos", "--config", str(file), "--enrol", "--serve"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            told = json.loads(process.stdout.readline())
            assert bytes.fromhex(told["identity"]) == Silo(file).identity
            assert any("listens" in line for line in process.stderr)
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0
    code, said = command("--config", str(file), "--enrol", "--serve")
    assert code == 2
    assert "enrolled already" in said


@pytest.mark.parametrize(
    ("text", "field"), [("name: ''\n", "silo.name"), ("name: a\nrecords: 3\n", "silo.state"), ("[\n", "silo")]
)
def test_a_wrong_file_is_one_line_that_names_the_field(folder, text, field):
    file = folder / "silo.yaml"
    file.write_text(text)
    code, said = command("--config", str(file))
    assert code == 2
    assert said.startswith(f"error: {field}")
    assert said.count("\n") == 1
    found = CliRunner().invoke(app, ["silo", "--config", str(file)])
    assert (found.exit_code, found.stderr) == (code, said)


def test_a_silo_that_is_not_enrolled_says_how_and_one_that_lost_its_ledger_what_that_means(folder):
    file = write_silo(folder)
    code, said = command("--config", str(file))
    assert (code, said.count("\n")) == (2, 1)
    assert "--enrol" in said
    state = Silo(file).home / "state"
    state.mkdir(mode=0o700)
    (state / "log").touch(0o600)
    for options in ([], ["--enrol"], ["--enrol", "--dry-run"]):
        code, said = command("--config", str(file), *options)
        assert (code, said.count("\n")) == (2, 1)
        assert "lost its ledger" in said
        assert "--enrol" not in said


def test_a_dry_run_shows_what_an_enrolment_fixes_and_writes_nothing(folder):
    file = write_silo(folder)
    before = sorted(folder.rglob("*"))
    options = ["--config", str(file), "--enrol", "--dry-run"]
    fedsim = "from fedsim.cli.main import app; app()"
    for start in (
        ["-m", "silos"],
        ["-c", fedsim, "silo"],
    ):  # processes: reading records loads no plug-in then
        shown = subprocess.check_output([sys.executable, *start, *options], text=True, timeout=PATIENCE)
        lines = {line[:12].strip(): line for line in shown.splitlines()}
        assert "(8, 1e-05)-DP" in lines["lifetime"]
        assert "2099-12-31" in lines["last day"]
    code, said = command("--config", str(file), "--dry-run")
    assert (code, said.count("\n")) == (2, 1)
    assert "--enrol" in said
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_lets_the_round_in_hand_end(folder, number):
    """The silo is at a round when the signal comes: the reply arrives, and the process ends well."""
    with daemons(enrolled_silo(folder), start=False) as made:
        silo = made["silo-1"].start(slow_answers)
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer())
            kinds: list[str] = []
            client = threading.Thread(target=lambda: kinds.append(server.ask(0).kind))
            client.start()
            silo.until_it_says("at a round")
            os.kill(silo.pid, number)
            client.join(PATIENCE)
            assert kinds == ["reply"]
            assert silo.wait() == 0


def test_a_port_with_its_token(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = enrolled_silo(folder, listen={"port": port, "token": "token.txt"})
    token = file.parent / "token.txt"
    token.write_text("ab" * 32)
    token.chmod(0o644)
    assert "mode 600" in command("--config", str(file), "--health")[1]
    token.chmod(0o600)
    with daemons(file, start=False) as made:
        silo = made["silo-1"].start(wait=False)
        silo.until_it_says("listens")
        assert command("--config", str(file), "--health") == (0, "")
        with dial((port, bytes(32)), PATIENCE) as stranger:
            assert stranger.recv(1) == b""
        assert silo.stop() == 0


def test_files_of_a_daemon_are_its_users_own(folder):
    with daemons(enrolled_silo(folder)) as made:
        silo = made["silo-1"]
        assert stat.S_IMODE(silo.socket.stat().st_mode) == 0o660
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer())
            server.ask(0)
        secret = [f for f in (silo.home / "state").iterdir() if f.suffix != ".pub"]
        assert [f.name for f in secret if stat.S_IMODE(f.stat().st_mode) & 0o077] == []
