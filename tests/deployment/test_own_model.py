"""A deployed silo's own model: from its ledger, as simulated, through kills, and for its operator alone."""

import json
import shutil
import signal
from functools import partial

import pytest
import torch
from support.breaking import PLACES, kill_at
from support.channels import enrolled_federation
from support.daemons import daemons, enrolled_silo, short_folder
from support.deployed import SCENARIO, federation_of, resolved_of
from support.one_server import OneServer, broadcast, offer
from support.scenarios import invoke, refusal

from fedsim.api.run import load_run
from fedsim.common.chain import reading
from fedsim.deployment.run import deploy
from fedsim.scenario.load import parse
from fedsim.simulation.host import SiloHost
from fedsim.simulation.trial import Trial, evaluator
from fedsim.wire.frames import decode, opened
from silos.vault.book import LEDGER
from silos.vault.ledger import unpacked

ALGORITHM = {"name": "mean_regularised", "num_rounds": 5, "step_size": 0.5, "clip_norm": 1.0}
ALGORITHM |= {"own_step_size": 0.3, "pull": 0.5, "averaging": 0.4}
GENEROUS = {
    "lifetime": {"epsilon": 25.0, "delta": 0.1, "expires": "2999-12-31"},
    "per_run": {"epsilon": 10.0, "delta": 0.01},
}
WITHOUT = {"baselines": False, "nonprivate_baseline": False}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A seeded run with own models and one without: the scenario's objects, and the folder."""
    folder = tmp_path_factory.mktemp("own")
    resolved = resolved_of(algorithm=ALGORITHM, report={"own_models": True, **WITHOUT})
    enrolled = enrolled_federation(folder, resolved, policy=GENEROUS)
    with enrolled.opened(seeded=True) as channel:
        deploy(resolved.scenario, enrolled.federation, channel, folder / "run")
        deploy(parse(SCENARIO), enrolled.federation, channel, folder / "other")
    return resolved, folder


def test_it_is_the_simulated_one_and_the_runs_directory_has_none(deployed, tmp_path):
    resolved, folder = deployed
    data = federation_of(resolved)
    hosts = SiloHost(resolved, 0, data)
    trial = Trial(resolved, 0, hosts, evaluator(resolved, data, 0), data)
    while not trial.finished:
        trial.advance(10)
    own, model = hosts.own("private"), trial.result().models["private"]
    for i, name in enumerate(resolved.names):
        out = tmp_path / name
        assert "Wrote" in invoke(
            "silo", "--config", folder / name / "silo.yaml", "model", folder / "run", "--out", out
        )
        found = load_run(out).predictor().parameters
        torch.testing.assert_close(found, model + own[i], rtol=1e-9, atol=1e-12)
        assert f"silo {name}'s own" in json.loads((out / "summary.json").read_text())["warnings"][0]
        left_out = ("report.html", "figures", "receipts", "offers")
        assert not any((out / each).exists() for each in left_out)
    kept = b"".join(file.read_bytes() for file in (folder / "run").rglob("*") if file.is_file())
    for row in own:
        assert row.numpy().tobytes() not in kept


def test_what_is_no_run_with_own_models_of_this_silo_is_refused(deployed, tmp_path):
    _, folder = deployed
    asked = "silo", "--config", folder / "silo-00" / "silo.yaml", "model"
    assert "own models" in refusal(*asked, folder / "other", "--out", tmp_path / "out")
    assert "deployed run of silo silo-00" in refusal(*asked, tmp_path / "none", "--out", tmp_path / "out")
    copied = shutil.copytree(folder / "run", tmp_path / "copied")
    offered = copied / "offers" / "silo-00.json"
    offered.write_text(offered.read_text().replace('"seed": 0', '"seed": 1'))
    assert "its ledger has none" in refusal(*asked, copied, "--out", tmp_path / "out")
    assert "other files" in refusal(*asked, folder / "run", "--out", folder / "run")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", PLACES)
def test_a_daemon_that_is_killed_keeps_the_same_own_part(place):
    """It follows from the messages alone, of which each round has one, whenever the daemon dies."""
    with short_folder() as folder, daemons(enrolled_silo(folder), start=False) as made:
        silo, deaths = made["silo-1"].start(partial(kill_at, place, 2)), []

        def restart() -> None:
            deaths.append(silo.wait())
            silo.start()

        v = own = torch.zeros(4, dtype=torch.float64)
        with OneServer(silo.socket, silo.identity, restart) as server:
            server.offer(offer(algorithm=ALGORITHM))
            for r in range(5):
                answer = server.ask(r)
                assert answer.kind == "reply", answer.head
                v = (v - 0.3 * answer.arrays["g"]) / (1 + 0.3 * 0.5)
                own = 0.4 * own + 0.6 * v
                sent = [
                    broadcast(r),
                    *(decode(opened(body)[0]).arrays for body in server.received[server.run, r][-1:]),
                ]
                values = [value for arrays in sent for value in arrays.values()]
                assert not any(torch.allclose(part, value) for part in (v, own) for value in values)
        assert deaths == [-signal.SIGKILL]
        assert silo.stop() == 0
        with reading(silo.ledger, LEDGER) as ledger:
            (kept,) = ledger.execute("SELECT memory FROM replies").fetchone()
        torch.testing.assert_close(unpacked(kept)["own"], own, rtol=0, atol=1e-13)
