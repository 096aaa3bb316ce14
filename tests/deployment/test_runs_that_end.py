"""Real runs that go on while others watch, ask for the same budget, or see a silo's life end."""

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.daemons import short_folder
from support.distribution import ROOT
from support.flower import environment, free_port, until
from support.scenarios import invoke
from support.ups import NAMES, PATIENCE, edited, finished, made, scenario_of, started, write_table

from fedsim.deployment.flower.submit import Reader
from fedsim.deployment.running import running
from fedsim.deployment.topology import Topology
from fedsim.wire.logs import VARIABLE
from silos.front import enrolment
from silos.front.config import load_config
from silos.vault.book import read as read_ledger

pytestmark = pytest.mark.slow
SGD = {"name": "noisy_minibatch_sgd", "step_size": 0.5, "clip_norm": 1.0}
SUMS = {"mechanism": "summed_gaussian", "honest_fraction": 1.0}


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_table(tmp_path_factory.mktemp("visits") / "visits.csv")


def _rounds(table: Path, rounds: int, **sections: Any) -> dict[str, Any]:
    return scenario_of(table, {"algorithm": SGD | {"num_rounds": rounds}, **sections})


def _until_round(topology: Topology, rounds: int, process: subprocess.Popen[str]) -> None:
    reader, seen = Reader(topology.directory / "run.progress"), [0]

    def there() -> bool:
        assert process.poll() is None, process.communicate()[0]
        seen.extend(line.rounds for line in reader.new())
        return max(seen) >= rounds

    until(there, PATIENCE)


def _scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as found:
        text = found.read().decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(number) for name, number in lines}


def test_a_run_is_scraped_while_it_goes_and_logs_are_json(table: Path) -> None:
    """Of all parties, with a shuffler: what is shown grows, and is what ledgers say in the end."""
    rounds, ports = 25, {who: free_port() for who in (*NAMES, "shuffler", "federation")}

    def edit(topology: Topology) -> None:
        files = {name: topology.config(name) for name in NAMES}
        files |= {"shuffler": topology.shuffler / "shuffler.yaml", "federation": topology.federation}
        for who, file in files.items():
            edited(file, metrics={"port": ports[who]})

    seen: dict[str, list[dict[str, float]]] = {who: [] for who in ports}
    with short_folder() as folder:
        topology = made(_rounds(table, rounds, privacy=SUMS), folder / "all", edit)
        process = started(topology, **{VARIABLE: "{format: json}"})
        end = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < end:
            for who, port in ports.items():
                with contextlib.suppress(OSError):
                    seen[who].append(_scraped(port))
            time.sleep(0.2)
        deployed = finished(process, topology)
        for name in NAMES:
            paid = [shown["fedsim_rounds_paid_total"] for shown in seen[name]]
            assert paid == sorted(paid)
            assert len(set(paid)) > 3
            (run,) = deployed.book(name).runs.values()
            assert len(run.rounds) == rounds
            caps = deployed.book(name).account.caps.total.tree()
            assert seen[name][-1]['fedsim_lifetime_cap{account="mu_sq"}'] == caps["mu_sq"]
        assert len({shown.get("fedsim_rounds_total") for shown in seen["federation"]}) > 3
        assert max(shown.get('fedsim_answers_total{kind="shuffled"}', 0) for shown in seen["shuffler"]) > 3
        logs = [topology.directory / "run.log", topology.shuffler / "state" / "log"]
        for log in (*logs, *(topology.silo(name) / "state" / "log" for name in NAMES)):
            for line in log.read_text().splitlines():
                assert {"time", "level", "logger", "message"} <= set(json.loads(line))


def test_two_runs_do_not_share_a_budget(table: Path) -> None:
    """A second run through the same SuperLink is refused while the first holds what is left."""

    def one_run(topology: Topology) -> None:
        for name in NAMES:
            policy = yaml.safe_load(topology.config(name).read_text())["policy"]
            policy["lifetime"] |= {"epsilon": 4.0, "delta": 2e-5}
            edited(topology.config(name), policy=policy)

    with short_folder() as folder:
        topology = made(_rounds(table, 60), folder / "all", one_run)
        process = started(topology)
        _until_round(topology, 3, process)
        there = running(topology.directory)
        assert there is not None
        command = [sys.executable, "-m", "fedsim", "deploy", str(topology.scenario)]
        command += ["--federation", str(topology.federation), "--out", str(folder / "second")]
        second = subprocess.run(
            [*command, "--superlink", there.superlink],
            **{"cwd": ROOT, "env": environment(), "capture_output": True, "text": True},
            timeout=PATIENCE,
            check=False,
        )
        said = " ".join((second.stdout + second.stderr).split())
        states = {run["state"] for run in json.loads(invoke("runs", topology.directory, "--json"))["runs"]}
        assert states == {"failed", "running"}
        assert second.returncode == 1
        assert "the silo's lifetime budget cannot carry this run" in said
        assert not (folder / "second").exists()
        deployed = finished(process, topology)
        for name in NAMES:
            paid = [len(run.rounds) for run in deployed.book(name).runs.values()]
            assert paid == [60]
        assert deployed.summary.status == "finished"


@pytest.mark.parametrize("least", [3, 2], ids=["all are needed", "others go on"])
def test_a_silos_life_ends_during_a_run(table: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """By the clock, two minutes after it enrolled: it answers no round after that, and is charged for it."""
    with short_folder() as folder:
        topology = made(
            _rounds(table, 1000), folder / "all", lambda made: edited(made.federation, min_silos=least)
        )
        ends = datetime.now(UTC) + timedelta(minutes=2)
        for name in NAMES:
            with monkeypatch.context() as patch:
                if name == "west":
                    patch.setattr(enrolment, "end_of", lambda day: int(ends.timestamp() * 1e6))
                enrolment.enrol(load_config(topology.config(name)))
        policy = yaml.safe_load(topology.config("west").read_text())["policy"]
        policy["lifetime"]["expires"] = (ends - timedelta(days=1)).date()
        edited(topology.config("west"), policy=policy)
        process = started(topology)
        if least == 2:
            until(lambda: datetime.now(UTC) > ends, PATIENCE)
            _until_round(topology, _paid(topology, "west") + 3, process)
            process.send_signal(signal.SIGINT)
        deployed = finished(process, topology, 130 if least == 2 else 1)
        paid = {name: _paid(topology, name) for name in NAMES}
        assert 0 < paid["west"] < 1000
        if least == 2:
            assert min(paid["east"], paid["north"]) >= paid["west"] + 2
        else:
            said = " ".join(deployed.said.split())
            assert "west: refused: the silo's lifetime budget has expired" in said
            assert "closed at 3 silos" in said
            for name in NAMES:
                assert all(run.charged is not None for run in deployed.book(name).runs.values())


def _paid(topology: Topology, name: str) -> int:
    (run,) = read_ledger(topology.silo(name) / "state" / "ledger.sqlite").runs.values()
    return len(run.rounds)
