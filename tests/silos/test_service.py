"""`python -m silos` and `fedsim silo`, as an operating system starts, asks and stops them."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.breaking import slow_answers
from support.daemons import PATIENCE, Silo, daemons, enrolled_silo, short_folder, write_silo
from support.one_server import OneServer, offer

from fedsim.protocol.dial import dial_port

WAYS = [["-m", "silos"], ["-m", "fedsim", "silo"]]


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


def command(way: list[str], file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *way, "--config", str(file), *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("way", WAYS)
def test_enrol_serve_ask_and_stop(folder: Path, way: list[str]) -> None:
    file = write_silo(folder)
    early = command(way, file)
    assert early.returncode == 2
    assert "--enrol" in early.stderr
    assert early.stderr.count("\n") == 1
    enrolled = command(way, file, "--enrol")
    assert enrolled.returncode == 0, enrolled.stderr
    silo = Silo(file)
    assert bytes.fromhex(json.loads(enrolled.stdout)["identity"]) == silo.identity
    assert command(way, file, "--enrol").returncode == 2
    assert command(way, file, "--health").returncode == 1
    line = [sys.executable, *way, "--config", str(file)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "listens" in process.stderr.readline()
            assert command(way, file, "--health").returncode == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert not silo.socket.exists()
    kept = silo.home / "state" / "log"
    assert "has stopped" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("text", "field"), [("name: ''\n", "silo"), ("records: 3\n", "silo.records"), ("[\n", "silo")]
)
def test_a_wrong_file_is_one_line_that_names_the_field(
    folder: Path, way: list[str], text: str, field: str
) -> None:
    file = folder / "silo.yaml"
    file.write_text(text)
    found = command(way, file)
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: {field}")
    assert found.stderr.count("\n") == 1


def test_a_daemon_imports_neither_server_nor_simulation() -> None:
    code = (
        "import sys, silos.service, silos.__main__;"
        "print([m for m in sys.modules if m.split('.')[0] in ('ray', 'flwr', 'server')"
        " or m.startswith('fedsim.simulation')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_round_in_hand_end(folder: Path, number: signal.Signals) -> None:
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


def test_a_port_with_its_token(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = enrolled_silo(folder, listen={"port": port, "token": "token.txt"})
    token = file.parent / "token.txt"
    token.write_text("ab" * 32)
    token.chmod(0o644)
    assert "mode 600" in command(WAYS[0], file).stderr
    token.chmod(0o600)
    with daemons(file, start=False) as made:
        silo = made["silo-1"].start(wait=False)
        silo.until_it_says("listens")
        assert command(WAYS[0], file, "--health").returncode == 0
        with dial_port(port, bytes(32), PATIENCE) as stranger:
            assert stranger.recv(1) == b""
        assert silo.stop() == 0


def test_files_of_a_daemon_are_its_users_own(folder: Path) -> None:
    with daemons(enrolled_silo(folder)) as made:
        silo = made["silo-1"]
        assert stat.S_IMODE(silo.socket.stat().st_mode) == 0o660
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer())
            server.ask(0)
        secret = [f for f in (silo.home / "state").iterdir() if f.suffix != ".pub"]
        assert [f.name for f in secret if stat.S_IMODE(f.stat().st_mode) & 0o077] == []
