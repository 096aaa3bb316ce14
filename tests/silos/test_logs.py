"""Logs of real processes: JSON that a program reads, files that rotate, and settings that are refused."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.daemons import PATIENCE, Silo, enrolled_silo
from support.flower import free_port, until
from support.one_server import OneServer

from fedsim.deployment import certs
from fedsim.wire.logs import VARIABLE


@contextmanager
def _running(settings: str, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", *map(str, words)]
    environment = os.environ | {VARIABLE: settings}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def _check(lines: list[str]) -> list[str]:
    """Messages of lines of JSON that were written just now."""
    said = [json.loads(line) for line in lines]
    for line in said:
        assert line.keys() == {"time", "level", "logger", "message"}
        assert datetime.now(UTC) - datetime.fromisoformat(line["time"]) < timedelta(minutes=5)
    return [line["message"] for line in said]


def test_a_daemon_logs_json_on_stderr_and_in_files_that_rotate(folder):
    silo = Silo(enrolled_silo(folder))
    state = silo.home / "state"
    settings = "{format: json, megabytes: 0.001, keep: 2}"
    with _running(settings, "silos", "--config", silo.file) as process:
        until(silo.listens)
        with OneServer(silo.socket, silo.identity) as server:
            for _ in range(50):
                server.hello()
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert _check(process.stderr.read().splitlines()).count("greeting ") == 50
    files = sorted(file.name for file in state.glob("log*"))
    assert files == ["log", "log.1", "log.2"]
    for name in files:
        assert (state / name).stat().st_size <= 1000
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600
        _check((state / name).read_text().splitlines())


def test_a_node_logs_json_where_it_is_told(folder):
    certs.make(folder / "keys", ["north"])
    own, log = folder / "keys" / "north", folder / "node.log"
    words = ["--superlink", f"127.0.0.1:{free_port()}", "--socket", folder / "silo.sock", "--log", log]
    words += ["--root-certificates", own / "ca.crt", "--key", own / "node.key"]
    with _running("{format: json}", "silos.shim", *words):
        until(lambda: log.exists() and log.read_text().endswith("\n"))
    assert any("no SuperLink" in message for message in _check(log.read_text().splitlines()))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("json", "FEDSIM_LOG: 'json': a mapping, as"),
        ("{format: xml}", "FEDSIM_LOG.format"),
        ("{keep: 0}", "FEDSIM_LOG.keep"),
        ("{size: 1}", "FEDSIM_LOG.size"),
    ],
)
def test_wrong_settings_are_one_line_and_nothing_starts(folder, settings, said):
    file = enrolled_silo(folder)
    with _running(settings, "silos", "--config", file) as process:
        assert process.wait(PATIENCE) == 2
        (line,) = process.stderr.read().splitlines()
    assert said in line
    assert not (file.parent / "silo.sock").exists()
