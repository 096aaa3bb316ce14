"""A deployed silo that its operator enrolled as public: released as it is, free, and so for life."""

import json
import math

import pytest
import torch
import yaml
from support.channels import enrolled_federation
from support.deployed import SCENARIO, calling, enrolled, offer_of, resolved_of, write_silos
from support.scenarios import invoke

from fedsim.api.run import load_run
from fedsim.common.errors import InputError, Refused
from fedsim.deployment.history import admitted_of
from fedsim.deployment.run import deploy
from fedsim.problems.glm import LogisticRegression
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.wire.messages import Admission, Offer
from silos.front.config import load_config
from silos.front.silo import Silo

PUBLIC = "silo-01"


def test_a_run_with_one_is_the_simulated_one(tmp_path):
    problem = {"name": "logistic_regression", "silo_weights": "precision"}
    resolved = resolved_of(problem=problem)
    found = enrolled_federation(tmp_path, resolved, public=[PUBLIC], seeded=False)
    with found.opened(seeded=False) as channel:
        outcome = deploy(resolved.scenario, found.federation, channel, tmp_path / "run")
    budgets = dict.fromkeys(resolved.names, 2.0) | {PUBLIC: "public"}
    privacy = {"epsilon": budgets, "delta": 1e-6}
    simulated = resolve(parse({**SCENARIO, "problem": problem, "privacy": privacy}))
    assert outcome.resolved.weights == simulated.weights
    summary = load_run(tmp_path / "run").summary
    rows = {row.name: row for row in summary.privacy.silos}
    own = rows.pop(PUBLIC)
    assert own.guarantee == "no guarantee: public"
    assert (own.epsilon_guaranteed, own.epsilon_spent, own.noise_multiplier) == (None, None, 0.0)
    assert all(0 < row.epsilon_guaranteed <= 2 and row.guarantee is None for row in rows.values())
    written = tmp_path / "run" / "receipts" / f"{PUBLIC}.json"
    key = tmp_path / PUBLIC / "state" / "identity.pub"
    receipt = json.loads(written.read_text())
    assert receipt["charged"] == {"mu_sq": 0.0, "epsilon": 0.0, "delta": 0.0, "distance": 0.0}
    assert "no guarantee: public" in (tmp_path / "run" / "report.html").read_text()
    assert "nothing is guaranteed: public" in invoke("ledger", "verify", written, "--key", key)


def test_a_silo_that_guarantees_nothing_must_have_greeted_as_public(tmp_path):
    budgets = {"silo-00": "public", "silo-01": 2.0, "silo-02": 2.0}
    resolved = resolved_of(privacy={"epsilon": budgets, "delta": 1e-6})
    said = {"epsilon": None, "delta": 1e-6, "noise_multiplier": 0.0, "epsilon_guaranteed": None}
    hexes = dict.fromkeys(("session", "run", "head"), "0" * 64)
    admission = Admission(**said, **hexes, releases=6, accountant="none", notices=())
    offers = {name: Offer(**offer_of(resolved, name) | {"epsilon": 2.0}) for name in resolved.names}
    assert admitted_of(resolved, offers["silo-00"], admission).terms.public
    with pytest.raises(Refused, match="silo 'silo-01' guarantees nothing, and did not greet as a public one"):
        admitted_of(resolved, offers["silo-01"], admission)
    some = admission.model_copy(update={"epsilon": 2.0, "epsilon_guaranteed": 1.9})
    assert not admitted_of(resolved, offers["silo-01"], some).terms.public


def test_it_answers_without_clip_and_noise_whatever_is_offered_and_pays_nothing(tmp_path):
    resolved = resolved_of(algorithm={**SCENARIO["algorithm"], "clip_norm": 1e-3})
    (config, *_) = enrolled(write_silos(tmp_path, resolved, public=["silo-00"]))
    with calling(config) as caller:
        assert caller.send("hello").head["public"] is True
        admission = caller.admitted(offer_of(resolved, "silo-00"))
        assert (admission["epsilon_guaranteed"], admission["noise_multiplier"]) == (None, 0.0)
        w = torch.zeros(5, dtype=torch.float64)
        (g,) = caller.asked(admission["run"], 0, w=w).values()
        assert caller.silo.ledger.account.reserved.mu_sq == 0
        assert caller.closed(admission["run"])["epsilon_spent"] is None
    records = config.records.open()
    design = records.design(range(records.num_rows))
    x, y = torch.as_tensor(design.features), torch.as_tensor(design.target).double()
    expected = ((LogisticRegression(5).losses and torch.sigmoid(x @ w)) - y) @ x / len(y)
    torch.testing.assert_close(g, expected)
    assert math.isfinite(float(g.norm()))
    assert float(g.norm()) > 1e-3


def test_a_private_silo_never_becomes_public_nor_a_public_one_private(tmp_path):
    for public in ([], ["silo-00"]):
        folder = tmp_path / str(len(public))
        path, *_ = write_silos(folder, resolved_of(), public=public)
        enrolled([path])
        tree = yaml.safe_load(path.read_text()) | {"public_silo": not public}
        path.write_text(yaml.safe_dump(tree))
        with pytest.raises(InputError, match=r"silo.public_silo: .*enrol anew elsewhere"):
            Silo.open(load_config(path))


def test_no_scenario_or_offer_can_say_it(tmp_path):
    resolved = resolved_of()
    found = enrolled_federation(tmp_path, resolved)
    epsilon = dict.fromkeys(resolved.names, 2.0) | {PUBLIC: "public"}
    scenario = parse({**SCENARIO, "privacy": {"epsilon": epsilon}})
    with found.opened(seeded=True) as channel, pytest.raises(InputError, match="own operator says"):
        deploy(scenario, found.federation, channel, tmp_path / "run")
    folder = tmp_path / "alone"
    (config, *_) = enrolled(write_silos(folder, resolved))
    with calling(config) as caller:
        assert "public" not in caller.send("hello").head
        offer = offer_of(resolved, "silo-00")
        assert "public" in caller.refused("offer", **{**offer, "public": True})
        admission = caller.admitted({**offer, "epsilon": 1e6})
        assert 0 < admission["epsilon_guaranteed"] <= 4  # of its own policy
