"""The table of clashes: each row is refused at each of its doors, by its words, in what each door does.

A fact is some fields of a scenario. A row is tried with its facts, at one door at a time: all other rows are
taken out of the table, so that what refuses is that row at that door, by facts that are true of the run.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from support.rosters import Parties
from support.scenarios import once

import fedsim
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.api.release import release
from fedsim.common.errors import InputError, Refused
from fedsim.data.dataset import Reserve
from fedsim.deployment.offers import check_offer, deployable, offers_of
from fedsim.problems.glm import LogisticRegression
from fedsim.problems.kinds import Problem
from fedsim.protocol import clashes
from fedsim.protocol import facts as gate_rows
from fedsim.protocol.batch import FULL, Batch, Poisson
from fedsim.protocol.clashes import CLASHES
from fedsim.protocol.contract import Public, Query, Round
from fedsim.protocol.dryrun import Trace, dry_run
from fedsim.protocol.facts import Clash, Facts
from fedsim.protocol.limits import Limits
from fedsim.protocol.unit import RECORD, PersonAccount
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview
from fedsim.simulation.side_by_side import fold_key
from fedsim.testing.attacks.setting import prepare
from fedsim.wire.messages import Profile
from server.participation import schedule
from silos.front.config import Policy
from silos.front.offers import Proposal, admissible, proposal_of
from silos.front.pooled import Pinned

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (240, 3)).round(2)
TABLE: dict[str, Any] = {
    "features": X,
    "target": (X[:, 0] > 0).astype(int),
    "silo": np.resize(["A", "B", "C"], 240),
    "ranges": (-1.0, 1.0),
    "group": np.where(X[:, 1] > 0, "a", "b"),
}
DATA = {
    "record": fedsim.Arrays(**TABLE, test_fraction=0.25),
    "person": fedsim.Arrays(**TABLE, test_fraction=0.25, person=np.repeat(np.arange(80), 3)),
}
BASE = once(
    seed=1,
    partition="natural_id",
    problem={"name": "logistic_regression"},
    algorithm={"num_rounds": 2},
    runtime={"name": "inprocess"},
    report={"clipping": False},
)


@dataclass(frozen=True)
class Asking(NoisyMinibatchSGD):
    """One round that asks for something."""

    what: str = "gradient"
    options: tuple[float, ...] = ()
    batch: Batch = FULL
    keeps: bool = False
    twice: bool = False
    any_size: ClassVar[bool] = True

    def silo(self, problem, broadcast, ask, memory):
        points = (broadcast["w"],) if self.what in ("gradient", "mistakes") else ()
        if self.keeps:
            memory["kept"] = memory["kept"] + 1
        found = {"g": ask(Query(self.what, points, 1.0, self.batch, 1.0, self.options))}
        return found | ({"h": found["g"][:, :2]} if self.twice else {})

    def server(self, w, problem, public, rng):
        for _ in range(self.num_rounds):
            yield Round({"w": w}, answer=w)
        return w


def asks(what: str, *options: float, **more: Any) -> dict[str, Any]:
    return {"asks": Asking(num_rounds=2, step_size=0.5, clip_norm=1.0, what=what, options=options, **more)}


class Own2(LogisticRegression):
    """A problem that fedsim does not ship."""


def unit(**fields: Any) -> dict[str, Any]:
    return {"privacy.unit": {"name": "person", **fields}}


RULE = unit(bound="limit", h={"choose": "quantile", "share": 0.1})
SUMS = {"privacy.mechanism": "summed_gaussian", "privacy.honest_fraction": 1.0}
ADDED = unit(relation="add_remove") | {"privacy.expected_persons": 25, "privacy.delta": 1e-4}
GIVEN = {"privacy.calibration": "sigma", "privacy.noise_multiplier": 3.0}
ALONE = {"privacy.mechanism": "attribute_gaussian", "algorithm.name": "fair_minibatch_sgd"}
ALONE |= {"problem.fairness": {"notion": "demographic_parity", "weight": 1.0}, "problem.silo_weights": "size"}
SAMPLED = {"algorithm.batch": {"sampler": "subsample", "fraction": 0.5}}
NETWORK = {"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}
PUBLIC = fedsim.Arrays(X[:60], TABLE["target"][:60], ranges=(-1.0, 1.0))
TUNED = {"grid": {"algorithm.step_size": [0.3, 0.5]}, "repetitions": 1, "private": {"fraction": 0.4}}

ITS_OTHERS: dict[str, tuple[dict[str, Any], ...]] = {
    "minimiser or label_projection": (asks("label_projection"),),
    "statistics with a small spread on Poisson batches": tuple(
        asks(what, *options, batch=Poisson(0.5))
        for what, *options in (("sum", 0, -1, 1), ("histogram", 1, 0, -1, 0, 0.4, 1), ("second_moment", 1))
    ),
    "noise that is not Gaussian": ({"privacy.mechanism": "none"},),
    "an algorithm that is not linear or has memory": (
        {"algorithm.name": "local_sgd", "algorithm.local_steps": 2},
    ),
    "no budget": ({"privacy.epsilon": "unlimited"} | GIVEN,),
    "shuffled messages": (SUMS | {"privacy.mechanism": "shuffled_gaussian"},),
    "a simulation's mechanism": ({"privacy.mechanism": "none"},),
}
"""Other ways to the same fact."""

SETTINGS: dict[str, dict[str, Any]] = {
    "unit record": {},
    "unit person": unit(),
    "bound clip or mean": unit(),
    "bound clip": unit(),
    "whitened_newton": {"algorithm": {"name": "whitened_newton", "num_rounds": 2, "moment_clip": 2.0}},
    "add_remove": ADDED,
    "a unit is replaced": {},
    "replace_person": unit(bound="limit", h=2),
    "replace_values": unit(relation="replace_values"),
    "label_projection": asks("label_projection"),
    "silos_per_person above 1": unit(silos_per_person=2),
    "h to be chosen": RULE,
    "a stage for h": RULE,
    "no histogram of records": {"without stages": True},
    "contributions": asks("contributions", 1, 2, 4),
    "minimiser or label_projection": asks("minimiser", 0.5, 8, 1),
    "an exponential mechanism": asks("quantile", 0, 0.5, -1, 0, 1),
    "a private clip": {"algorithm.clip_norm": {"quantile": 0.5, "rounds": 1, "share": 0.1}},
    "statistics beside gradients": asks("histogram", 1, 0, -1, 0, 0.4, 1),
    "statistics that ask no group": asks("gradient") | {"problem.fairness": None},
    "statistics beside counts": {},
    "batches drawn at random": SAMPLED,
    "batches of a fixed size": SAMPLED,
    "statistics with a small spread on Poisson batches": asks("mistakes", batch=Poisson(0.5)),
    "secure aggregation": SUMS,
    "shuffled messages": SUMS | {"privacy.mechanism": "shuffled_binomial"},
    "protection of groups alone": ALONE,
    "a simulation's mechanism": ALONE,
    "noise that is not Gaussian": SUMS,
    "public silo": {"privacy.epsilon": {"A": 1.0, "B": "public", "C": 1.0}},
    "memory": asks("gradient", keeps=True),
    "messages of several sizes": asks("gradient", twice=True),
    "an algorithm that is not linear or has memory": asks("gradient", keeps=True),
    "held-out records": {"of the offer": {"records": "holdout"}},
    "float32": {"runtime.dtype": "float32"},
    "a plug-in's problem": {"problem is": Own2(4)},
    "prepare": {"prepare": [{"name": "standardise", "share": 0.1}]},
    "unlimited": GIVEN | {"privacy.epsilon": "unlimited"},
    "noise drawn at once": {"runtime.noise": "aggregate"},
    "evaluate": {"evaluate": {"bins": 10}},
    "a fit at home": {"report": {"at_home": True, "baselines": True}},
    "a loss without one": {"problem": {"name": "hinge_loss"}},
    "own models": {
        "algorithm": {
            "name": "mean_regularised",
            **dict.fromkeys(("num_rounds", "step_size", "clip_norm", "own_step_size", "pull"), 1),
        }
    },
    "evaluate by bins and group": {"evaluate": {"bins": 10, "by_group": True}},
    "no budget": {"privacy.epsilon": {"A": 1.0, "B": "public", "C": 1.0}},
    "counts of clipped terms": {"report.clipping": True},
    "hosts of silos": {"runtime.name": "ray", "runtime.silo_hosts": 2},
    "a silo named as public": {"privacy.epsilon": {"A": 1.0, "B": "public", "C": 1.0}},
    "an object": asks("gradient"),
    "no constant feature": {"of the data": {"intercept": False}},
    "records put aside": {"of the data": {"reserve": Reserve(fraction=0.4)}},
    "a sweep": {"sweep": {"grid": {"algorithm.step_size": [0.3, 0.5]}}},
    "a device": {"runtime.device": "cuda", "problem": NETWORK},
    "code in a confined process": asks("gradient"),
    "private tuning": {"sweep": {"tune": TUNED}},
    "a calibration beside accountant": GIVEN,
    "a network": {"problem": NETWORK},
    "other silos in every round": {"participation": {"name": "availability", "probability": 0.5}},
    "noise that is given": GIVEN,
    "parameters by a theorem": {"algorithm.parameters": "theorem"},
    "a plug-in": {"algorithm.name": "module:Class"},
    "answers of any size": {"algorithm.name": "sufficient_statistics"},
    "weights by precision": {"problem.silo_weights": "precision"},
    "a unit of persons": unit(),
    "public records": {"public": PUBLIC, "problem.public": {"weight": 0.0}},
}
"""What makes a fact true: a new one is an entry."""


def setting(row: Clash, door: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A scenario with the row's facts, and what stands beside it."""
    tree, beside = copy.deepcopy(BASE), dict[str, Any]()
    known = {"sweep": {"grid": {"algorithm.step_size": [0.3, 0.5]}}} if door == "sweep" else {}
    facts = [fact for fact in row.facts if (fact, door) != ("public silo", "offer")]  # that is for it to say
    for dotted, value in chain(known.items(), *(SETTINGS[fact].items() for fact in facts)):
        *parents, last = dotted.split(".")
        if " " in dotted or dotted == "asks":
            beside[dotted] = value
            continue
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        own = branch.get(last)
        both = isinstance(value, dict) and isinstance(own, dict) and own.get("name") == value.get("name")
        branch[last] = own | value if both else copy.deepcopy(value)
    return tree, beside


def run_of(tree: dict[str, Any], beside: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Resolved:
    if "without stages" in beside:
        monkeypatch.setattr("fedsim.scenario.resolve.with_h", lambda scenario, stages, *_: (scenario, ()))
    data = DATA["person" if "unit" in tree["privacy"] else "record"]
    data = data.model_copy(update=beside.get("of the data", {}))
    update: dict[str, Any] = {"data": data}
    if "asks" in beside:
        update["algorithm"] = GivenAlgorithm.of(beside["asks"])
    scenario = parse({**tree, "data": data})
    resolved = resolve(scenario.model_copy(update=update))
    return replace(resolved, problem=beside["problem is"]) if "problem is" in beside else resolved


class Here(NamedTuple):
    """In place of a confined process."""

    proposal: Proposal

    def dry_run(self, public: Public, seed: int, limits: Limits, problem: Problem) -> Trace:
        return dry_run(self.proposal.algorithm, problem, public, seed, limits)


def silo_s(resolved: Resolved, row: Clash, beside: dict[str, Any], only: Callable[[], None]) -> None:
    """What silo A says to the offer that a server without a table would make."""
    scenario, outline = resolved.scenario, resolved.outline
    private, parties, roster, pins = scenario.privacy, Parties(3), None, None
    parties.silos = dict(zip("ABC", parties.silos.values(), strict=True))
    if resolved.sums is not None:
        roster = parties.made()
        pins = Pinned({roster.digest: roster}, parties.silos["A"])
    rounds = schedule(3, resolved.active, resolved.trace.holds, 1, 0)
    plain = replace(
        resolved,
        scenario=scenario.model_copy(update={"algorithm": parse({**BASE, "data": DATA["record"]}).algorithm}),
    )
    offer = offers_of(resolved if "asks" not in beside else plain, "ab" * 32, rounds, roster)["A"]
    account = RECORD if private.unit == RECORD else PersonAccount(private.unit.relation)
    life = {"epsilon": 500.0, "delta": 0.01, "expires": date.today() + timedelta(days=9)}
    policy = Policy.model_validate({"lifetime": life | {"sampled": {"epsilon": 500.0, "delta": 0.01}}})
    public = "public silo" in row.facts
    told = {field: getattr(outline, field) for field in ("num_features", "num_classes", "groups")}
    own = Profile(silo="A", n=outline.sizes["A"], unit=account, public=public, **told)
    proposal = proposal_of(offer, policy, own, pins)
    proposal = replace(proposal, offer=offer.model_copy(update=beside.get("of the offer", {})))
    if "asks" in beside:
        proposal = replace(proposal, algorithm=beside["asks"])
    if "problem is" in beside:
        proposal = replace(proposal, problem=beside["problem is"])
    if "code in a confined process" in row.facts:
        proposal = replace(proposal, isolated=Here(proposal))
    only()
    admissible(proposal, policy, own)


ITS_OWN = {"public silo", "held-out records"}  # what a silo alone knows


def tried(row: Clash, door: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Go through the door, with no row but this in the table, once for each of its sides."""
    tree, beside = setting(row, door)

    def table(*rows: Clash) -> None:
        monkeypatch.setattr(clashes, "CLASHES", rows)
        monkeypatch.setattr(gate_rows, "OF_GATES", rows)

    only = row._replace(doors=(door,))
    table()
    if door in ("sweep", "tuning"):
        table(only)
        data = DATA["person" if "unit" in tree["privacy"] else "record"]
        yield lambda: fedsim.sweep(tree, data=data, workers=0, progress=False)
    elif door == "deployment":
        data = DATA["record"].model_copy(update=beside.get("of the data", {}))
        scenario = parse({**tree, "data": data})
        if "asks" in beside:
            scenario = scenario.model_copy(update={"algorithm": GivenAlgorithm.of(beside["asks"])})
        table(only)
        yield lambda: deployable(scenario)
    elif door == "release":
        table(only)
        yield lambda: release(tree, {"x0": fedsim.Mean()}, data=DATA["person"])
    elif door == "scenario":
        table(only)
        yield lambda: run_of(tree, beside, monkeypatch)
    else:
        resolved = run_of(tree, beside, monkeypatch)
        if door == "offer":
            yield lambda: silo_s(resolved, row, beside, lambda: table(only))
            if not ITS_OWN & set(row.facts):
                yield lambda: check_offer(resolved)
        else:
            table(only)
            yield lambda: {"gate": preview, "audit": prepare}[door](resolved)


DOORS = [(row, door) for row in CLASHES for door in row.doors if door != "fold"]
FOLDS = [row for row in CLASHES if "fold" in row.doors]
WAYS = [
    (row, door, way)
    for row, door in DOORS
    for way in ({}, *({fact: own} for fact in row.facts for own in ITS_OTHERS.get(fact, ())))
]


@pytest.mark.parametrize(
    ("row", "door", "way"), WAYS, ids=[f"{door}: {' x '.join(row.facts)}" for row, door, _ in WAYS]
)
def test_a_row_is_refused_at_each_of_its_doors_by_its_words(
    row: Clash, door: str, way: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for fact, own in way.items():
        monkeypatch.setitem(SETTINGS, fact, own)
    words = [word for part in row.words.split("{0}") for word in part.split("{1}")]
    for refused in tried(row, door, monkeypatch):
        with pytest.raises((InputError, Refused)) as caught:
            refused()
        assert all(word in str(caught.value) for word in words), str(caught.value)
        if isinstance(caught.value, InputError):
            assert caught.value.field == f"scenario.{row.field}"


@pytest.mark.parametrize("row", FOLDS, ids=[row.facts[0] for row in FOLDS])
def test_what_does_not_fold_is_a_row(row: Clash, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, _ = setting(row, "fold")
    assert fold_key(tree) is None
    monkeypatch.setattr(clashes, "CLASHES", [other for other in CLASHES if other != row])
    assert fold_key(tree) is not None or row.facts == ("answers of any size",)


def test_a_fact_that_a_door_does_not_know_is_an_error() -> None:
    with pytest.raises(LookupError, match="not known here"):
        clashes.check(Facts(None, {}), "gate")
