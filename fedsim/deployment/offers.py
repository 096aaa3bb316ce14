"""From a scenario that can be deployed and the silos' greetings to what each silo is offered."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from fedsim.common.errors import InputError, Refused
from fedsim.common.plugins import short
from fedsim.common.section import arguments
from fedsim.common.serialise import canonical
from fedsim.data.source import Outline
from fedsim.protocol.clashes import check
from fedsim.protocol.plan import Terms
from fedsim.scenario.facts import facts_of
from fedsim.scenario.model import EvaluateSection, Scenario
from fedsim.scenario.participation import AvailableSilos, for_some
from fedsim.scenario.resolve import Resolved
from fedsim.secagg.roster import Roster
from fedsim.wire.messages import Greeting, Offer, Pooled, Shape, Study
from server.participation import Schedule, admitted_rounds


def outline_of(greetings: Mapping[str, Greeting]) -> Outline:
    """The federation's public numbers. Refused if silos' records are not of one kind, or a silo has none."""
    for name, said in greetings.items():
        if said.n < 1 or said.num_features < 1 or said.num_classes < 0:
            raise Refused(f"silo {name} states {said.n} {said.unit.name}s of {said.num_features} features")
    facts = {name: dict(said) for name, said in sorted(greetings.items())}
    for what in ("num_features", "num_classes", "groups"):
        values = {name: own[what] for name, own in facts.items()}
        if len(set(values.values())) > 1:
            stated = ", ".join(f"{name}: {value}" for name, value in values.items())
            raise Refused(f"the silos' records differ in {what} ({stated})")
    first = next(iter(greetings.values()))
    sizes = {name: greetings[name].n for name in sorted(greetings)}
    held_out = {name: said.held_out for name, said in greetings.items()}
    return Outline(sizes, first.num_features, first.num_classes, held_out=held_out, groups=first.groups)


_PER_SILO = ("epsilon", "delta", "claimed_epsilon", "claimed_delta", "sigma", "noise_multiplier")


def of_those(scenario: Scenario, names: Sequence[str], chosen: Collection[str]) -> Scenario:
    """The scenario of some of a federation's silos `names`: the others' values are dropped from each field
    that has one for every silo, and weights are made to sum to 1 over the chosen ones (`resolve`).
    """
    order = sorted(names)
    privacy, weights, way = scenario.privacy, scenario.problem.silo_weights, scenario.participation
    kept = {field: for_some(value, order, chosen) for field, value in privacy if field in _PER_SILO}
    if isinstance(way, AvailableSilos):
        way = AvailableSilos(for_some(way.probability, order, chosen))
    problem = scenario.problem.model_copy(update={"silo_weights": for_some(weights, order, chosen)})
    update = {"privacy": privacy.model_copy(update=kept), "problem": problem, "participation": way}
    return scenario.model_copy(update=update)


def check_offer(resolved: Resolved) -> None:
    """InputError if silos refuse the run (`fedsim.protocol.clashes`), whatever their budgets are."""
    check(resolved.facts, "offer", resolved.scenario.value)


_MOST = 1e6  # what a public silo is offered, which asks for no budget


def offers_of(
    resolved: Resolved, session: str, rounds: Schedule, roster: Roster | None = None
) -> dict[str, Offer]:
    """What each silo is offered: names and numbers; `session` has 64 hexadecimal digits. InputError if the
    run needs secure aggregation, and there is no roster, or silos refuse it whatever it costs; Refused
    if a silo cannot afford such a run.
    """
    check_offer(resolved)
    scenario, outline = resolved.scenario, resolved.outline
    numbers = {"num_features": outline.num_features, "num_classes": outline.num_classes}
    shape = Shape(sizes=outline.sizes, **numbers, num_groups=len(outline.groups))
    # A theorem's numbers are filled in, and are given from here on.
    algorithm = scenario.algorithm.model_dump(mode="json", exclude_none=True) | {"parameters": "given"}
    problem = scenario.problem.model_dump(mode="json", exclude_none=True)
    for part in (algorithm, problem):
        part["name"] = short(part["name"])  # a silo has the file where its operator has put it
    own = admitted_rounds(resolved.active, rounds, len(resolved.names))
    noise = _noise(resolved, own, roster)
    return {
        name: Offer(
            session=session,
            study=_study(scenario),
            silo=name,
            algorithm=algorithm,
            problem=problem,
            shape=shape,
            weights=resolved.weights,
            dtype=scenario.runtime.dtype,
            seed=scenario.seed,
            rounds=None if len(own[i]) == len(rounds) else tuple(own[i]),
            epsilon=min(resolved.epsilons[i], _MOST),
            delta=resolved.deltas[i],
            noise_multiplier=noise[i][0],
            pooled=noise[i][1],
            unit=scenario.privacy.unit,
            head="",
        )
        for i, name in enumerate(resolved.names)
    }


def _study(scenario: Scenario) -> Study:
    """Name and purpose on one line each. InputError if silos would not take them."""
    with arguments("scenario."):
        return Study(name=" ".join(scenario.name.split()), purpose=" ".join((scenario.purpose or "").split()))


def _noise(
    resolved: Resolved, own: Sequence[Sequence[int]], roster: Roster | None
) -> list[tuple[float | None, Pooled | None]]:
    """Each silo's noise multiplier, where it is given, and its part in sums."""
    given, sums, privacy = resolved.noise_multipliers, resolved.sums, resolved.scenario.privacy
    if sums is None:
        return [(None if given is None else given[i], None) for i in range(len(own))]
    if roster is None:
        hint = "one with which a silo answers for itself"
        raise InputError("scenario.privacy.mechanism", privacy.mechanism, hint)
    public = zip(resolved.names, resolved.sizes, resolved.epsilons, resolved.deltas, own, strict=True)
    terms = [Terms(*each) for each in public]
    agreed = sums.agreed(resolved.trace.plan, terms, None if given is None else given[0])
    pooled = partial(Pooled, mechanism=sums.mechanism.name, roster=roster.digest, steps=privacy.steps)
    clips = [1.0 if each.share is None else each.share.clip for each in agreed]
    return [(own.noise_multiplier, pooled(clip=clip)) for own, clip in zip(agreed, clips, strict=True)]


def digest_of(offers: Mapping[str, Offer], rounds: Schedule, evaluate: EvaluateSection | None) -> str:
    """SHA-256 of all that a run depends on, but for its session: 64 hexadecimal digits."""
    named = {name: own.model_dump(mode="json", exclude={"session", "head"}) for name, own in offers.items()}
    asked = [] if evaluate is None else [evaluate.model_dump(mode="json")]
    return hashlib.sha256(canonical([named, rounds, *asked]).encode()).hexdigest()


def identities_digest(identities: Mapping[str, bytes]) -> str:
    """SHA-256 of who the silos are: 64 hexadecimal digits."""
    named = {name: key.hex() for name, key in identities.items()}
    return hashlib.sha256(canonical(named).encode()).hexdigest()


UNMEASURED = (
    "test error on each silo's own records",
    "the same algorithm without noise and clipping",
    "baselines: silos alone, all records pooled",
    "excess risk and gradient mapping",
    "heterogeneity of the silos' records",
)
"""What only a simulation can know, since it takes the silos' records."""
NO_TEST = "test error and loss (federation.yaml names no public test records)"


def deployable(scenario: Scenario) -> tuple[Scenario, list[str]]:
    """The scenario as it is deployed, and lines on what of it is not done.

    A deployed run is one trial, since every repetition would spend the silos' budgets again. InputError if a
    field asks for what no silo would do.
    """
    check(facts_of(scenario), "deployment", scenario.value)
    scenario.data.check_alone("scenario.data")
    unmeasured = ("nonprivate_baseline", "baselines", "heterogeneity", "excess_risk", "own_models", "at_home")
    report = scenario.report.model_copy(update=dict.fromkeys(unmeasured, False))
    study, said = _study(scenario), []
    if study.purpose:
        said.append(f"purpose: {study.purpose}")
    if scenario.trials > 1:
        said.append(f"1 of {scenario.trials} trials: every repetition would spend the silos' budgets again")
    return scenario.model_copy(update={"trials": 1, "report": report}), said
