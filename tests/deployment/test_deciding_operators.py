"""A deployed run whose silos' operators decide: it waits for them, is resumed, and is paid for once."""

import hashlib
import json
import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.channels import Enrolled, absent, enrolled_federation
from support.daemons import daemons, short_folder
from support.deployed import SCENARIO, resolved_of
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.deployment.federation_file import Federation
from fedsim.deployment.run import deploy
from fedsim.report.record import AskedSilo
from fedsim.report.resume import state_of
from fedsim.scenario.load import parse
from server.sockets import Sockets
from silos.front.pending import PendingOffers
from silos.vault.book import read

ROUNDS = SCENARIO["algorithm"]["num_rounds"]
FIRST, SECOND, THIRD = "silo-00", "silo-01", "silo-02"
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["silos.front.service", "support.daemons", "fedsim.deployment.run"])


def federated(folder: Path, approve: str = "ask", **more: Any) -> Enrolled:
    policy = {"approve": approve}
    return enrolled_federation(folder, resolved_of(), policy=policy, **{"patience": 60, **more})


def decide(made: Enrolled, name: str, command: str, *options: str) -> int:
    """An operator's command on every offer that waits; how many there were."""
    state = made.configs[name].state
    waiting = PendingOffers(state).all(0)
    for offer in waiting:
        CliRunner().invoke(app, ["offers", command, str(state), offer.digest[:16], *options])
    return len(waiting)


def deciding(made: Enrolled, **commands: str) -> Callable[[str], None]:
    """Called with what a server says: the operator of a silo that is waited for approves."""

    def say(line: str) -> None:
        if "is waited for" in line:
            decide(made, line.split()[1], commands.get(line.split()[1], "approve"))

    return say


def test_a_run_begins_once_its_operators_have_approved_it(tmp_path):
    made, said = federated(tmp_path / "silos"), []
    approve = deciding(made)
    with made.opened(seeded=True) as channel:
        out = tmp_path / "run"
        deploy(parse(SCENARIO), made.federation, channel, out, say=lambda x: (said.append(x), approve(x)))
    waits = "is waited for, 0:01:00 at most: the silo's operator has to decide"
    asked = [line for line in said if "waited for" in line]
    assert asked == [f"silo {name} {waits}" for name in (FIRST, SECOND, THIRD)]
    for name in made.configs:
        offer = (out / "offers" / f"{name}.json").read_bytes()
        receipt = json.loads((out / "receipts" / f"{name}.json").read_text())
        assert receipt["offer"] == hashlib.sha256(offer).hexdigest()
        assert receipt["rounds"] == list(range(ROUNDS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "silos"]


def test_a_server_that_ends_while_it_waits_offers_the_same_again(tmp_path):
    made, out = federated(tmp_path / "silos"), tmp_path / "run"

    def killed(line: str) -> None:
        if "is waited for" in line:
            raise KeyboardInterrupt

    with made.opened(seeded=True) as channel:
        for resume in (False, True):
            with pytest.raises(KeyboardInterrupt):
                deploy(parse(SCENARIO), made.federation, channel, out, resume=resume, say=killed)
        offers = {name: (out / "offers" / f"{name}.json").read_text() for name in made.configs}
        assert [decide(made, name, "approve") for name in made.configs] == [1, 1, 1]
        deploy(parse(SCENARIO), made.federation, channel, out, resume=True, say=killed)
    assert {name: (out / "offers" / f"{name}.json").read_text() for name in made.configs} == offers
    for config in made.configs.values():
        assert len(read(config.ledger).sessions) == 1


def test_an_operator_who_refuses_is_left_out_by_name(tmp_path):
    """The others decide on the smaller run, which is another one."""
    made, out = federated(tmp_path / "silos", min_silos=2), tmp_path / "run"
    say = deciding(made, **{THIRD: "refuse"})
    with made.opened(seeded=True) as channel:
        found = deploy(parse(SCENARIO), made.federation, channel, out, say=say)
    assert found.deployed is not None
    assert found.deployed.absent == {THIRD: "refused: the silo's operator has refused it"}
    for name in (FIRST, SECOND):
        runs = read(made.configs[name].ledger).runs.values()
        assert [len(run.rounds) for run in runs][-1] == ROUNDS
        assert sum(len(run.rounds) for run in runs) == ROUNDS
    assert read(made.configs[THIRD].ledger).runs == {}


def _serve(federation: Federation, out: Path) -> None:
    with Sockets(federation.addresses) as channel:
        deploy(parse(SCENARIO), federation, channel, out, resume=state_of(out) == "begun")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_an_approved_run_is_answered_and_paid_for_once(tmp_path, seed):
    """Server and daemons are killed at random moments, around approvals; the third is never there."""
    rng, out, kills = random.Random(seed), tmp_path / "run", 0
    with short_folder() as folder:
        made = federated(folder, deadline=1.0, min_silos=2)
        with daemons(*made.files[:2], insecure=True) as silos:
            for attempt in range(25):
                server = _fork.Process(target=_serve, args=(made.federation, out))
                server.start()
                until = time.monotonic() + rng.uniform(0.2, 4)
                while time.monotonic() < until and server.is_alive():
                    time.sleep(rng.uniform(0, 0.3))
                    victim = silos[rng.choice([FIRST, SECOND])]
                    if rng.random() < 0.3:
                        victim.kill()
                        victim.start(wait=rng.random() < 0.5)
                        kills += 1
                    if attempt > 3 and rng.random() < 0.3:
                        decide(made, victim.name, "approve")
                if server.is_alive():
                    server.kill()
                    kills += 1
                server.join()
                if state_of(out) == "ended":
                    break
            assert kills > 10
            for silo in silos.values():
                silo.until_it_listens()
            if state_of(out) != "ended":
                with Sockets(made.federation.addresses) as channel:
                    resume = state_of(out) == "begun"
                    deploy(parse(SCENARIO), made.federation, channel, out, resume=resume, say=deciding(made))
        for name in (FIRST, SECOND):
            book = read(made.configs[name].ledger)
            (run,) = [run for run in book.runs.values() if run.rounds]
            assert sorted(run.rounds) == list(range(ROUNDS))
            assert all(answered.reply is not None for answered in run.rounds.values())
            assert run.charged in (None, run.used)  # it is open where the silo was killed as it was closed
            assert run.used == run.price.whole
            assert PendingOffers(made.configs[name].state).find(run.offer, 0) is None
        assert not made.configs[THIRD].log.exists()
    assert_same_model(out, tmp_path / "others")


def assert_same_model(out: Path, folder: Path) -> None:
    """It is that of a run that nothing disturbs, of silos with the same records and seeds."""
    from fedsim.api.run import load_run

    others = federated(folder, approve="policy", deadline=1.0, min_silos=2)
    with others.opened(seeded=True) as channel:
        channel.faults = {THIRD: absent}
        expected = deploy(parse(SCENARIO), others.federation, channel, folder / "run")
    assert all(row.left_out is None for row in expected.results.rows(AskedSilo))
    (model,) = load_run(out).model
    assert torch.equal(torch.from_numpy(model), expected.results.trials[0].models["private"])
