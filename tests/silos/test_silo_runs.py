"""Whole runs through deployed silos: as simulated, through retries, restarts and runs at the same time."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from support.deployed import POLICY, Caller, SilosLink, enrolled, offer_of, resolved_of, write_silos
from torch import Tensor

import silos.front.offers
from fedsim.common.identity import is_signed, public_key
from fedsim.protocol.batch import Fresh
from fedsim.protocol.contract import Query, Round
from fedsim.protocol.receipts import verified_receipt
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.trial import trial_of
from fedsim.wire.frames import Frame, decode, encode, opened, sealed
from server.aggregate import weighted
from server.loop import run
from silos.front import open_runs
from silos.front.config import Config, load_config
from silos.front.silo import Silo
from silos.vault.records import Records

SESSION = "ab" * 32
POINT = torch.zeros(5, dtype=torch.float64)

Federation = tuple[Resolved, list[Config], list[Caller]]


@pytest.fixture
def federate(tmp_path):
    """`federate(seeded=..., policy=..., **sections)`: enrolled silos, open, each with its caller."""
    opened: list[Caller] = []

    def make(*, seeded=False, policy=None, **sections):
        resolved = resolved_of(**sections)
        configs = enrolled(write_silos(tmp_path / "silos", resolved, seeded=seeded, policy=policy))
        callers = [Caller(Silo.open(config, seeded)) for config in configs]
        opened.extend(callers)
        return resolved, configs, callers

    yield make
    for caller in opened:
        caller.silo.close()


def admit_all(resolved: Resolved, callers: Sequence[Caller], **changes: Any) -> list[Mapping[str, Any]]:
    offers = [offer_of(resolved, name, **changes) for name in resolved.names]
    return [caller.admitted(offer) for caller, offer in zip(callers, offers, strict=True)]


def trained(resolved: Resolved, link: SilosLink, admitted: Sequence[Mapping[str, Any]]) -> Tensor:
    everyone = list(range(len(resolved.names)))
    public = resolved.public([each["noise_multiplier"] for each in admitted])
    rounds = [everyone] * len(resolved.trace.plan.rounds)
    args = resolved.algorithm, resolved.problem, public, resolved.scenario.seed
    *_, last = run(*args, link, rounds, weighted)
    return last.answer


OWN = {
    "noisy_minibatch_sgd": {"step_size": 0.5, "clip_norm": 1.0},
    "whitened_newton": {"moment_clip": 2.0},
}


@pytest.mark.parametrize("algorithm", OWN)
def test_a_silo_that_is_drawn_for_no_round_accepts_and_answers_nothing(federate, algorithm):
    section = {"name": algorithm, "num_rounds": 1} | OWN[algorithm]
    resolved, _, (silo, *_) = federate(algorithm=section, policy={"min_noise_multiplier": 0.1})
    before = silo.silo.ledger.account.left
    admission = silo.admitted(offer_of(resolved, resolved.names[0], rounds=()))
    assert (admission["releases"], admission["epsilon_guaranteed"]) == (0, 0.0)
    assert "round 0 is not in its plan" in silo.refused(
        "ask", {"w": POINT}, run=admission["run"], round=0, mark=None
    )
    closed = silo.closed(admission["run"])
    assert (closed["rounds"], closed["epsilon_spent"]) == ([], 0.0)
    assert silo.silo.ledger.account.left == before


def restarted(caller: Caller, config: Config, seeded: bool = False) -> None:
    """The silo's process ends, and another one takes its place."""
    caller.silo.close()
    caller.silo = Silo.open(config, seeded)


HEART = Path(__file__).parents[2] / "scenarios" / "heart_disease.csv"
BY_SEX = {"name": "csv", "path": str(HEART), "schema": str(HEART.with_suffix(".schema.yaml"))}
BY_SEX |= {"target": "disease", "silo_column": "hospital", "attribute": "sex"}
SCENARIOS: dict[str, dict[str, Any]] = {
    "full batches": {},
    "fresh batches, local steps": {
        "algorithm": {
            "name": "local_sgd",
            "num_rounds": 2,
            "local_steps": 3,
            "step_size": 0.5,
            "clip_norm": 1.0,
            "batch": {"sampler": "fresh", "fraction": 0.1},
        }
    },
    "subsampled anchors, a ball": {
        "algorithm": {
            "name": "prox_svrg",
            "epochs": 2,
            "inner_steps": 2,
            "step_size": 0.5,
            "clip_norm": 1.0,
            "difference_clip": 1.0,
            "batch": {"sampler": "subsample", "fraction": 0.3},
        },
        "problem": {"name": "logistic_regression", "constraint": {"name": "l2_ball", "radius": 2.0}},
    },
    "own models": {
        "algorithm": {
            "name": "mean_regularised",
            "num_rounds": 6,
            "step_size": 0.5,
            "own_step_size": 0.3,
            "pull": 0.5,
            "clip_norm": 1.0,
        }
    },
    "costs by group": {
        "data": BY_SEX | {"attribute_is_feature": False, "test_fraction": 0.1},
        "partition": "natural_id",
        "problem": {
            "name": "logistic_regression",
            "silo_weights": "size",
            "fairness": {"notion": "equalized_odds", "weight": 1.0},
        },
        "algorithm": {"name": "fair_minibatch_sgd", "num_rounds": 6, "step_size": 0.5, "clip_norm": 1.0},
    },
    "a network, float32": {
        "problem": {"name": "neural_network", "model": {"name": "mlp", "hidden": [3]}},
        "runtime": {"name": "inprocess", "dtype": "float32"},
    },
    **{
        f"persons, bound {unit['bound']}": {
            "data": {"name": "visits", "num_silos": 3, "persons_per_silo": 30},
            "partition": {"name": "natural_id"},
            "privacy": {"epsilon": 2.0, "delta": 1e-6, "unit": {"name": "person", **unit}},
        }
        for unit in ({"bound": "clip"}, {"bound": "mean"}, {"bound": "smooth", "h": 2})
    },
}


@pytest.mark.parametrize("sections", SCENARIOS.values(), ids=SCENARIOS)
def test_a_seeded_run_is_the_simulated_one(federate, sections):
    resolved, _, callers = federate(seeded=True, report={"baselines": False}, **sections)
    admitted = admit_all(resolved, callers)
    model = trained(resolved, SilosLink(callers, [each["run"] for each in admitted]), admitted)
    simulated = trial_of(resolved, 0)
    while not simulated.finished:
        simulated.advance(10)
    expected = simulated.result()
    tolerance = 1e-9 if model.dtype == torch.float64 else 1e-4
    assert torch.allclose(model, expected.models["private"], rtol=tolerance, atol=0.0)
    for caller, own, statement in zip(callers, admitted, expected.statements, strict=True):
        closed = caller.closed(own["run"])
        assert own["epsilon_guaranteed"] == statement.admitted.epsilon_guaranteed
        assert own["noise_multiplier"] == statement.admitted.noise_multiplier
        assert (closed["rounds"], closed["epsilon_spent"]) == (statement.rounds, statement.epsilon_spent)
        if model.dtype == torch.float64 and not sections:  # grouping silos changes rounding, not here
            assert closed["broadcasts"] == statement.digests


def test_that_noise_comes_from_a_seed_is_said_everywhere(federate):
    resolved, _, (caller, *_) = federate(seeded=True)
    said = "nothing is private"
    assert said in caller.send("hello").head["notices"][0]
    own = caller.admitted(offer_of(resolved, "silo-00"))
    assert said in own["notices"][0]
    caller.asked(own["run"], 0, w=POINT)
    key = (caller.silo.ledger.enrolment.identity, caller.closed(own["run"])["receipt"])
    assert said in verified_receipt(key[1], key[0])["notices"][0]


def test_without_a_seed_noise_is_exact_and_never_the_same(federate):
    resolved, _, (caller, *_) = federate()
    assert caller.send("hello").head["notices"] == []
    one = caller.admitted(offer_of(resolved, "silo-00"))
    other = caller.admitted(offer_of(resolved, "silo-00", session=SESSION))
    assert one["notices"] == []
    a, b = (caller.asked(each["run"], 0, w=POINT)["g"] for each in (one, other))
    assert not torch.equal(a, b)


def test_above_the_policys_dimension_noise_is_floating_point_and_says_so(federate):
    resolved, _, (caller, *_) = federate(policy={"exact_noise_dimension": 4})
    assert "floating point" in caller.admitted(offer_of(resolved, "silo-00"))["notices"][0]


def test_the_same_offer_is_the_same_run_byte_for_byte(federate):
    resolved, (config, *_), (caller, *_) = federate()
    caller.send("hello")
    offer = {**offer_of(resolved, "silo-00"), "head": caller.head}
    first = caller.raw("offer", **offer)
    caller.admitted(offer)
    caller.asked(str(caller.silo.ledger.session(offer["session"]).run), 0, w=POINT)
    assert caller.raw("offer", **offer) == first
    restarted(caller, config)
    assert caller.raw("offer", **{**offer, "head": ""}) == first
    assert len(caller.silo.ledger.book.runs) == 1


def test_the_same_request_gets_the_same_bytes_also_after_a_restart_and_of_a_closed_run_none(federate):
    resolved, (config, *_), (caller, *_) = federate()
    own = caller.admitted(offer_of(resolved, "silo-00"))["run"]
    ask = {"run": own, "round": 0, "head": caller.head}
    first = caller.raw("ask", {"w": POINT}, **ask)
    caller.admitted(offer_of(resolved, "silo-00", session=SESSION))  # the chain goes on
    assert caller.raw("ask", {"w": POINT}, **ask) == first
    restarted(caller, config)
    assert caller.raw("ask", {"w": POINT}, **ask) == first
    close = {"run": own, "head": caller.head}
    closed = caller.raw("close", **close)
    assert caller.raw("close", **close) == closed
    restarted(caller, config)
    assert caller.raw("close", **close) == closed
    assert caller.refused("ask", {"w": POINT}, run=own, round=0) == "the run is closed"


@dataclass(frozen=True)
class Momentum:
    """Its silo method remembers what it was answered."""

    linear: ClassVar[bool] = True
    num_rounds: int = 6

    def server(self, w: Tensor, problem: Any, public: Any, rng: np.random.Generator) -> Any:
        for _ in range(self.num_rounds):
            w = w - (yield Round({"w": w}, answer=w))["m"]
        return w

    def silo(self, problem: Any, broadcast: Mapping[str, Tensor], ask: Any, memory: Any) -> Any:
        memory["m"] = 0.9 * memory["m"] + ask(Query("gradient", (broadcast["w"],), 1.0))
        return {"m": memory["m"]}


def test_a_restart_in_mid_run_goes_on_with_memory(federate, monkeypatch):
    monkeypatch.setattr("silos.front.offers.algorithm_of", lambda *given: Momentum())
    resolved, configs, callers = federate(seeded=True)
    resolved = replace(resolved, algorithm=Momentum())
    whole = admit_all(resolved, callers)
    unbroken = trained(resolved, SilosLink(callers, [each["run"] for each in whole]), whole)
    again = admit_all(resolved, callers, session=SESSION)

    class Restarting(SilosLink):
        def answer(self, round_index, *rest):
            if round_index in (1, 4):
                for caller, config in zip(callers, configs, strict=True):
                    restarted(caller, config, seeded=True)
            return super().answer(round_index, *rest)

    broken = trained(resolved, Restarting(callers, [each["run"] for each in again]), again)
    assert torch.equal(broken, unbroken)


def test_a_gate_that_had_to_make_room_goes_on_where_it_was(federate, monkeypatch):
    monkeypatch.setattr("silos.front.open_runs.GATES", 1)
    monkeypatch.setattr("silos.front.open_runs.PLANS", 0)
    monkeypatch.setattr("silos.front.offers.algorithm_of", lambda *given: Momentum())
    resolved, _, (caller, *_) = federate(seeded=True)
    runs = [
        caller.admitted(offer_of(resolved, "silo-00", epsilon=0.5, session=digit * 64))["run"]
        for digit in "123"
    ]
    replies = [[caller.asked(own, r, w=POINT)["m"] for own in runs] for r in range(3)]
    assert len(caller.silo._runs._held) == 1
    for same in replies:  # noise of one seed, and memory of its own
        assert torch.equal(same[0], same[1])
        assert torch.equal(same[0], same[2])
    assert not torch.equal(replies[1][0], replies[0][0])


@pytest.mark.parametrize("room", [2**24, 0])
def test_open_runs_are_tried_out_once_although_their_gates_make_room(federate, monkeypatch, room):
    """Of six runs that are asked in turn; without room for plans each ask of an old one costs a dry run."""
    tried, real = [], silos.front.offers.admissible

    def counted(*given):
        tried.append(given)
        return real(*given)

    monkeypatch.setattr("silos.front.offers.admissible", counted)
    monkeypatch.setattr("silos.front.open_runs.PLANS", room)
    resolved, _, (caller, *_) = federate(seeded=True)
    offers = [offer_of(resolved, "silo-00", epsilon=0.3, session=digit * 64) for digit in "123456"]
    runs = [caller.admitted(offer)["run"] for offer in offers]
    for r in range(2):
        for own in runs:
            caller.asked(own, r, w=POINT)
    gates = caller.silo._vault._gates
    assert len(gates) == open_runs.GATES
    assert (len(tried) == len(runs)) == bool(room)
    caller.silo._runs._trying.acquire()  # another offer is being tried out
    gates.clear()
    assert (
        caller.asked(runs[0], 2, w=POINT)
        if room
        else caller.refused("ask", {"w": POINT}, run=runs[0], round=2)
    )
    caller.silo._runs._trying.release()
    assert [caller.closed(own)["rounds"] for own in runs[1:]] == [[0, 1]] * 5


def test_fresh_batches_are_the_same_after_a_restart(federate, monkeypatch):
    """A permutation redrawn after a restart would use a record twice, for the price of once."""
    seen, real = list[int](), Records.batch

    def batch(records, drawing, indices):
        seen.extend(int(i) for own in indices for i in own)
        return real(records, drawing, indices)

    monkeypatch.setattr(Records, "batch", batch)
    fresh = {"sampler": "fresh", "fraction": 0.25}
    algorithm = {"name": "prox_sgd", "num_rounds": 4, "step_size": 0.5, "clip_norm": 1.0, "batch": fresh}
    resolved, (config, *_), (caller, *_) = federate(algorithm=algorithm)
    assert resolved.algorithm.batch == Fresh(0.25)
    own = caller.admitted(offer_of(resolved, "silo-00"))["run"]
    for r in range(4):
        restarted(caller, config)
        caller.asked(own, r, w=POINT)
    assert resolved.sizes[0] == 32
    assert sorted(seen) == list(range(32))


def test_two_runs_at_once_compose_and_the_third_does_not_fit(federate):
    lifetime = {
        **POLICY["lifetime"],
        "epsilon": 3.0,
        "delta": 1e-5,
        "sampled": {"epsilon": 0.0, "delta": 0.0},
    }
    resolved, (config, *_), (caller, *_) = federate(policy={"lifetime": lifetime})
    ledger = caller.silo.ledger
    offers = [offer_of(resolved, "silo-00", epsilon=2.0, delta=1e-6, session=c * 64) for c in "1234"]
    runs = [caller.admitted(offer)["run"] for offer in offers[:2]]
    left = ledger.account.left
    reason = caller.refused("offer", **offers[2])
    assert "the silo's lifetime budget cannot carry this run" in reason
    assert (ledger.account.left, len(ledger.book.runs)) == (left, 2)
    for r in range(2):
        for own in runs:
            caller.asked(own, r, w=POINT)
    restarted(caller, config)
    assert caller.silo.ledger.account.left == left
    caller.closed(runs[0])  # what it did not use returns
    caller.admitted(offers[2])
    assert "lifetime budget" in caller.refused("offer", **offers[3])


def test_a_run_whose_days_are_over_answers_no_more_and_still_closes(federate):
    resolved, (config, *_), (caller, *_) = federate(policy={"run_days": 1e-5})  # 0.9 s
    own = caller.admitted(offer_of(resolved, "silo-00"))["run"]
    held = caller.silo.ledger.account.left.mu_sq
    while caller.silo.ledger.run(own).open:
        caller.silo.ledger.expire()
    assert caller.refused("ask", {"w": POINT}, run=own, round=0) == "the run is closed"
    assert caller.silo.ledger.account.left.mu_sq > held
    closed = caller.closed(own)
    assert (closed["epsilon_spent"], closed["rounds"]) == (0.0, [])
    restarted(caller, config)
    assert caller.closed(own) == closed


def test_a_run_admitted_under_another_policy_is_only_closed(federate, tmp_path):
    resolved, _, (caller, *_) = federate()
    own = caller.admitted(offer_of(resolved, "silo-00"))
    caller.asked(own["run"], 0, w=POINT)
    path = tmp_path / "silos" / "silo-00" / "silo.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["policy"]["per_run"]["epsilon"] = 1.0
    path.write_text(yaml.safe_dump(tree))
    restarted(caller, load_config(path))
    assert "another policy" in caller.refused("ask", {"w": POINT}, run=own["run"], round=1)
    assert caller.closed(own["run"])["epsilon_spent"] == own["epsilon_guaranteed"]


def test_a_run_whose_plan_has_become_another_is_not_gone_on_with(federate, monkeypatch):
    monkeypatch.setattr("silos.front.offers.algorithm_of", lambda *given: Momentum())
    resolved, (config, *_), (caller, *_) = federate()
    own = caller.admitted(offer_of(resolved, "silo-00"))["run"]

    class Later(Momentum):
        """Of equal cost, by the same name, in a later version."""

        def silo(self, problem, broadcast, ask, memory):
            return {"m": ask(Query("gradient_difference", (broadcast["w"], broadcast["w"]), 1.0))}

    monkeypatch.setattr("silos.front.offers.algorithm_of", lambda *given: Later())
    restarted(caller, config)
    assert "another policy or version" in caller.refused("ask", {"w": POINT}, run=own, round=0)
    assert caller.closed(own)["rounds"] == []


def test_many_clients_at_once_get_what_one_would(federate):
    resolved, _, (caller, *_) = federate()
    offers = [{**offer_of(resolved, "silo-00", epsilon=0.3), "session": c * 64} for c in "12"]
    asked = [caller.admitted(offer)["run"] for offer in offers]
    frames = [encode(Frame("offer", {**offer, "session": "3" * 64})) for offer in offers[:1]]
    frames += [encode(Frame("ask", {"run": own, "round": 0, "head": ""}, {"w": POINT})) for own in asked]

    def answered(frame):
        while decode(opened(answer := caller.silo.answer(sealed(frame)))[0]).head.get("again"):
            time.sleep(0.01)  # the offer is being tried out for another
        return answer

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(answered, frames * 8))
    assert len(set(answers)) == 3
    assert len(caller.silo.ledger.book.runs) == 3
    assert all(len(caller.silo.ledger.run(own).debited) == 1 for own in asked)


def test_everything_that_leaves_is_signed_by_the_silo(federate):
    resolved, _, (caller, *_) = federate()
    key = public_key(caller.silo.ledger.enrolment.identity)
    own = caller.admitted(offer_of(resolved, "silo-00"))["run"]
    caller.asked(own, 0, w=POINT)
    caller.send("nonsense")
    caller.closed(own)
    for sent in caller.sent:
        assert is_signed(key, *opened(sent))
