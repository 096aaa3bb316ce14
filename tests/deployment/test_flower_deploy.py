"""`fedsim deploy` with real daemons: the model is the simulated one, whatever dies on the way to it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from support.daemons import daemons
from support.deployed import POLICY, SCENARIO, enrolled, resolved_of, write_silos
from support.distribution import gone
from support.flower import (
    ROOT,
    Federation,
    LastingSuperLink,
    environment,
    environment_set,
    short_folder,
    until,
)

import fedsim
from fedsim.deployment.flower import superlink
from fedsim.deployment.flower.submit import Reader
from fedsim.deployment.processes import Processes
from silos.vault.book import read

pytestmark = pytest.mark.slow  # `test_flower` and `test_killed_server` have the small versions
ALGORITHM = SCENARIO["algorithm"] | {"num_rounds": 8}
LIFETIME = POLICY["lifetime"] | {"epsilon": 60.0}  # for many runs


@dataclass
class Deployment:
    """Silos with seeded noise, their daemons and nodes; a SuperLink comes with every run."""

    folder: Path
    federation: Federation

    def command(self, out: str, *more: str) -> list[str]:
        command = [sys.executable, "-m", "fedsim.cli.main", "deploy", str(self.folder / "scenario.yaml")]
        command += ["--federation", str(self.folder / "federation.yaml"), "--out", str(self.folder / out)]
        return [*command, *more]

    @contextmanager
    def started(self, out: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        with Processes() as processes:
            log = self.folder / f"{out}.said"
            yield processes.start("fedsim deploy", self.command(out, *more), log, environment()).process

    def said(self, out: str) -> str:
        return (self.folder / f"{out}.said").read_text()

    def finish(self, out: str, *more: str) -> np.ndarray:
        with self.started(out, *more) as process:
            assert process.wait(300) == 0, self.said(out) + self.log(out)
        return fedsim.load_run(self.folder / out).model

    def log(self, out: str) -> str:
        return (self.folder / f"{out}.superlink" / "superlink.log").read_text()[-5000:]

    def until_round(self, out: str, rounds: int) -> None:
        seen = [0]

        def there() -> bool:
            seen.extend(line.rounds for line in Reader(self.folder / f"{out}.progress").new())
            return max(seen) >= rounds

        until(there, 120)


@pytest.fixture(scope="module")
def deployment():
    with short_folder() as folder:
        resolved = resolved_of(algorithm=ALGORITHM)
        files = write_silos(folder / "silos", resolved, seeded=True, policy={"lifetime": LIFETIME})
        enrolled(files)
        names = [file.parent.name for file in files]
        made = Federation(folder, names)
        given = SCENARIO | {
            "algorithm": ALGORITHM,
            "seed": resolved.scenario.seed,
        }  # without one, each run draws it
        (folder / "scenario.yaml").write_text(yaml.safe_dump(given))
        (folder / "federation.yaml").write_text(yaml.safe_dump(federation_file(folder, made)))
        with daemons(*files, insecure=True):
            for file in files:
                made.join(file.parent.name, file.parent / "silo.sock")
            try:
                yield Deployment(folder, made)
            finally:
                for node in made.nodes.values():
                    node.kill()


def federation_file(folder: Path, made: Federation) -> dict[str, Any]:
    silos = {
        name: {
            "identity": str(folder / "silos" / name / "state" / "identity.pub"),
            "node": str(made.credentials / name / "node.pub"),
        }
        for name in made.silos
    }
    roots = str(made.credentials / "server" / "ca.crt")
    return {"silos": silos, "superlink": made.superlink.address, "root_certificates": roots, "deadline": 60}


@pytest.fixture(scope="module")
def unbroken(deployment):
    return deployment.finish("unbroken")


def test_the_model_is_the_simulated_one(deployment, unbroken):
    simulated = fedsim.simulate(deployment.folder / "scenario.yaml", progress=False)
    np.testing.assert_allclose(unbroken, simulated.model, rtol=1e-9)
    said = deployment.said("unbroken")
    assert "round 8 of 8: 3 silos" in said
    assert "unbroken/report.html" in said
    ours, theirs = fedsim.load_run(deployment.folder / "unbroken").ledger, simulated.ledger
    assert list(ours["round"]) == list(theirs["round"])


def kill_node(deployment: Deployment, process: subprocess.Popen[bytes]) -> None:
    """Which comes back, as a service manager would have it; the run does not end."""
    node = next(iter(deployment.federation.nodes.values()))
    node.kill()
    node.start()


def child(process: subprocess.Popen[bytes], name: str) -> psutil.Process:
    for each in psutil.Process(process.pid).children(recursive=True):
        if any(name in word for word in each.cmdline()):
            return each
    raise AssertionError(f"no {name}")


def kill_superlink(deployment: Deployment, process: subprocess.Popen[bytes]) -> None:
    child(process, "flower-superlink").kill()


def kill_serverapp(deployment: Deployment, process: subprocess.Popen[bytes]) -> None:
    child(process, "flwr-serverapp").kill()


def test_what_a_killed_deploy_had_started_ends(deployment):
    with deployment.started("killed") as process:
        deployment.until_round("killed", 2)
        left = [child(process, name).pid for name in ("flower-superlink", "flwr-serverapp")]
        process.kill()
        until(lambda: all(map(gone, left)))


def interrupt(deployment: Deployment, process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("fault", [kill_node, kill_superlink, kill_serverapp, interrupt])
def test_a_broken_run_goes_on_to_the_same_model(deployment, unbroken, fault):
    out = fault.__name__
    with deployment.started(out) as process:
        deployment.until_round(out, 3)
        family = psutil.Process(process.pid).children(recursive=True)
        fault(deployment, process)
        code = process.wait(300)
        assert all(gone(each.pid) for each in family)  # none is still at the run's files
    if fault is kill_node:
        assert code == 0, deployment.said(out) + deployment.log(out)
        model = fedsim.load_run(deployment.folder / out).model
    else:
        assert code == (130 if fault is interrupt else 1)
        assert "--resume" in deployment.said(out)
        assert not (deployment.folder / out / "summary.json").exists()
        model = deployment.finish(out, "--resume")
    np.testing.assert_array_equal(model, unbroken)


def test_a_superlink_that_is_killed_and_started_again_ends_no_run(deployment, unbroken):
    """Its run's process ends with it, and the run is submitted again; no person does anything."""
    out, made = "restarted", deployment.federation
    lasting = LastingSuperLink(deployment.folder, made.credentials / "server", made.superlink.address)
    lasting.start()
    try:
        with made.control() as control:
            until(control.answers, 60)
        with deployment.started(out, "--superlink", made.superlink.address) as process:
            deployment.until_round(out, 3)
            lasting.kill()
            time.sleep(3)
            lasting.start()
            assert process.wait(400) == 0, deployment.said(out)
    finally:
        lasting.kill()
    assert "going on in" in deployment.said(out)
    np.testing.assert_array_equal(fedsim.load_run(deployment.folder / out).model, unbroken)


@pytest.mark.parametrize("fault", [kill_superlink, kill_serverapp])
def test_a_run_that_is_kept_up_heals_by_itself(deployment, unbroken, fault):
    out = f"kept-{fault.__name__}"
    with deployment.started(out, "--keep") as process:
        deployment.until_round(out, 3)
        fault(deployment, process)
        assert process.wait(400) == 0, deployment.said(out)
    assert "going on in 4 s" in deployment.said(out)
    np.testing.assert_array_equal(fedsim.load_run(deployment.folder / out).model, unbroken)


def test_a_run_that_is_given_up_is_closed_at_its_silos_and_cannot_go_on(deployment):
    out = "given-up"
    with deployment.started(out) as process:
        deployment.until_round(out, 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 130
    assert "--resume" in deployment.said(out)
    with deployment.started(out, "--give-up") as process:
        assert process.wait(120) == 0, deployment.said(out)
    assert "the run is over, and closed at 3 silos" in deployment.said(out)
    for ledger in deployment.folder.glob("silos/*/state/ledger.sqlite"):
        *_, last = read(ledger).runs.values()
        assert not last.open
        assert last.charged == last.used != last.price.whole
    with deployment.started(out, "--resume") as process:
        assert process.wait(120) == 2
    assert "is over: begin a new one elsewhere" in deployment.said(out)


def test_a_node_that_stays_away_costs_its_deadline_once(deployment):
    """With a deadline of 15 s, rounds take under 2 s after the one that it misses."""
    out, folder = "away", deployment.folder
    tree = yaml.safe_load((folder / "federation.yaml").read_text()) | {"deadline": 15, "min_silos": 2}
    (folder / "patient.yaml").write_text(yaml.safe_dump(tree))
    at: dict[int, float] = {}
    more = ("--set", "algorithm.num_rounds=24", "--federation", str(folder / "patient.yaml"))
    name, node = next(iter(deployment.federation.nodes.items()))
    with deployment.started(out, *more) as process:
        reader = Reader(folder / f"{out}.progress")
        try:
            while process.poll() is None:
                at |= {line.rounds: time.monotonic() for line in reader.new() if not line.words}
                if 3 in at and node.process.poll() is None:
                    node.kill()
                time.sleep(0.02)
        finally:
            node.start()
        assert process.wait(300) == 0, deployment.said(out) + deployment.log(out)
    took = {r: at[r] - at[r - 1] for r in range(4, 24)}  # the progress file is gone when the run has ended
    first = next(r for r, seconds in took.items() if seconds > 10)
    later = [seconds for r, seconds in took.items() if r > first]
    assert np.mean(later) < 2.0
    assert max(later) < 5.0  # about 2 where the machine has nothing else to do
    (left_out,) = fedsim.load_run(folder / out).summary.deployment.left_out
    assert (left_out.name, left_out.rounds) == (name, 25 - first)


def test_a_node_that_is_never_there_is_left_out_before_round_0(deployment):
    out, folder = "absent", deployment.folder
    tree = yaml.safe_load((folder / "federation.yaml").read_text()) | {"deadline": 15, "min_silos": 2}
    (folder / "fewer.yaml").write_text(yaml.safe_dump(tree))
    name, node = next(iter(deployment.federation.nodes.items()))
    node.kill()
    try:
        deployment.finish(out, "--federation", str(folder / "fewer.yaml"))
    finally:
        node.start()
    said = deployment.said(out)
    assert f"waiting for {name} to join" in said
    assert f"silo {name} takes no part in this run: no reply within 15 s" in said
    summary = fedsim.load_run(folder / out).summary
    assert list(summary.deployment.absent) == [name]
    assert [row.name for row in summary.privacy.silos] == sorted(set(deployment.federation.silos) - {name})


@pytest.fixture
def flower(deployment):
    """A SuperLink of its own, which the nodes have joined, as one that an operator keeps running."""
    made = deployment.federation
    with environment_set(), made.superlink:
        made.register()
        made.wait_online()
        yield made


def flwr(flower: Federation, *arguments: str) -> str:
    """What Flower's own command says, asked of that SuperLink."""
    home = flower.folder / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f"""[superlink]
default = "deploy"

[superlink.deploy]
address = "{flower.superlink.address}"
root-certificates = "{flower.credentials / "server" / "ca.crt"}"
"""
    )
    command = [str(Path(sys.executable).with_name("flwr")), *arguments, "--format", "json"]
    return subprocess.run(
        command, env=superlink.environment(home), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def status(flower: Federation, run: str) -> tuple[str, str]:
    (found,) = (r for r in json.loads(flwr(flower, "list", "deploy"))["runs"] if r["run-id"] == run)
    return found["status"], found["status-details"]


def test_flwr_run_in_the_repository(deployment, unbroken, flower):
    """As someone who knows Flower would; `flwr list` says how it ended."""
    folder = deployment.folder
    settings = {"scenario": "scenario.yaml", "federation": "federation.yaml", "out": "by-flwr"}
    config = " ".join(f'{name}="{folder / place}"' for name, place in settings.items())
    started = json.loads(flwr(flower, "run", ".", "deploy", "--run-config", config))
    until(lambda: status(flower, started["run-id"])[0].startswith("finished"), 200)
    assert status(flower, started["run-id"])[0] == "finished:completed"
    np.testing.assert_array_equal(fedsim.load_run(folder / "by-flwr").model, unbroken)
    again = json.loads(flwr(flower, "run", ".", "deploy", "--run-config", config))
    until(lambda: status(flower, again["run-id"])[0].startswith("finished"), 200)
    word, details = status(flower, again["run-id"])
    assert word == "finished:failed"
    assert "by-flwr" in details
