"""The cost of a run to each silo: admitted, claimed and spent epsilon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from fedsim.common.serialise import finite
from fedsim.data.csv_table import TableData
from fedsim.privacy import cost
from fedsim.problems.glm import GeneralisedLinear
from fedsim.protocol.batch import WithReplacement
from fedsim.protocol.division import together
from fedsim.protocol.plan import Admitted, Census, Plan, Release, Statement
from fedsim.protocol.unit import RECORD
from fedsim.report.outcome import Outcome
from fedsim.report.record import SiloSpend
from fedsim.report.summary import SiloRow
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved

PUBLIC = "no guarantee: public"
MOST_SILOS = 10
_POINTS = {True: 12, False: 40}  # by whether the plan samples: such a price takes ms, and not microseconds


def costliest(outcome: Outcome) -> list[Statement]:
    """Each silo's statement of its costliest trial, by name: participation differs between trials."""
    statements = [each for trial in outcome.results.trials.values() for each in trial.statements]
    statements.sort(key=lambda each: (each.admitted.epsilon_guaranteed, each.epsilon_spent))
    worst = {each.admitted.terms.name: each for each in statements}  # the last one of a silo stays
    return [worst[name] for name in sorted(worst)]


def admitted_of(outcome: Outcome) -> list[Admitted]:
    """Each silo's admission in its costliest trial; where no trial is complete, its first."""
    if rows := costliest(outcome):
        return [statement.admitted for statement in rows]
    first = {accepted.terms.name: accepted for accepted in reversed(outcome.admitted)}
    return [first[name] for name in sorted(first)]


def admitted_rows(
    resolved: Resolved,
    admitted: Sequence[Admitted],
    more: Sequence[dict[str, Any]] = (),
    evaluated: Sequence[Admitted] = (),
) -> list[SiloRow]:
    """A row for each silo's admission, with `more` fields of each row, and of `evaluated` the larger cost."""
    known = _known(resolved)
    rows = [
        SiloRow(
            name=silo.terms.name,
            n=silo.terms.n,
            **({"guarantee": PUBLIC} if silo.terms.public else {}),
            epsilon_budget=finite(silo.terms.epsilon),
            delta=None if silo.terms.public else silo.terms.delta,
            epsilon_guaranteed=finite(silo.epsilon_guaranteed),
            noise_multiplier=silo.noise_multiplier,
            releases=silo.releases,
            **known(silo),
            **fields,
        )
        for silo, fields in zip(admitted, more or [{}] * len(admitted), strict=True)
    ]
    if not evaluated:
        return rows
    return list(map(_larger, rows, admitted_rows(evaluation_of(resolved), evaluated)))


def _larger(row: SiloRow, other: SiloRow) -> SiloRow:
    cost, own = other.epsilon_guaranteed, dict(row)
    pairs = {"epsilon_spent": cost, "epsilon_guaranteed": cost, "epsilon_colluding": other.epsilon_colluding}
    pairs["epsilon_attribute"] = other.epsilon_attribute
    larger = {
        name: None if value is None or own[name] is None else together((own[name], value))
        for name, value in pairs.items()
        if name in row.model_fields_set
    }
    parts = {"epsilon_training": row.epsilon_guaranteed, "epsilon_evaluation": cost}
    releases = row.releases + other.releases
    return row.model_copy(update={**larger, **parts, "held_out": other.n, "releases": releases})


def _known(resolved: Resolved) -> Callable[[Admitted], dict[str, float | None]]:
    """A function that computes a silo's optional fields; equal cases are priced once."""
    sums, gap, prescribed = resolved.sums, has_gap(resolved), resolved.prescribed
    stated = prescribed is not None and prescribed.theorem is not None
    claims = dict(zip(resolved.names, resolved.premises.claims, strict=True)) if stated else {}
    census = cache(resolved.trace.plan.census)
    apart = None if resolved.mechanism.of_groups else group_apart(resolved)
    together = None if sums is None else cache(sums.mechanism.colluding_epsilons)

    def known(silo: Admitted) -> dict[str, float | None]:
        terms, result = silo.terms, dict[str, float | None]()
        if (claim := claims.get(terms.name)) is not None:
            result |= {"epsilon_claimed": claim.epsilon, "delta_claimed": claim.delta}
        rounds = terms.rounds if isinstance(terms.rounds, range) else tuple(terms.rounds)
        case = terms.n, silo.noise_multiplier, terms.delta
        if together is not None:  # under each silo's own share of the noise
            result["epsilon_colluding"] = finite(together(census(rounds), (case,))[0])
        if apart and isfinite(silo.epsilon_guaranteed):
            from fedsim.privacy import attribute

            changed = attribute.census(resolved.trace.plan, rounds, *apart)
            result["epsilon_attribute"] = resolved.mechanism.epsilons(changed, (case,))[0]
        if gap and isfinite(silo.epsilon_guaranteed):
            result["epsilon_attainable"] = _attainable(census(rounds), *case)
        return result

    return known


@cache
def _attainable(census: Census, n: int, z: float, delta: float) -> float:
    from fedsim.privacy.attainable import epsilon  # batches are drawn with replacement

    return epsilon(census, n, z, delta)


def group_apart(resolved: Resolved) -> tuple[float, float, int] | None:
    """Clip, largest |x| and outputs, where a record's group is known and is no feature of it; None too for
    sums, whose clips are the silos' own, and for sampled batches, which a record's absence tells of as well.

    |x| and the clip of costs are known for fair minibatch SGD alone: of another algorithm a changed group
    costs what a replaced record does.
    """
    scenario, outline = resolved.scenario, resolved.outline
    feature = isinstance(scenario.data, TableData) and scenario.data.attribute_is_feature
    other = scenario.privacy.unit != RECORD or resolved.sums is not None or resolved.trace.plan.sampled
    if not outline.groups or other or feature:
        return None
    norm, outputs = inf, resolved.problem.num_outputs
    from fedsim.algorithms.fair_minibatch_sgd import FairMinibatchSGD  # groups are known

    if not isinstance(resolved.algorithm, FairMinibatchSGD) or resolved.stages:
        return 1.0, norm, outputs
    if isinstance(resolved.problem, GeneralisedLinear) and outline.squared_norms is not None:
        norm = sqrt(outline.squared_norms[0])
    return float(resolved.algorithm.clip_norm), norm, outputs


def samplers(resolved: Resolved) -> list[str]:
    """The samplers that the plan uses."""
    return sorted({release.batch.sampler for release, _ in resolved.trace.plan.census()})


def has_gap(resolved: Resolved) -> bool:
    """Whether the plan uses a sampler whose proven bound is not known to be attained."""
    return WithReplacement.sampler in samplers(resolved)


def spend(outcome: Outcome) -> list[SiloSpend]:
    """The ledger priced on its prefixes: some points of each silo.

    Of each silo's costliest trial, as in the table of silos; of many silos, some spread evenly in order of
    their budgets. Empty where nothing is guaranteed or no trial is complete.
    """
    statements = costliest(outcome)
    if not statements or outcome.main == "nonprivate":
        return []
    plan, gaussian = outcome.resolved.trace.plan, cache(cost.epsilon)
    sampled = plan.sampled
    rows = []
    for statement in chosen(statements):
        terms, price = statement.admitted.terms, _price(outcome, statement.admitted) or gaussian
        spent = [(0, 0.0)] + [
            (upto, price(census, terms.n, statement.admitted.noise_multiplier, terms.delta))
            for upto, census in prefixes(plan, statement.rounds, _POINTS[sampled])
        ]
        rows += [SiloSpend(terms.name, upto, finite(value), finite(terms.epsilon)) for upto, value in spent]
    return rows


def _price(outcome: Outcome, admitted: Admitted) -> Callable[[Census, int, float, float], float] | None:
    """The price of exact noise, where a deployed silo priced its plan by it; else None."""
    if outcome.deployed is None:
        return None
    from fedsim.privacy.grid import GridGaussian

    plan, problem, terms = outcome.resolved.trace.plan, outcome.resolved.problem, admitted.terms
    exact = GridGaussian(plan.extent(problem.dimension, problem.num_features))
    case = terms.n, admitted.noise_multiplier, terms.delta
    if exact.epsilons(plan.census(terms.rounds), [case]) != [admitted.epsilon_guaranteed]:
        return None
    return lambda census, n, z, delta: exact.epsilons(census, [(n, z, delta)])[0]


def chosen(statements: Sequence[Statement]) -> list[Statement]:
    """At most `MOST_SILOS`, the least and the greatest budget among them, in canonical order."""
    statements = [each for each in statements if not each.admitted.terms.public]
    order = sorted(range(len(statements)), key=lambda i: statements[i].admitted.terms.epsilon)
    places = np.linspace(0, len(order) - 1, min(MOST_SILOS, len(order))).round().astype(int)
    return [statements[i] for i in sorted(order[place] for place in places)]


def prefixes(plan: Plan, rounds: Sequence[int], points: int) -> list[tuple[int, Census]]:
    """(number of rounds, composition of the answers until then) at about `points` of `rounds`."""
    ordered = sorted(rounds)
    places = set(np.linspace(0, len(ordered) - 1, min(points, len(ordered))).round().astype(int).tolist())
    total: Counter[Release] = Counter()
    result = []
    for place, index in enumerate(ordered):
        total.update(dict(plan.census([index])))
        if place in places:
            result.append((index + 1, tuple(sorted(total.items(), key=repr))))
    return result
