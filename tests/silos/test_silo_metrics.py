"""Metrics scraped from real daemons: nothing in them depends on a record, and nothing on how long it took."""

import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.daemons import PATIENCE, daemons, enrolled_silo, write_silo
from support.flower import free_port
from support.one_server import OneServer, offer

from fedsim.common.errors import InputError
from fedsim.common.installed import version
from fedsim.wire.connections import MetricsAt
from fedsim.wire.metrics import exposed, single
from silos.front.config import load_config
from silos.front.enrolment import enrol
from silos.vault.book import read

ROUNDS = 3


def _with_metrics(file: Path, **at: object) -> Path:
    tree = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**tree, "metrics": {"port": free_port(), **at}}))
    return file


def _scraped(file: Path) -> str:
    port = yaml.safe_load(file.read_text())["metrics"]["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as response:
        return str(response.read().decode())


def _values(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def _run(server: OneServer) -> None:
    server.hello()
    server.offer(offer())
    for r in range(ROUNDS):
        server.ask(r)
    assert server.ask(ROUNDS).kind == "refusal"
    server.close()


def _neighbours(folder: Path) -> list[Path]:
    """Two silos whose records differ in one: all of its features, as far as they go, and its class."""
    files = []
    for name, changed in (("one", False), ("two", True)):
        (folder / name).mkdir()
        file = write_silo(folder / name)
        records = dict(np.load(file.parent / "records.npz"))
        if changed:
            records["features"][0] *= -1e3
            records["target"][0] = 1 - records["target"][0]
            np.savez(file.parent / "records.npz", **records)
        enrol(load_config(_with_metrics(file)))
        files.append(file)
    return files


def test_neighbouring_silos_have_the_same_metrics_at_every_step(folder):
    seen: list[list[str]] = []
    for file in _neighbours(folder):
        with daemons(file) as made, OneServer(made["silo-1"].socket, made["silo-1"].identity) as server:
            made["silo-1"].until_it_says("listens")
            steps = [_scraped(file)]
            _run(server)
            steps.append(_scraped(file))
        seen.append(steps)
    assert seen[0] == seen[1]


def test_what_is_shown_is_what_receipts_and_answers_say(folder):
    file = _with_metrics(enrolled_silo(folder))
    with daemons(file) as made, OneServer(made["silo-1"].socket, made["silo-1"].identity) as server:
        _run(server)
        text = _scraped(file)
    shown, account = _values(text), read(file.parent / "state" / "ledger.sqlite").account
    names = {re.sub(r"\{.*", "", name) for name in shown}
    assert names == {
        *(f"fedsim_{name}" for name in ("info", "answers_total", "open_runs", "rounds_paid_total")),
        *(f"fedsim_lifetime_{name}" for name in ("cap", "charged", "reserved", "end_timestamp_seconds")),
    }
    assert shown[f'fedsim_info{{version="{version()}"}}'] == 1
    kinds = {"greeting": 1, "admission": 1, "reply": ROUNDS, "refusal": 1, "closed": 1}
    assert {k: shown[f'fedsim_answers_total{{kind="{k}"}}'] for k in kinds} == kinds
    assert (shown["fedsim_open_runs"], shown["fedsim_rounds_paid_total"]) == (0, ROUNDS)
    for name, cost in (("cap", account.caps.total), ("charged", account.charged)):
        for each, number in cost.tree().items():
            assert shown[f'fedsim_lifetime_{name}{{account="{each}"}}'] == number


def test_it_listens_on_loopback_alone_unless_it_is_told_otherwise():
    assert str(MetricsAt(port=1).address) == "127.0.0.1"
    with pytest.raises(ValueError, match="address"):
        MetricsAt(port=1, address="everywhere")


def test_a_port_in_use_is_one_line_and_nothing_listens(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        file = _with_metrics(enrolled_silo(folder), port=taken.getsockname()[1])
        line = [sys.executable, "-m", "silos", "--config", str(file)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    (said,) = [each for each in done.stderr.splitlines() if each.startswith("error")]
    assert "silo.metrics.port" in said
    assert "a free port of 127.0.0.1" in said
    assert not (file.parent / "silo.sock").exists()


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InputError, match=r"\[metrics\]"), exposed(MetricsAt(port=1), "silo.metrics", list):
        pass
    with exposed(None, "silo.metrics", lambda: [single("never", "", 0)]):
        pass
