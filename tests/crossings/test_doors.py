"""Two features meet at the doors price, simulate and deploy: all of them agree, or refuse in words."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from support.rosters import Parties

import fedsim
from crossings.features import DIMENSIONS, Crossing, covering, every, names, overrides, scenario
from crossings.walk import judge, protected, state
from fedsim.api.given import one_run, resolved_of, scenario_of
from fedsim.data.federation import outline
from fedsim.deployment.offers import deployable, offers_of
from fedsim.deployment.topology import silo_file
from fedsim.protocol.unit import RECORD, PersonAccount
from fedsim.report import summarise
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import preview, preview_evaluation
from fedsim.wire.messages import Profile
from server.participation import schedule
from silos.front.config import Policy
from silos.front.offers import admissible, proposal_of
from silos.front.pooled import Pinned
from silos.vault.considered import Admissible

SAID = ("unit", "adjacency", "title", "counted", "accountant")  # of a guarantee


pytestmark = pytest.mark.filterwarnings("ignore:step_size")


@pytest.fixture(autouse=True)
def versions_are_read_once(monkeypatch):
    monkeypatch.setattr(summarise, "_versions", cache(summarise._versions))


@cache
def _parties() -> Parties:
    parties = Parties(3)
    parties.silos = dict(zip("ABC", parties.silos.values(), strict=True))
    return parties


def deployed(tree: dict[str, Any], data: fedsim.Arrays) -> list[Admissible]:
    """What each silo says to the offer that a server would make it, by its own check; no record is read."""
    given, parties, roster, account = one_run(tree), _parties(), None, RECORD
    privacy, unit, made = given.privacy, given.privacy.unit, []
    shape = outline(data, given.partition, given.seed, unit)
    if unit != RECORD:
        account = PersonAccount(unit.relation, privacy.expected_persons, unit.silos_per_person)
    if unit.one_sided:  # what silos state of themselves
        shape = replace(shape, sizes=dict.fromkeys(shape.sizes, privacy.expected_persons))
    ready, _ = deployable(given)
    resolved = resolve(ready.model_copy(update={"data": data}), shape)
    rounds = schedule(len(resolved.names), resolved.active, resolved.trace.holds, 1, 0)
    if (sums := resolved.sums) is not None:
        told = {"min_silos": sums.pool.min_silos, "honest_fraction": sums.pool.honest_fraction}
        roster = parties.made(**told, noise_by=privacy.noise_by)
    for name, offer in offers_of(resolved, "ab" * 32, rounds, roster).items():
        pinned = None if roster is None else Pinned({roster.digest: roster}, parties.silos[name])
        told = {field: getattr(shape, field) for field in ("num_features", "num_classes", "groups")}
        own = Profile(silo=name, n=shape.sizes[name], unit=account, **told)
        tree = silo_file(resolved, name, {})
        its = Policy.model_validate(tree["policy"])
        made.append(admissible(proposal_of(offer, its, own, pinned), its, own))
    return made


def faults_of(crossing: Crossing) -> list[str]:
    if (over := overrides(crossing)) is None:
        return []
    tree, data = scenario(over)
    price = state(lambda: fedsim.price(tree, data=data).statement)
    run = state(lambda: fedsim.simulate(tree, data=data, progress=False))
    offer = state(lambda: deployed(tree, data))
    if failed := [said for its, said in (price, run, offer) if its == "fails"]:
        return failed
    if price[0] != run[0] or (price[0] == "refused" and price[1] != run[1]):
        return [f"price says {price[1]}, simulate {run[1]}"]
    if price[0] == "refused":
        measured = price[1].startswith("scenario.report.")  # which a deployment leaves out
        return [f"deploy takes what a simulation refuses: {price[1]}"] * (
            offer[0] == "works" and not measured
        )
    faults, stated = _of_run(crossing, run[1], price[1]), run[1].summary.privacy
    if offer[0] == "refused":
        alone = any(each in offer[1] for each in ("simulation", "its own operator", "the silo's file"))
        told = alone or any("silo refuses" in each for each in stated.notices)
        return faults + [f"a simulation does not say that silos refuse it: {offer[1]}"] * (not told)
    for row, plan in zip(stated.silos, offer[1], strict=True):
        cost, simulated = plan.admitted.epsilon_guaranteed, row.epsilon_training or row.epsilon_guaranteed
        if abs(cost - simulated) > 0.02 * cost:  # exact noise, which is drawn on a grid, costs a little more
            faults.append(f"silo {row.name} is offered epsilon {cost}, simulated {simulated}")
    return faults


def _epsilons(rows: Any, name: str) -> np.ndarray:
    return np.array([np.inf if (own := getattr(row, name)) is None else own for row in rows])


def _of_run(crossing: Crossing, run: fedsim.Run, cost: Any) -> list[str]:
    said, private = run.summary.privacy, run.summary.privacy.private
    faults = [
        f"{field}: the price says {getattr(cost, field)}, the run {getattr(said, field)}"
        for field in SAID
        if getattr(said, field) != getattr(cost, field)
    ]
    if not np.isfinite(run.model if private else run.nonprivate_baseline).all():
        faults.append("the model is not finite")
    if "evaluate" in crossing.get("wrapper", "") and not run.summary.evaluation:
        faults.append("it takes an evaluation, and has none")
    guaranteed, budget = (_epsilons(said.silos, f"epsilon_{kind}") for kind in ("guaranteed", "budget"))
    public = _epsilons(said.silos, "epsilon_budget") == np.inf
    if private and said.calibration == "accountant" and (guaranteed > budget * (1 + 1e-9))[~public].any():
        faults.append(f"guarantees {guaranteed} of {budget}")
    if not np.allclose(guaranteed, _epsilons(cost.silos, "epsilon_guaranteed"), rtol=1e-9):
        faults.append(f"the price is {_epsilons(cost.silos, 'epsilon_guaranteed')}, the run's {guaranteed}")
    return faults + (protected(crossing, said.guarantee + said.unit, "the guarantee") if private else [])


def _goes(pair: Crossing) -> bool:
    def admitted():
        resolved = resolved_of(scenario_of(tree, {}), None, data)
        return preview(resolved), preview_evaluation(resolved)

    if (over := overrides(pair)) is None:
        return False
    tree, data = scenario(over)
    return state(admitted)[0] == "works"


def test_features_meet_in_a_covering_array():
    judge("doors", faults_of, covering({name: names(name) for name in DIMENSIONS}, _goes))


@pytest.mark.slow
@pytest.mark.parametrize("two", list(combinations(DIMENSIONS, 2)), ids="-".join)
def test_every_two_features(two):
    judge("doors", faults_of, every({name: names(name, gate=False) for name in two}))
