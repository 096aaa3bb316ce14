"""An operator decides once, on a run and on its evaluation, and reads what both cost before."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.channels import Enrolled, enrolled_federation
from support.channels import read as read_frame
from support.deployed import POLICY, SCENARIO, resolved_of
from typer.testing import CliRunner

from fedsim.api.run import load_run
from fedsim.cli.main import app
from fedsim.common.errors import Refused
from fedsim.deployment.run import deploy
from fedsim.report.resume import state_of
from fedsim.scenario.load import parse
from fedsim.wire.frames import sealed
from fedsim.wire.messages import Offer, named
from server.federation import Channel
from silos.front.pending import PendingOffers
from silos.vault.book import read

ROWS = {"data": {"name": "synthetic", "rows": 600, "features": 4}}
EVALUATED = SCENARIO | ROWS | {"evaluate": {"bins": 4}, "privacy": {"epsilon": 4.0, "delta": 1e-6}}
LIFE = {"lifetime": {**POLICY["lifetime"], "epsilon": 20.0}}


def federated(folder: Path, **policy: Any) -> Enrolled:
    asked = {"policy": {"approve": "ask", **LIFE, **policy}, "holdout": 0.25, "patience": 60}
    return enrolled_federation(folder, resolved_of(**ROWS), seeded=False, **asked)


def run_of(made: Enrolled, out: Path, command: str = "approve") -> tuple[list[str], dict[str, str]]:
    """Deploy; what the server said, and what each operator was shown, who decides once, when it is said that
    the silo is waited for.
    """
    said, shown = list[str](), dict[str, str]()

    def say(line: str) -> None:
        said.append(line)
        if "is waited for" in line:
            name = line.split()[1]
            assert name not in shown, "a second decision was asked for"
            (offer,) = PendingOffers(made.configs[name].state).all(0)
            done = CliRunner().invoke(app, ["offers", command, str(made.configs[name].state), offer.digest])
            assert done.exit_code == 0, done.output
            shown[name] = done.output

    with made.opened(seeded=False) as channel:
        deploy(parse(EVALUATED), made.federation, channel, out, say=say)
    return said, shown


def test_one_approval_is_for_a_run_and_its_evaluation_and_both_costs_are_shown(tmp_path):
    made, out = federated(tmp_path / "silos"), tmp_path / "run"
    said, shown = run_of(made, out)
    assert set(shown) == set(made.configs)
    assert not any("no evaluation" in line for line in said)
    assert load_run(out).summary.evaluation
    for name, config in made.configs.items():
        training, evaluation = read(config.ledger).runs.values()
        assert (training.records, evaluation.records) == ("training", "holdout")
        costs = [line for line in shown[name].splitlines() if "-DP for" in line]
        assert len(costs) == 2, shown[name]
        assert "Evaluation" in shown[name].split(costs[0])[1].split(costs[1])[0]
        offer = Offer.model_validate(
            {**json.loads((out / "offers" / f"{name}.json").read_text()), "head": ""}
        )
        assert offer.evaluated is not None
        assert named(offer.evaluated.text) == evaluation.offer
        assert not list((config.state / "offers").iterdir())


def test_an_approval_holds_for_no_other_evaluation_than_the_one_that_was_shown(tmp_path):
    """A server that offers another one after the run was approved waits for another decision."""
    made = federated(tmp_path / "silos")
    config = made.configs["silo-00"]
    run_of(made, tmp_path / "run")
    offered = json.loads((tmp_path / "run" / "offers" / "silo-00.json").read_text())
    offer = Offer.model_validate({**offered, "session": "5" * 64, "head": ""})
    folder = PendingOffers(config.state)
    with made.opened(seeded=False) as channel:
        ask = partial(_asked, channel)
        assert b"has to decide" in ask(offer)
        (waits,) = folder.all(0)
        folder.decide(waits.digest, "approved")
        other = offer.evaluated.model_copy(update={"epsilon": offer.evaluated.epsilon / 2})
        assert b"has to decide" in ask(other)
        assert b"has to decide" in ask(offer.evaluated)  # before its run
        assert len(read(config.ledger).runs) == 2
        assert b"admission" in ask(offer)
        assert b"admission" in ask(offer.evaluated)


def _asked(channel: Channel, offer: Offer) -> bytes:
    return channel.exchange({"silo-00": sealed(offer.body())}, 20)["silo-00"]


def test_an_approval_that_is_taken_back_is_taken_back_for_both(tmp_path):
    made = federated(tmp_path / "silos")
    config, out = made.configs["silo-00"], tmp_path / "run"
    run_of(made, out)
    offered = json.loads((out / "offers" / "silo-00.json").read_text())
    offer = Offer.model_validate({**offered, "session": "6" * 64, "head": ""})
    folder = PendingOffers(config.state)
    with made.opened(seeded=False) as channel:
        ask = partial(_asked, channel)
        ask(offer)
        (waits,) = folder.all(0)
        folder.decide(waits.digest, "approved")
        folder.decide(waits.digest, "refused", "not now")
        assert b"has refused it: not now" in ask(offer)
        assert b"has refused it: not now" in ask(offer.evaluated)
    assert len(read(config.ledger).runs) == 2


def test_an_evaluation_that_the_policy_refuses_is_shown_as_none_and_the_run_goes_on(tmp_path):
    """Its one release has less noise than one of six rounds, and the policy asks for more."""
    made, out = federated(tmp_path / "silos", min_noise_multiplier=2.0), tmp_path / "run"
    said, shown = run_of(made, out)
    assert all("Evaluation" in text and "none: " in text for text in shown.values())
    assert any("there is no evaluation: 0 of 3 silos" in line for line in said)
    assert load_run(out).summary.status == "finished"
    assert state_of(out) != "outstanding"


def test_what_an_operator_reads_of_a_run_holds_of_its_evaluation(tmp_path):
    """Whose records, what for, and that nothing comes after it: a server cannot say otherwise."""
    made, out = federated(tmp_path / "silos", approve="policy"), tmp_path / "run"
    with made.opened(seeded=False) as channel:
        deploy(parse(EVALUATED), made.federation, channel, out)
    offered = json.loads((out / "offers" / "silo-00.json").read_text())
    odd = {"study": {"name": "another"}, "silo": "silo-01", "records": "training", "session": "7" * 64}
    offered["evaluation"] |= odd | {"evaluation": dict(offered["evaluation"])}
    offer = Offer.model_validate({**offered, "head": ""})
    other = offer.evaluated
    assert other is not None
    assert (other.study, other.silo, other.records, other.evaluation) == (
        offer.study,
        "silo-00",
        "holdout",
        None,
    )
    assert other.session not in (offer.session, "7" * 64)


def test_a_run_that_another_silo_refuses_leaves_no_reservation_of_its_evaluation(tmp_path):
    made, out = federated(tmp_path / "silos", approve="policy"), tmp_path / "run"
    short = made.configs["silo-02"]
    poor = short.policy.model_copy(update={"algorithms": ("fedadam",)})
    made.configs["silo-02"] = short.model_copy(update={"policy": poor})
    with made.opened(seeded=False) as channel, pytest.raises(Refused, match="does not allow algorithm"):
        deploy(parse(EVALUATED), made.federation, channel, out)
    for name in ("silo-00", "silo-01"):
        runs = read(made.configs[name].ledger).runs.values()
        assert [(run.records, run.open) for run in runs] == [("training", False), ("holdout", False)]
        assert read(made.configs[name].ledger).account.left == read(short.ledger).account.left


def test_a_silo_that_no_round_asked_answers_the_evaluation(tmp_path):
    """Its closing of the run, which has cost it nothing, is no closing of the evaluation."""
    made, out = federated(tmp_path / "silos", approve="policy"), tmp_path / "run"
    rare = {"participation": {"name": "availability", "probability": [1.0, 1.0, 1e-9]}}
    with made.opened(seeded=False) as channel:
        deploy(parse(EVALUATED | rare), made.federation, channel, out)
    training, evaluation = read(made.configs["silo-02"].ledger).runs.values()
    assert (len(training.rounds), len(evaluation.rounds)) == (0, 1)
    assert load_run(out).summary.evaluation


def test_a_silo_that_misses_the_offer_is_asked_for_the_evaluation_later(tmp_path):
    """The others, who have admitted it with the run, answer it then, once."""
    made, out = federated(tmp_path / "silos", approve="policy"), tmp_path / "run"
    federation = made.again(deadline=0.5, patience=0.5)

    def misses(frame, silo):
        told = read_frame(frame)
        return None if (told.kind, told.head.get("records")) == ("offer", "holdout") else silo(frame)

    with made.opened(seeded=False) as channel:
        channel.faults = {"silo-02": misses}
        deploy(parse(EVALUATED), federation, channel, out)
        assert state_of(out) == "outstanding"
        channel.faults = {}
        deploy(parse(EVALUATED), federation, channel, out, resume=True)
    assert load_run(out).summary.evaluation
    for config in made.configs.values():
        runs = read(config.ledger).runs.values()
        told = [(run.records, len(run.rounds), run.open) for run in runs]
        assert told == [("training", 6, False), ("holdout", 1, False)]
