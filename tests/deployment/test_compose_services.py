"""The commands of docker-compose.yml, started as processes: a model is trained through them."""

import shutil
import time

import pytest
from support.compose import Ground
from support.daemons import short_folder

from fedsim.deployment.federation_file import parse_federation
from fedsim.deployment.processes import Processes
from fedsim.deployment.run import deploy
from fedsim.report.run_directory import read
from fedsim.scenario.load import load
from fedsim.secagg.envelopes import KEY_FILE, EnvelopeKey
from fedsim.secagg.roster import load_roster
from server.sockets import Sockets
from silos.vault.book import read as read_ledger

pytestmark = pytest.mark.slow
PATIENCE = 240.0
SILOS = ("silo-1", "silo-2", "silo-3")
ROUNDS = 3


@pytest.fixture
def ground():
    with short_folder() as folder:
        made = Ground(folder, ROUNDS)
        done = made.run("prepare")
        assert done.returncode == 0, done.stderr
        yield made


def _until_healthy(ground: Ground, processes: Processes, service: str) -> None:
    until = time.monotonic() + PATIENCE
    while not ground.healthy(service):
        processes.check()
        assert time.monotonic() < until, service


def _enrol(ground: Ground, silo: str) -> None:
    done = ground.run(f"{silo}-enrol")
    assert done.returncode == 0, done.stderr


def _epsilon(ground: Ground, silo: str) -> float:
    """Of the one run in its ledger, which is whole."""
    (run,) = read_ledger(ground.volume(f"{silo}-state") / "ledger.sqlite").runs.values()
    assert run.closed
    return float(run.terms["epsilon"])


def test_a_silo_enrols_once_serves_and_trains(ground):
    assert not ground.healthy("silo-1")
    for _ in range(2):  # a second one changes nothing
        _enrol(ground, "silo-1")
    identity = ground.volume("silo-1-public") / "identity.pub"
    socket = ground.volume("silo-1-socket") / "silo.sock"
    federation = parse_federation({"silos": {"silo-1": {"identity": str(identity), "socket": str(socket)}}})
    with Processes() as processes:
        ground.start(processes, "silo-1")
        _until_healthy(ground, processes, "silo-1")
        with Sockets(federation.addresses) as channel:
            out = ground.folder / "out"
            deploy(load(ground.folder / "deploy" / "demo.yaml"), federation, channel, out)
    assert (ground.folder / "out" / "report.html").is_file()


@pytest.mark.parametrize(("service", "party"), [("silo-1-enrol", "silo-1"), ("shuffler-enrol", "shuffler")])
def test_a_lost_volume_is_said_and_not_replaced(ground, service, party):
    assert ground.run(service).returncode == 0
    state = ground.volume(f"{party}-state")
    shutil.rmtree(state)
    state.mkdir(mode=0o700)
    for lost in (service, party):
        done = ground.run(lost)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert list(state.iterdir()) == []
    if party == "silo-1":
        assert "volume" in done.stderr


def test_renewing_replaces_the_certificate_alone(ground):
    server = ground.volume("server")
    names = ("ca.crt", "server.key", "server.crt", "superexec.secret", KEY_FILE, "ready")
    before = {name: (server / name).read_bytes() for name in names}
    done = ground.run("renew")
    assert done.returncode == 0, done.stderr
    changed = [name for name, content in before.items() if (server / name).read_bytes() != content]
    assert changed == ["server.crt"]


def test_the_profile_shuffle_makes_a_roster_and_a_shuffler_that_is_well(ground):
    for silo in SILOS:
        _enrol(ground, silo)
    for service in 2 * ("shuffler-enrol", "roster"):  # as the second `docker compose up` does
        done = ground.run(service)
        assert done.returncode == 0, done.stderr
    roster = load_roster(ground.volume("roster") / "roster.yaml")
    assert done.stdout.strip() == roster.digest
    assert roster.names == SILOS
    assert roster.server == EnvelopeKey.load(ground.volume("server")).public
    with Processes() as processes:
        ground.start(processes, "shuffler")
        _until_healthy(ground, processes, "shuffler")


def test_the_services_train_a_model_and_leave_ledgers_and_a_page(ground):
    with Processes() as processes:
        ground.start(processes, "superlink")
        for silo in SILOS:
            _enrol(ground, silo)
            ground.start(processes, silo)
        _until_healthy(ground, processes, "superlink")
        ground.start(processes, "serverapp")
        assert ground.run("enroll").stdout == "let in: silo-1, silo-2, silo-3\n"
        for k, silo in enumerate(SILOS, 1):
            _until_healthy(ground, processes, silo)
            ground.start(processes, f"node-{k}")
        done = ground.run("train")
        assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = (path for path in ground.runs.iterdir() if path.is_dir())
    summary = read(directory).summary
    assert (directory / "report.html").is_file()
    assert {silo.name for silo in summary.privacy.silos} == set(SILOS)
    first, second, cautious = (_epsilon(ground, silo) for silo in SILOS)
    assert cautious <= 1 < first <= 2
    assert second <= 2
