"""A fit at home by a silo's operator: it is written for the owner alone, and nothing of it leaves."""

import json
import logging
import secrets
import shutil
import socket
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from support.channels import enrolled_federation
from support.deployed import Caller, federation_of, offer_of, resolved_of
from support.scenarios import invoke, refusal

from fedsim.api.run import load_run
from fedsim.common.errors import InputError
from fedsim.deployment.run import deploy
from fedsim.measure.objective import pair
from fedsim.problems.at_home import Federation, at_home
from silos.front import at_home as at_home_front
from silos.front.at_home import MARK
from silos.front.config import load_config
from silos.front.metrics import _read
from silos.front.silo import Silo
from silos.vault import journal

BARE = {"baselines": False, "nonprivate_baseline": False}
OTHER = {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.3, "clip_norm": 1.0}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A run of three seeded silos: the scenario's objects, and the folder with the run's directory."""
    folder = tmp_path_factory.mktemp("home")
    resolved = resolved_of(report=BARE, data={"name": "synthetic", "rows": 240, "features": 4})
    enrolled = enrolled_federation(folder, resolved)
    with enrolled.opened(seeded=True) as channel:
        deploy(resolved.scenario, enrolled.federation, channel, folder / "run")
    return resolved, folder


@pytest.fixture
def copied(deployed, tmp_path):
    """Two copies of the silos, and the run."""
    resolved, folder = deployed
    for name in ("as_it_was", "fitted"):
        shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("run"))
    return resolved, folder / "run", tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def fitted(folder: Path, run: Path) -> str:
    return invoke("silo", "--config", folder / "silo-00" / "silo.yaml", "fit", run)


def test_it_is_the_fit_of_the_silos_records_and_is_marked(copied):
    resolved, run, place = copied
    said = fitted(place / "fitted", run)
    assert MARK in " ".join(said.split())
    assert "this silo's records were taken out of it" in " ".join(said.split())
    home = place / "fitted" / "silo-00" / "state" / "at-home"
    made = home / "run"
    assert home.stat().st_mode & 0o777 == made.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in made.rglob("*") if file.is_file())
    (w,) = load_file(run / "model.safetensors").values()
    silo = federation_of(resolved).silos[0]
    x, y = pair(silo)
    noise = json.loads((run / "summary.json").read_text()).get("noise_cost")
    assert noise is None  # ranges of these records are not declared, so that no rule gives it
    noise = float("inf")
    expected = at_home(resolved.problem, x, y, Federation(w, len(y) * 3, noise, took_part=True))
    found = load_run(made)
    with pytest.raises(InputError, match="not private"):
        found.predictor()
    torch.testing.assert_close(found.predictor(nonprivate=True).parameters, expected.w)
    assert MARK in found.summary.warnings[0]
    assert not {"model.safetensors", "receipts", "offers"} & {file.name for file in made.iterdir()}
    for part in expected.parts:
        assert f"{part.loss:.4f} +- {part.error:.4f}  weight {part.weight:.2f}" in said
    assert fitted(place / "fitted", run) == said  # again, in its place


def test_nothing_of_it_leaves(copied, monkeypatch, caplog):
    """Files, log and sockets while it is made; then frames, receipts and metrics of a silo with it and of its
    twin without: the same to the last byte.
    """
    resolved, run, place = copied
    before, sent = files(place / "as_it_was"), dict[str, list[bytes]]()
    with monkeypatch.context() as cut, caplog.at_level(logging.DEBUG):
        cut.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection"))
        cut.setattr(socket.socket, "bind", lambda *_: pytest.fail("a socket"))
        fitted(place / "fitted", run)
    assert not caplog.records
    after = files(place / "fitted")
    opened = [name for name in after if name.endswith(("-wal", "-shm"))]  # the ledger was read
    assert all(not after.pop(name) or name.endswith("-shm") for name in opened)
    assert {name for name in after if "/state/at-home/run/" in name} == after.keys() - before.keys()
    assert {name: after[name] for name in before} == before
    now = time.time_ns()
    still = SimpleNamespace(time_ns=lambda: now, clock_gettime_ns=lambda _: 0)
    monkeypatch.setattr(journal, "time", still)
    monkeypatch.setattr(secrets, "token_hex", lambda count: "0" * 2 * count)
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    scenario = resolved_of(report=BARE, data=resolved.scenario.data.model_dump(), algorithm=OTHER)
    shown = {}
    for name in ("as_it_was", "fitted"):
        config = load_config(place / name / "silo-00" / "silo.yaml")
        with closing(Silo.open(config, insecure_simulation=True)) as silo:
            caller = Caller(silo)
            caller.send("hello")
            admitted = caller.admitted(offer_of(scenario, "silo-00", session="5" * 64))
            caller.asked(admitted["run"], 0, w=torch.zeros(5, dtype=torch.float64))
            closed = caller.closed(admitted["run"])
            daemon: Any = SimpleNamespace(answered={})
            shown[name] = closed["receipt"], [repr(each) for each in _read(silo, daemon)][1:]
        sent[name] = caller.sent
    assert len(sent["fitted"]) == 4
    assert sent["as_it_was"] == sent["fitted"]
    assert str(shown["as_it_was"]) == str(shown["fitted"])


def test_a_silo_that_took_no_part_has_no_correction(copied):
    """By its own ledger: one that has no run, one that has others, and one that the run does not name."""
    resolved, run, place = copied
    enrolled_federation(place / "new", resolved)
    asked = "silo", "--config", place / "fitted" / "silo-00" / "silo.yaml", "fit"
    assert "this silo took no part in it" in " ".join(fitted(place / "new", run).split())
    other = Path(shutil.copytree(run, place / "other"))
    offered = other / "offers" / "silo-00.json"
    offered.write_text(offered.read_text() + " ")
    uncorrected = fitted(place / "fitted", other)
    assert "took no part" in uncorrected
    assert uncorrected.splitlines()[1:4] != fitted(place / "fitted", run).splitlines()[1:4]
    offered.unlink()
    assert "offers/silo-00.json is missing or damaged" in refusal(*asked, other)
    privacy = json.loads((other / "summary.json").read_text())["privacy"]
    privacy["silos"] = privacy["silos"][1:]
    changed(other, "summary", privacy=privacy)
    assert "took no part" in fitted(place / "fitted", other)


def changed(run: Path, name: str, **more: object) -> None:
    file = run / f"{name}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


def test_what_is_no_such_run_or_silo_is_said_in_a_line(copied, monkeypatch):
    _, run, place = copied
    config = place / "fitted" / "silo-00" / "silo.yaml"
    asked = "silo", "--config", config, "fit"

    def wrong(name: str, **more: object) -> Path:
        copy = Path(shutil.copytree(run, place / f"wrong {len(list(place.iterdir()))}"))
        changed(copy, name, **more)
        return copy

    assert "a copy of a deployed run's directory" in refusal(*asked, place / "none")
    assert "features and classes" in refusal(
        *asked, _model(wrong("model", num_features=6), lambda w: torch.cat([w, w[:1]]))
    )
    assert "as its model.json says" in refusal(*asked, wrong("model", num_features=6))
    kinked = wrong("model", problem={"name": "hinge_loss"})
    assert "a fit at home is for logistic_regression" in refusal(*asked, kinked)
    assert "not my.py:Own" in refusal(*asked, wrong("model", problem={"name": "my.py:Own"}))
    network = {"name": "neural_network", "model": {"name": "module", "path": "evil:Net"}}
    evil = wrong("model", problem=network)
    (evil / "evil.py").write_text(f"open({str(place / 'evil was here')!r}, 'w')")
    monkeypatch.chdir(evil)
    monkeypatch.syspath_prepend(str(evil))
    assert "a network mlp, paired_mlp, lenet, not module" in refusal(*asked, evil)
    assert not (place / "evil was here").exists()
    assert "a copy of a deployed run's directory" in refusal(*asked, wrong("summary", noise_cost="abc"))
    for noise in (float("nan"), float("inf"), -1.0):
        assert "a finite noise_cost" in refusal(*asked, wrong("summary", noise_cost=noise))
    assert "a copy of a deployed run's directory" in refusal(*asked, wrong("summary", warnings=None))
    for change in (lambda w: w.unsqueeze(1), lambda w: w / 0, lambda w: w.float(), lambda w: w[0]):
        assert "5 finite numbers of torch.float64" in refusal(*asked, _model(wrong("model"), change))
    cut = wrong("model")
    (cut / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:50])
    assert "a copy of a deployed run's directory" in refusal(*asked, cut)
    own = "silo", "--config", config, "model", cut, "--out", place / "out"
    assert "the directory of a deployed run" in refusal(*own)
    tree = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(tree | {"name": "silo-09"}))
    assert "enrolled as" in refusal(*asked, run)
    assert not (config.parent / "state" / "at-home").exists()


def _model(run: Path, change: Any) -> Path:
    file = run / "model.safetensors"
    made = {name: change(w).contiguous() for name, w in load_file(file).items()}
    file.unlink()
    save_file(made, file)
    return run


def test_an_older_fit_stays_until_a_new_one_is_whole(copied, monkeypatch):
    _, run, place = copied
    fitted(place / "fitted", run)
    state = place / "fitted" / "silo-00" / "state"
    made = state / "at-home" / "run"
    before = files(made)
    asked = "silo", "--config", state.parent / "silo.yaml", "fit"
    for inside in (made, state.parent):
        assert "a folder apart from the silo's state" in refusal(*asked, inside)
    copy_run = at_home_front.copy_run

    def full(*given: Any) -> None:
        copy_run(*given)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(at_home_front, "copy_run", full)
    with pytest.raises(OSError, match="No space"):
        at_home_front.fit_at_home(load_config(state.parent / "silo.yaml"), run)
    assert files(made) == before
    assert [file.name for file in made.parent.iterdir()] == ["run"]
