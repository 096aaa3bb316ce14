"""Every command of each installation works, or says that it is not part of it before it does anything."""

import json
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml
from support.channels import enrolled_federation
from support.daemons import PATIENCE
from support.deployed import POLICY, calling, offer_of, resolved_of, silo_file
from support.installations import alone, as_processes, forked, installed
from support.scenarios import BASE
from support.used_models import clinic, clinic_tree, simulated
from typer.main import get_group

from fedsim.cli.main import app
from fedsim.deployment import certs
from fedsim.deployment.run import deploy
from fedsim.report.run_directory import write
from shuffler import service
from silos.front.config import load_config

OWN = {"name": "mean_regularised", "num_rounds": 3, "step_size": 0.5, "clip_norm": 1.0}
OWN |= {"own_step_size": 0.3, "pull": 0.5, "averaging": 0.4}
BARE = {"own_models": True, "baselines": False, "nonprivate_baseline": False}


class Case(NamedTuple):
    """A command on the files of `made`, where it is to work."""

    installations: str  # that have it
    arguments: str
    said: str  # within what it prints
    code: int = 0
    long: bool = False


NEW = "--identity new.pub --node keys/server/nodes/new.pub"
ROSTER = "--shuffler shuffler --socket s --out roster.yaml --name f --min-silos 2 --honest-fraction 0.5"
SUPERLINK = "--superlink localhost:{port} --root-certificates keys/server/ca.crt --key keys/new/node.key"
COMMANDS = {
    "simulate": Case("", "small.yaml --out out", ""),
    "sweep": Case("", "sweep.yaml --out out", ""),
    "release": Case("", "small.yaml f0=mean --out out", ""),
    "compare": Case("server", "clinic/run --out page", "Wrote", long=True),
    "report": Case("server", "run", "Wrote run/report.html", long=True),
    "predict": Case("server", "clinic/run clinic/new.csv --out new.csv", "Wrote new.csv"),
    "export": Case("server", "run --to torch --out model.pt", "Wrote model.pt"),
    "privacy": Case("", "small.yaml", ""),
    "audit": Case("", "small.yaml --effort 0.01", ""),
    "bounds": Case("server", "small.yaml", "small: n = 32, N = 3", long=True),
    "theorems": Case("silos server", "", "Theorem"),
    "up": Case("", "small.yaml --out out", ""),
    "deploy": Case(
        "server", "small.yaml --federation federation.yaml --out out", "not there after", 2, long=True
    ),
    "status": Case("server", "federation.yaml --run run", "silo-00", 1),
    "runs": Case("server", "federation.yaml", "a SuperLink that answers", 2, long=True),
    "stop": Case("server", "federation.yaml", "a SuperLink that answers", 2, long=True),
    "down": Case("server", "run", "a directory that `fedsim up` has made", 2, long=True),
    "kit": Case("server", "new --federation federation.yaml --out kit", "node.key is a secret"),
    "certs": Case("server", "more --silo a", "a/node.key secret"),
    "federation add": Case("server", f"federation.yaml new {NEW}", "Added new"),
    "federation rekey": Case(
        "server", "federation.yaml silo-00 --node keys/server/nodes/new.pub", "let in by"
    ),
    "federation remove": Case("server", "federation.yaml silo-00", "Removed silo-00"),
    "federation roster": Case("server", f"federation.yaml {ROSTER}", "Its digest"),
    "federation list": Case("server", "federation.yaml", "silo-02"),
    "node": Case("silos", f"{SUPERLINK} --socket none", "no SuperLink", -1, long=True),
    "shuffler": Case("", "--config shuffler.yaml --enrol", ""),
    "silo": Case("silos", "--config new/silo.yaml --enrol", '"identity"'),
    "silo model": Case("silos", "--config silo-00/silo.yaml model run --out mine", "Wrote mine"),
    "silo fit": Case("silos", "--config silo-00/silo.yaml fit run", "mean_regularised has silos' own", 2),
    "silo close": Case("silos", "--config silo-00/silo.yaml close {run}", "RUN", 2),
    "preflight": Case("silos", "--config silo-00/silo.yaml", "silo silo-00, records npz", 1),
    "ledger show": Case("silos", "silo-00/state", "for replacing one of its records"),
    "ledger receipt": Case("silos", "silo-00/state {run}", '"signature":'),
    "ledger verify": Case(
        "silos server", "run/receipts/silo-00.json --key silo-00/state/identity.pub", "Verified"
    ),
    "ledger accept-time": Case("silos", "silo-00/state", "Nothing to accept"),
    "offers list": Case("silos", "silo-00/state", "{offer}"),
    "offers show": Case("silos", "silo-00/state {offer}", "replacing one of its records"),
    "offers approve": Case("silos", "silo-00/state {offer}", "replacing one of its records"),
    "offers refuse": Case("silos", "silo-00/state {offer}", "Refused {offer}"),
    "offers check": Case("silos", "offer.json --config silo-00/silo.yaml", "it would wait for the operator"),
    "list": Case("server", "", "noisy_minibatch_sgd", long=True),
    "schema": Case("silos server", "", '"$defs"'),
    "check": Case("", "noisy_minibatch_sgd", ""),
    "init": Case("silos server", "table.csv --target ill --out table.yaml", "Wrote table.yaml"),
    "inspect": Case("silos server", "table.csv --target ill", "60 records, 3 columns"),
    "contributions": Case("silos server", "table.csv --person-column who", "60 records of 7 persons"),
    "new": Case("", "my_algorithm", ""),
}


def leaves(command: click.Command, name: str = "") -> set[str]:
    """Names of all commands that do something themselves."""
    if not isinstance(command, click.Group):
        return {name}
    context = click.Context(command)
    below = {each: command.get_command(context, each) for each in command.list_commands(context)}
    own = {name} if name and command.invoke_without_command else set()
    return own.union(*(leaves(each, f"{name} {key}".strip()) for key, each in below.items() if each))


def test_each_command_is_tried_below():
    assert leaves(get_group(app)) == COMMANDS.keys()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server and its silos have after a run, an offer that waits, a table, and a model of a table."""
    place = tmp_path_factory.mktemp("made")
    resolved = resolved_of(algorithm=OWN, report=BARE)
    federation = enrolled_federation(place, resolved, seeded=False, policy=POLICY)
    with federation.opened(seeded=False) as channel:
        deploy(resolved.scenario, federation.federation, channel, place / "run")
    _let_an_offer_wait(place, offer_of(resolved, "silo-00"))
    records = {"name": "npz", "path": "../silo-01/records.npz", "intercept": False, "classes": 2}
    (place / "new").mkdir()
    silo_file(place / "new", "new", records)
    (place / "new.pub").write_text("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a\n")
    _write_federation(place, resolved.names)
    for name, more in (("small", {}), ("sweep", {"sweep": {"privacy.epsilon": [1.0, 2.0]}})):
        (place / f"{name}.yaml").write_text(yaml.safe_dump({**BASE, "name": name, "trials": 1, **more}))
    rows = [f"{20 + 3 * i % 60},{'yes' if 3 * i % 60 > 30 else 'no'},p{i % 7}" for i in range(60)]
    (place / "table.csv").write_text("\n".join(["age,ill,who", *rows]) + "\n")
    (place / "clinic").mkdir()
    new = clinic(place / "clinic").drop(columns=["outcome", "hospital"])
    new.to_csv(place / "clinic" / "new.csv", index=False)
    done = simulated(clinic_tree(place / "clinic"), trials=1)
    (place / "clinic" / "run").mkdir()
    write(done.source, done.results, place / "clinic" / "run", place / "clinic" / "run")
    return place


def _let_an_offer_wait(place: Path, offer: dict) -> None:
    file = place / "silo-00" / "silo.yaml"
    tree = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(tree | {"policy": tree["policy"] | {"approve": "ask"}}))
    with calling(load_config(file)) as caller:
        caller.refused("offer", **offer)
    (place / "offer.json").write_text(json.dumps(offer | {"session": "5" * 64}))


def _write_federation(place: Path, names: tuple[str, ...]) -> None:
    certs.make(place / "keys", [*names, "new"], ["localhost"])
    silos = {
        name: {"identity": f"{name}/state/identity.pub", "node": f"keys/server/nodes/{name}.pub"}
        for name in names
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tree = {"superlink": f"localhost:{port}", "root_certificates": "keys/server/ca.crt", "silos": silos}
    (place / "federation.yaml").write_text(yaml.safe_dump(tree | {"deadline": 1, "patience": 1}))
    shuffler = place / "shuffler.yaml"
    shuffler.write_text("{state: shuffler, listen: {socket: s.sock}, rosters: [roster.yaml]}")
    service.run(shuffler, enrolling=True, health=False)


def words(name: str, made: Path) -> tuple[list[str], str]:
    """What is typed after `fedsim`, and what it prints."""
    case = COMMANDS[name]
    known = {
        "offer": next((made / "silo-00/state/offers").glob("*.json")).stem[:16],
        "run": json.loads((made / "run/receipts/silo-00.json").read_text())["run"],
        "port": yaml.safe_load((made / "federation.yaml").read_text())["superlink"].rpartition(":")[2],
    }
    typed = shlex.split(case.arguments.format(**known))
    own = ["silo"] if name.startswith("silo ") else name.split()  # its option comes before the second word
    return [*own, *typed], case.said.format(**known)


def content(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", params=["silos", "server"])
def installation(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    return request.param, installed(request.param, tmp_path_factory.mktemp("installed"))


@pytest.mark.parametrize("run", [forked, pytest.param(as_processes, marks=pytest.mark.slow)])
def test_what_is_not_there_says_so_and_does_nothing(installation, made, tmp_path, run):
    folder, programs = installation
    absent = [name for name, case in COMMANDS.items() if folder not in case.installations]
    commands = [
        (Path(shutil.copytree(made, tmp_path / name.replace(" ", "-"))), words(name, made)[0])
        for name in absent
    ]
    for name, (place, _), done in zip(absent, commands, run(programs, commands), strict=True):
        assert (done.code, done.output) == (2, ""), (name, done)
        assert done.errors.startswith("error: this command needs "), (name, done)
        assert done.errors.endswith(", which is not part of this installation\n"), (name, done)
        assert done.errors.count("\n") == 1, (name, done)
        assert content(place) == content(made), name


@pytest.mark.parametrize("run", [forked, pytest.param(as_processes, marks=pytest.mark.slow)])
def test_what_is_there_works(installation, made, tmp_path, run):
    folder, programs = installation
    there = [name for name, case in COMMANDS.items() if folder in case.installations]
    there = [
        name
        for name in there
        if COMMANDS[name].code >= 0 and (run is as_processes or not COMMANDS[name].long)
    ]
    commands = [
        (Path(shutil.copytree(made, tmp_path / name.replace(" ", "-"))), words(name, made)[0])
        for name in there
    ]
    for name, done in zip(there, run(programs, commands), strict=True):
        said = " ".join((done.output + done.errors).split())
        assert done.code == COMMANDS[name].code, (name, done)
        assert words(name, made)[1] in said, (name, done)
        assert "Traceback" not in said, (name, done)


@contextmanager
def running(command: Sequence[str | Path], folder: Path) -> Iterator[Callable[[], str]]:
    """A daemon of an installation, which ends well at SIGTERM; what it has said so far."""
    log = folder / "said"
    with open(log, "w") as said:
        process = subprocess.Popen(command, cwd=folder, env=alone(), stderr=said)
    try:
        yield log.read_text
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.slow
def test_daemons_serve_and_say_that_they_are_well(made, folder, tmp_path):
    place = Path(shutil.copytree(made, folder / "made"))
    programs = {name: installed(name, tmp_path / name) for name in ("silos", "server", "shuffler")}
    silo = [programs["silos"] / "fedsim", "silo", "--config", "silo-00/silo.yaml"]
    shuffler = [programs["shuffler"] / "python", "-m", "shuffler", "--config", "shuffler.yaml"]
    roster, _ = words("federation roster", made)
    assert as_processes(programs["server"], [(place, roster)])[0].code == 0
    for daemon in (silo, shuffler):
        well = partial(subprocess.run, [*daemon, "--health"], cwd=place, env=alone(), check=False)
        assert well().returncode == 1
        with running(daemon, place):
            until(lambda well=well: well().returncode == 0)
    with running([programs["silos"] / "fedsim", *words("node", made)[0]], place) as said:
        until(lambda: COMMANDS["node"].said in said())
