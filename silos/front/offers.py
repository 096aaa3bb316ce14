"""From an offer to a priced plan: what a server proposes is made of names and numbers, within the policy.

What is bounded before anything is made: the frame's own size (`fedsim.wire.frames`), names of algorithm and
problem, the model's dimension. What is bounded while the plan is tried out: rounds, queries of a round,
points and clips, and the numbers in all answers (`Policy.max_planned_numbers`), so that no offer takes more
than so much time, whatever the machine. Nothing here reads a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch

from fedsim.algorithms.registry import EVALUATION, shipped_names
from fedsim.algorithms.section import algorithm_of
from fedsim.common.errors import InputError, Refused
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported
from fedsim.problems.registry import PROBLEMS, dtype_of, is_shipped
from fedsim.problems.section import ProblemSection, problem_of, problem_section
from fedsim.protocol.clashes import check
from fedsim.protocol.contract import Algorithm, Public
from fedsim.protocol.dryrun import F1, Trace, dry_run
from fedsim.protocol.facts import Facts
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Terms
from fedsim.protocol.unit import RECORD
from fedsim.wire.messages import Offer, Profile
from silos.front.config import Policy
from silos.front.self_test import check_problem, one_at_a_time
from silos.vault.considered import Admissible, Its, considered

if TYPE_CHECKING:  # loaded where a roster is pinned, or a plug-in is listed
    from fedsim.isolated.confine import Child
    from fedsim.isolated.parts import Isolated
    from fedsim.problems.public_records import PublicRecords
    from silos.front.pooled import Pinned, SumPart

_LARGEST = 2**53


@dataclass(frozen=True)
class Proposal:
    """What an offer names, made: nothing has been tried out yet.

    `isolated` is the process that runs plug-in code, `part` the silo's part in secure aggregation.
    """

    offer: Offer
    algorithm: Algorithm
    problem: Problem
    public: Public
    dtype: torch.dtype
    isolated: Isolated | None = None
    part: SumPart | None = None


def proposal_of(
    offer: Offer,
    policy: Policy,
    own: Profile,
    pinned: Pinned | None = None,
    start: Callable[[], Child] | None = None,
    published: PublicRecords | None = None,
) -> Proposal:
    """Make what the offer names.

    Args:
        offer: what a server sent.
        policy: the silo's.
        own: its public numbers.
        pinned: rosters that its operator has agreed to.
        start: starts a confined process for parts that fedsim does not ship.
        published: the silo's copy of public records, if it has one.

    Raises:
        Refused: it is not for this silo's records or rosters, or the policy does not allow it.
    """
    _check_shape(offer, own)
    try:
        theirs, isolated = _theirs(offer, policy), None
        if theirs or offer.algorithm["name"] not in (*shipped_names(), EVALUATION):
            isolated = _isolated(offer, theirs, start)
        problem = isolated.problem if isolated and theirs else _problem(offer, policy, published)
        algorithm = cast(Algorithm, isolated) if isolated else algorithm_of(offer.algorithm)
        if problem.num_features != offer.shape.num_features:
            raise Refused("offer: the plug-in's problem is for another number of features")
        _check_dimension(problem.dimension, policy)
        part = None
        if offer.pooled is not None:
            if pinned is None:
                hint = "is none that the silo's operator has pinned"
                raise Refused(f"offer: roster {offer.pooled.roster} {hint}")
            part = pinned.part(offer, own.silo, problem.dimension, algorithm)
    except InputError as error:
        raise _refusal(error) from None
    dtype, shape = dtype_of(offer.dtype), offer.shape
    weights = torch.tensor(offer.weights, dtype=dtype)
    public = Public(tuple(shape.sizes), torch.tensor(list(shape.sizes.values())), weights, weights * 0)
    return Proposal(offer, algorithm, problem, public, dtype, isolated, part)


def admissible(proposal: Proposal, policy: Policy, own: Profile, seeded: bool = False) -> Admissible:
    """Try the plan out without records and price it; `seeded` noise is never exact. Refused if the plan
    breaks a limit, costs more than the budget, or has too little noise.
    """
    offer, part, problem, dtype = proposal.offer, proposal.part, proposal.problem, proposal.dtype
    trace = _tried(proposal, policy.limits)
    plan = trace.of(offer.unit).plan
    _check_public(proposal, trace)
    known = {
        "held-out records": offer.records == "holdout",
        "float32": dtype == torch.float32,
        "a plug-in's problem": not is_shipped(problem),
        "public silo": own.public and repr(own.silo),
        "memory": trace.remembers,
        "messages of several sizes": trace.uneven,
        "code in a confined process": proposal.isolated is not None,
        "public records": offer.problem.get("public") is not None,
    }
    check(Facts(plan, (SiloGaussian() if part is None else part.mechanism).facts | known), "offer")
    rounds = range(len(plan.rounds)) if offer.rounds is None else offer.rounds
    asked = offer.epsilon, offer.delta, rounds, offer.noise_multiplier, None if part is None else part.share
    found = considered(
        plan,
        problem,
        dtype,
        Terms(own.silo, own.n, *asked),
        Its(own.silo, own.n, own.num_features, len(own.groups), own.unit, own.public),
        policy.rules,
        broadcasts=trace.broadcasts,
        records=offer.records,
        seeded=seeded,
        sums=None if part is None else part.priced(plan, problem),
        foreign=proposal.isolated is not None,
        sealed=None if part is None else part.sealed(offer, plan, problem),
    )
    from silos.front.workload import check_time  # loaded where an offer is tried out

    records = own.n if plan.unit == RECORD else policy.max_records
    check_time(plan, rounds, problem, records, found.mechanism, dtype)
    check_problem(problem, dtype)  # which takes records' gradients: not before that
    return replace(found, notices=(*found.notices, *one_at_a_time(problem, dtype)))


def _tried(proposal: Proposal, limits: Limits) -> Trace:
    offer = proposal.offer
    try:
        if proposal.isolated is not None:
            return proposal.isolated.dry_run(proposal.public, offer.seed, limits, proposal.problem)
        return dry_run(proposal.algorithm, proposal.problem, proposal.public, offer.seed, limits)
    except InputError as error:
        raise _refusal(error) from None


def _refusal(error: InputError) -> Refused:
    return Refused(str(error).replace("scenario.", "offer: ", 1))


def _check_shape(offer: Offer, own: Profile) -> None:
    shape = offer.shape
    stated = shape.sizes.get(own.silo), shape.num_features, shape.num_classes, shape.num_groups
    held = own.n, own.num_features, own.num_classes, len(own.groups)
    own.unit.check_plan(offer.unit)
    kinds = f"{own.unit.name}s", "features", "classes", "groups"
    for what, offered, actual in zip(kinds, stated, held, strict=True):
        if offered != actual:
            raise Refused(f"offer: silo {own.silo!r} has {actual} {what}, the offer says {offered}")
    if offer.silo != own.silo:
        raise Refused(f"offer: it is for silo {offer.silo!r}, this is {own.silo!r}")
    if max(shape.sizes.values()) > _LARGEST:
        raise Refused(f"offer: a silo of more than {_LARGEST} {own.unit.name}s")
    if len(offer.weights) != len(shape.sizes) or not min(offer.weights) > 0:
        raise Refused(f"offer: weights must be {len(shape.sizes)} positive numbers, one a silo")


def _theirs(offer: Offer, policy: Policy) -> bool:
    """Whether the problem is one that fedsim does not ship; the policy lists all that is offered."""
    allowed = (EVALUATION,) if offer.records == "holdout" else policy.allowed_algorithms
    _check_name("algorithm", offer.algorithm.get("name"), allowed)
    _check_name("problem", offer.problem.get("name"), policy.allowed_problems)
    model = offer.problem.get("model")
    network = model.get("path", "") if isinstance(model, Mapping) and model.get("name") == "module" else None
    if network is not None and network not in policy.plug_ins:
        raise Refused(f"offer: the silo's policy does not list the network {str(network)[:100]!r}")
    return network is not None or offer.problem["name"] not in PROBLEMS


def _isolated(offer: Offer, theirs: bool, start: Callable[[], Child] | None) -> Isolated:
    """A confined process that has made the offer's parts."""
    from fedsim.isolated.parts import Isolated

    if start is None:
        raise Refused("offer: no process for plug-ins can be started here")
    parts = {"algorithm": offer.algorithm, "problem": offer.problem, "shape": offer.shape.model_dump()}
    isolated = Isolated(start, {**parts, "dtype": offer.dtype, "describe": theirs})
    isolated.made  # noqa: B018  it is started and waited for
    return isolated


def _problem(offer: Offer, policy: Policy, published: PublicRecords | None) -> Problem:
    """The problem, once its dimension is known to be allowed; with the silo's copy of public records, where
    it is the one that is offered, else with none of them.
    """
    section = problem_section(offer.problem)
    if isinstance(section.model, Imported):
        raise Refused("offer: the network is to be given as {name: module, path: ...}")
    features, classes = offer.shape.num_features, offer.shape.num_classes
    _check_dimension(_dimension(section, features, classes), policy)
    dtype = dtype_of(offer.dtype)
    problem = problem_of(section, features, classes, dtype, offer.shape.num_groups)
    if section.public is None:
        return problem
    from fedsim.problems.public_records import PublicRecords  # where an offer has some

    digest = section.public.sha256 or ""
    records = PublicRecords(torch.zeros(0, features), torch.zeros(0), digest)
    if published is not None and published.digest == digest:
        records = published
    weight = 1.0 if section.public.weight == "optimal" else section.public.weight
    records = replace(records.to(dtype), weight=weight)
    return replace(problem, composite=replace(problem.composite, records=records))


def _check_public(proposal: Proposal, trace: Trace) -> None:
    """Refuse steps on public records that the silo does not have; the server's own steps need none here."""
    records = proposal.problem.composite.records
    if records is None or not records.weight or not trace.asked[1] & F1:
        return
    asked = problem_section(proposal.offer.problem).public
    if asked is None or asked.weight == "optimal" or asked.precondition:
        raise Refused("offer: public records with weight optimal or precondition are for the server's steps")
    if not len(records):
        hint = f"its steps in the silo need the public records of SHA-256 {records.digest}"
        raise Refused(f"offer: {hint}: name them as `public` in the silo's file")


def _dimension(section: ProblemSection, features: int, classes: int) -> int:
    """d, without the memory that a model of that size takes."""
    kind = PROBLEMS[section.name]
    outputs = kind.outputs(classes)
    if kind is not NeuralNetwork or section.model is None:
        return features * outputs
    with torch.device("meta"):
        return sum(value.numel() for value in section.model.build(features, outputs).parameters())


def _check_name(what: str, name: object, allowed: tuple[str, ...]) -> None:
    if name not in allowed:
        hint = f"it allows {', '.join(allowed)}"
        raise Refused(f"offer: the silo's policy does not allow {what} {name!r}; {hint}")


def _check_dimension(dimension: int, policy: Policy) -> None:
    if dimension > policy.max_dimension:
        raise Refused(f"offer: dimension {dimension} exceeds the silo's limit {policy.max_dimension}")
