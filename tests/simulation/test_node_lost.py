"""A cluster of two nodes, one of which dies: the rest ends the work, with the numbers of a run in peace."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from support.scenarios import BASE, changed

from fedsim.report.outcome import Results
from fedsim.report.record import Measurement
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation import on_ray
from fedsim.simulation import trial as in_process

pytestmark = pytest.mark.slow
PATIENCE = 300  # seconds


@dataclass
class TwoNodes:
    """A head without CPUs, which stays, and nodes beside it."""

    address: str
    nodes: list[Any]

    def kill(self, number: int) -> None:
        """The node and all its processes, at once."""
        (raylet,) = self.nodes[number].all_processes["raylet"]
        found = psutil.Process(raylet.process.pid)
        for each in [found, *found.children(recursive=True)]:
            each.kill()

    def works_on(self, number: int, word: str) -> bool:
        """Whether a process of the node runs an actor's method of that name."""
        (raylet,) = self.nodes[number].all_processes["raylet"]
        for child in psutil.Process(raylet.process.pid).children(recursive=True):
            try:
                if word in " ".join(child.cmdline()):
                    return True
            except psutil.Error:
                continue
        return False


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoNodes]:
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 80 * 2**20}
    made = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
    try:
        yield TwoNodes(made.address, [made.add_node(num_cpus=1, **store) for _ in range(2)])
    finally:
        made.shutdown()


def scenario(address: str | None, trials: int) -> dict[str, Any]:
    tree = changed(BASE, {"trials": trials, "algorithm.num_rounds": 600})
    runtime = {"name": "ray", "address": address} if address else "inprocess"
    return tree | {"runtime": runtime, "report": {"evaluate_every": 20}}


def timeless(rows: Sequence[Measurement]) -> list[Measurement]:
    return sorted((row._replace(seconds=0.0) for row in rows), key=lambda row: row[:3])


@pytest.mark.parametrize("hosts", [0, 1])
def test_trials_that_a_node_takes_with_it_are_begun_again(cluster: TwoNodes, hosts: int) -> None:
    tree = scenario(cluster.address, 4)
    tree["runtime"]["silo_hosts"] = hosts
    seen: list[Measurement] = []
    killed, word = threading.Event(), "HostWorker" if hosts else "TrialWorker"

    def observe(measurement: Measurement) -> None:
        seen.append(measurement)
        ripe = len(seen) > 10 and not killed.is_set()
        where = [number for number in (0, 1) if ripe and cluster.works_on(number, word)]
        if where:
            killed.set()
            cluster.kill(where[-1])

    results, alone = Results(), Results()
    on_ray.execute(resolve(parse(tree)), results, observe)
    assert killed.is_set()
    in_process.execute(resolve(parse(scenario(None, 4))), alone, lambda _: None)
    measured = results.rows(Measurement)
    assert len(seen) == len(measured)
    assert timeless(seen) == timeless(measured) == timeless(alone.rows(Measurement))
    assert sorted(results.trials) == [0, 1, 2, 3]
    for number, trial in alone.trials.items():
        assert results.trials[number].statements == trial.statements
        for variant, model in trial.models.items():
            assert torch.equal(results.trials[number].models[variant], model)


def test_a_sweep_ends_with_all_its_cells_on_what_is_left(cluster: TwoNodes, tmp_path: Path) -> None:
    tree = scenario(cluster.address, 6) | {"sweep": {"grid": {"privacy.epsilon": [1, 2]}}}
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "fedsim.cli.main", "sweep", str(file), "--out"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "ray")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until = time.monotonic() + PATIENCE
    while not cluster.works_on(1, "CellWorker.run") and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    cluster.kill(1)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert "raylet" not in output
    alone = [*command, str(tmp_path / "alone"), "--workers", "0", "--set", "runtime=inprocess"]
    subprocess.run(alone, check=True, capture_output=True)
    there, here = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("ray", "alone"))
    assert there["runs"]["failed"] == 0
    for one, other in zip(there["combinations"], here["combinations"], strict=True):
        differ = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
        assert all("seconds" in key for key in differ), differ
