"""The policy of the silos of `fedsim up`, tried on what they will be offered before anything is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedsim.common.errors import InputError, Refused

if TYPE_CHECKING:
    from fedsim.scenario.model import Scenario
    from fedsim.scenario.resolve import Resolved
    from silos.front.config import Policy

OPTION = "--policy"
_HINT = f": let these silos take it ({OPTION} {{}}=VALUE), or make the run smaller"
_ANY: dict[str, dict[str, Any]] = {
    "lifetime": {"epsilon": 1.0, "delta": 1e-6, "expires": "9999-12-31"},
    "per_run": {"epsilon": 1.0, "delta": 1e-6},
}


def resolved_within(scenario: Scenario, changes: Sequence[str]) -> Resolved:
    """The scenario's run, tried out only once the model is known to be small enough. InputError if a field of
    FIELD=VALUE is wrong, or the dimension is above the silos' limit; besides, as `resolve`.
    """
    from fedsim.data.federation import outline
    from fedsim.problems.registry import dtype_of, problem_class
    from fedsim.problems.section import problem_of
    from fedsim.protocol.blame import blaming
    from fedsim.scenario.resolve import resolve

    policy = _read(_changed({name: dict(own) for name, own in _ANY.items()}, changes))
    with blaming("data set", type(scenario.data)):
        known = outline(scenario.data, scenario.partition, scenario.seed, scenario.privacy.unit)
    section, dtype = scenario.problem, dtype_of(scenario.runtime.dtype)
    with blaming("problem", problem_class(section.name)):
        problem = problem_of(section, known.num_features, known.num_classes, dtype, len(known.groups))
    if problem.dimension > policy.max_dimension:
        hint = f"the model has {problem.dimension} parameters{_HINT.format('max_dimension')}"
        raise InputError("policy.max_dimension", policy.max_dimension, hint)
    return resolve(scenario, known)


def policies_of(resolved: Resolved, changes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By silo, the section `policy` of its file, with FIELD=VALUE changes. InputError if the silos' limits
    refuse the run; Refused if they refuse it for another reason that is public.
    """
    from fedsim.deployment.topology import policy

    made = {name: _changed(policy(resolved, name), changes) for name in resolved.names}
    read = {name: _read(tree) for name, tree in made.items()}
    largest = max(resolved.outline.sizes, key=resolved.outline.sizes.__getitem__)
    _check_limits(resolved, read[largest])
    if resolved.sums is None and resolved.scenario.public is None and not read[largest].plug_ins:
        _check_offer(resolved, largest, read[largest])
    return made


def _changed(tree: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    from fedsim.scenario.load import change, place

    for field, value in (change(each, OPTION) for each in changes):
        place(tree, field, value)
    return tree


def _read(tree: dict[str, Any]) -> Policy:
    from fedsim.common.section import settings
    from silos.front.config import Policy

    return settings(Policy, tree, "policy")


def _check_limits(resolved: Resolved, policy: Policy) -> None:
    """Each limit by itself, so that its field can be named."""
    from fedsim.protocol.limits import LIMITS

    for field, most in vars(policy.limits).items():
        try:
            alone = replace(LIMITS, **{field: most})
            alone.check_plan(resolved.trace.plan, resolved.problem.dimension, resolved.outline.num_features)
        except Refused as refusal:
            raise InputError(f"policy.{field}", most, f"{refusal}{_HINT.format(field)}") from None


def _check_offer(resolved: Resolved, name: str, policy: Policy) -> None:
    """Price a silo's offer as its daemon will, without records."""
    from fedsim.deployment.offers import offers_of
    from fedsim.deployment.topology import account
    from fedsim.wire.messages import Profile
    from server.participation import schedule
    from silos.front.offers import admissible, proposal_of

    outline, holds = resolved.outline, resolved.trace.holds
    rounds = schedule(len(resolved.names), resolved.active, holds, resolved.scenario.seed, 0)
    numbers: dict[str, Any] = {"num_features": outline.num_features, "num_classes": outline.num_classes}
    numbers |= {"n": outline.sizes[name], "groups": outline.groups, **account(resolved, name)}
    own = Profile(silo=name, **numbers)
    offer = offers_of(resolved, "0" * 64, rounds)[name]
    admissible(proposal_of(offer, policy, own), policy, own)
