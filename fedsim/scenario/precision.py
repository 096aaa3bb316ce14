"""`silo_weights: precision`: p_i ~ 1 / (V^2 / K_i + d sigma_i^2), fixed before a run from public numbers.

A silo's answer is the mean of K_i gradients (n_i with full batches) with noise of standard deviation
sigma_i = z_i spread clip / K_i a coordinate, 0 in a public silo. Where all records have one law, these are
the weights of the thesis's weighted Gaussian (`fedsim.theory.weighted_gaussian`). z_i is calibrated to the
silo's budget and the plan, with the part of the rounds that it plans for. V is declared, or the clip, which
bounds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.common.errors import InputError
from fedsim.privacy.registry import MECHANISMS
from fedsim.protocol.contract import traits
from fedsim.protocol.plan import Plan
from fedsim.protocol.statistics import COSTED_GRADIENT, GRADIENT
from fedsim.scenario.model import Scenario
from fedsim.theory.averaged_noise import AveragedNoise, Kind
from fedsim.theory.participants import planned_share
from fedsim.theory.symbols import Premises
from fedsim.theory.weighted_gaussian import shares

PRECISION = "precision"
_MEANS = GRADIENT.name, COSTED_GRADIENT.name


def precision_weights(
    scenario: Scenario,
    premises: Premises,
    plan: Plan,
    public: Sequence[bool],
    given: Sequence[float] | None,
    chosen: bool,
) -> tuple[float, ...]:
    """p_i, summing to 1; `given` are z_i that the scenario fixes, `chosen` whether a theorem or `auto` chose
    numbers. InputError where noise or clip is not each silo's own number before the run.
    """
    clip, mechanism = traits(scenario.algorithm).clip_norm, MECHANISMS[scenario.privacy.mechanism]
    asked = ((ask.batch, query) for asks in plan.rounds for ask in asks for query in ask.queries)
    gradients = [each for each in asked if each[1].statistic in _MEANS]
    common = mechanism.sums_only or mechanism.of_groups
    theorem = scenario.privacy.calibration == "theorem"
    for why, wrong in {
        "mechanism none adds no noise": not mechanism.private,
        "noise of sums or for groups alone is not that of a silo's gradient": common,
        "the algorithm asks for no gradient with one clip_norm": not (gradients and isinstance(clip, float)),
        "theorems and auto start from weights; give numbers, and calibration accountant": chosen or theorem,
    }.items():
        if wrong:
            raise InputError("scenario.problem.silo_weights", PRECISION, f"equal or size: {why}")
    assert isinstance(clip, float)
    batch, query = gradients[0]
    # of a schedule, that of equal noise at its cost
    ratio = (len(gradients) / sum(each.noise_ratio**-2 for _, each in gradients)) ** 0.5
    V = clip if scenario.assumptions.phi is None else scenario.assumptions.phi
    moved = plan.spread(query) * clip * ratio
    sizes = [batch.size(claim.n) for claim in premises.claims]
    noise = zip(_multipliers(premises, plan, public) if given is None else given, sizes, strict=True)
    return shares([V**2 / K + premises.dimension * (z * moved / K) ** 2 for z, K in noise])


def _multipliers(premises: Premises, plan: Plan, public: Sequence[bool]) -> list[float]:
    """z_i; 0 of public silos."""
    kinds = [Kind(release.batch, count, 1 / release.weight) for release, count in plan.census()]
    planned, claims = planned_share(premises.participants, len(premises.names)), premises.claims
    private = [i for i, each in enumerate(public) if not each]
    budgets, parts = tuple(claims[i] for i in private), tuple(planned[i] for i in private)
    own = AveragedNoise(budgets, (), parts, premises.unit)
    found = dict(zip(private, own.multipliers(kinds), strict=True))
    return [found.get(i, 0.0) for i in range(len(claims))]


def weights_line(names: Sequence[str], weights: Sequence[float]) -> str:
    """The notice of a report, with the first silos' weights."""
    few = ", ".join(f"{name} {p:.4g}" for name, p in list(zip(names, weights, strict=True))[:8])
    more = ", .." * (len(names) > 8)
    return f"silos weigh by precision, which changes the objective where they differ: {few}{more}"
