"""`fedsim deploy` with real daemons: the model is the simulated one, and a broken run goes on to the same model."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from support.daemons import daemons
from support.deployed import POLICY, SCENARIO, enrolled, resolved_of, write_silos
from support.flower import Federation, environment, short_folder, until

import fedsim
from fedsim.deployment.progress import Reader

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

    def start(self, out: str, *more: str) -> subprocess.Popen[str]:
        log = (self.folder / f"{out}.said").open("w+")
        return subprocess.Popen(
            self.command(out, *more), env=environment(), stdout=log, stderr=log, text=True, cwd=self.folder
        )

    def said(self, out: str) -> str:
        return (self.folder / f"{out}.said").read_text()

    def finish(self, out: str, *more: str) -> np.ndarray:
        process = self.start(out, *more)
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
def deployment() -> Iterator[Deployment]:
    with short_folder() as folder:
        resolved = resolved_of(algorithm=ALGORITHM)
        files = write_silos(folder / "silos", resolved, seeded=True, policy={"lifetime": LIFETIME})
        enrolled(files)
        names = [file.parent.name for file in files]
        made = Federation(folder, names)
        (folder / "scenario.yaml").write_text(yaml.safe_dump(SCENARIO | {"algorithm": ALGORITHM}))
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
            "node": str(made.papers / name / "node.pub"),
        }
        for name in made.silos
    }
    roots = str(made.papers / "server" / "ca.crt")
    return {"silos": silos, "superlink": made.superlink.address, "root_certificates": roots, "deadline": 60}


@pytest.fixture(scope="module")
def unbroken(deployment: Deployment) -> np.ndarray:
    return deployment.finish("unbroken")


def test_the_model_is_the_simulated_one(deployment: Deployment, unbroken: np.ndarray) -> None:
    simulated = fedsim.simulate(deployment.folder / "scenario.yaml", progress=False)
    np.testing.assert_allclose(unbroken, simulated.model, rtol=1e-9)
    said = deployment.said("unbroken")
    assert "round 8 of 8: 3 silos" in said
    assert "unbroken/report.html" in said
    ours, theirs = fedsim.load_run(deployment.folder / "unbroken").ledger, simulated.ledger
    assert list(ours["round"]) == list(theirs["round"])


def kill_node(deployment: Deployment, process: subprocess.Popen[str]) -> None:
    """Which comes back, as a service manager would have it; the run does not end."""
    node = next(iter(deployment.federation.nodes.values()))
    node.kill()
    node.start()


def child(process: subprocess.Popen[str], name: str) -> psutil.Process:
    for each in psutil.Process(process.pid).children(recursive=True):
        if any(name in word for word in each.cmdline()):
            return each
    raise AssertionError(f"no {name}")


def kill_superlink(deployment: Deployment, process: subprocess.Popen[str]) -> None:
    child(process, "flower-superlink").kill()


def kill_serverapp(deployment: Deployment, process: subprocess.Popen[str]) -> None:
    child(process, "flwr-serverapp").kill()


def interrupt(deployment: Deployment, process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [kill_node, kill_superlink, kill_serverapp, interrupt])
def test_a_broken_run_goes_on_to_the_same_model(
    deployment: Deployment,
    unbroken: np.ndarray,
    fault: Callable[[Deployment, subprocess.Popen[str]], None],
) -> None:
    out = fault.__name__
    process = deployment.start(out)
    deployment.until_round(out, 3)
    fault(deployment, process)
    code = process.wait(300)
    if fault is kill_node:
        assert code == 0, deployment.said(out) + deployment.log(out)
        model = fedsim.load_run(deployment.folder / out).model
    else:
        assert code == (130 if fault is interrupt else 1)
        assert "--resume" in deployment.said(out)
        assert not (deployment.folder / out).exists()
        model = deployment.finish(out, "--resume")
    np.testing.assert_array_equal(model, unbroken)
