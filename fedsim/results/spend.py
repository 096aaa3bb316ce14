"""What the rounds paid for had cost a silo by then: the ledger, priced on its prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from fedsim.common.canonical import finite
from fedsim.mechanisms.grid_gaussian import GridGaussian
from fedsim.privacy import cost
from fedsim.protocol.plan import Census, Plan, Release
from fedsim.protocol.terms import Admitted, Statement
from fedsim.results.outcome import Outcome
from fedsim.results.silo_rows import costliest

MOST_SILOS = 10
_POINTS = {
    True: 12,
    False: 40,
}  # by whether the plan samples: such a price takes milliseconds, not microseconds

Price = Callable[[Census, int, float, float], float]

SCHEMA = pa.schema(
    [("silo", pa.string()), ("round", pa.int64()), ("epsilon_spent", pa.float64()), ("budget", pa.float64())]
)


def spend_table(outcome: Outcome) -> pa.Table:
    """One row per silo and point: epsilon of all answers up to and including `round` (counted from 1).

    Of each silo's costliest trial, as in the table of silos; of many silos, some spread evenly in order of
    their budgets. A value that is infinite is null. Empty where nothing is guaranteed or no trial is
    complete.
    """
    statements = costliest(outcome)
    if not statements or outcome.main == "nonprivate":
        return SCHEMA.empty_table()
    plan, gaussian = outcome.resolved.trace.plan, cache(cost.epsilon)
    sampled = any(release.batch.sampler not in ("full", "fresh") for release, _ in plan.census())
    rows = []
    for said in chosen(statements):
        terms, price = said.admitted.terms, _price(outcome, said.admitted) or gaussian
        spent = [(0, 0.0)] + [
            (upto, price(census, terms.n, said.admitted.noise_multiplier, terms.delta))
            for upto, census in prefixes(plan, said.rounds, _POINTS[sampled])
        ]
        rows += [(terms.name, upto, finite(value), finite(terms.epsilon)) for upto, value in spent]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def _price(outcome: Outcome, admitted: Admitted) -> Price | None:
    """Of exact noise, where that is how a deployed silo priced its plan."""
    if outcome.deployed is None:
        return None
    exact = GridGaussian(outcome.resolved.problem.dimension)
    terms, z = admitted.terms, admitted.noise_multiplier
    census = outcome.resolved.trace.plan.census(terms.rounds)
    if exact.epsilons(census, [(terms.n, z, terms.delta)]) != [admitted.epsilon_guaranteed]:
        return None
    return lambda census, n, z, delta: exact.epsilons(census, [(n, z, delta)])[0]


def chosen(statements: Sequence[Statement]) -> list[Statement]:
    """At most `MOST_SILOS`, the least and the greatest budget among them, in canonical order."""
    order = sorted(range(len(statements)), key=lambda i: statements[i].admitted.terms.epsilon)
    places = np.linspace(0, len(order) - 1, min(MOST_SILOS, len(order))).round().astype(int)
    return [statements[i] for i in sorted(order[place] for place in places)]


def prefixes(plan: Plan, rounds: Sequence[int], points: int) -> list[tuple[int, Census]]:
    """(rounds of the run gone by, census of the answers until then) at about `points` of `rounds`."""
    if not rounds:
        return []
    ordered = sorted(rounds)
    places = set(np.linspace(0, len(ordered) - 1, min(points, len(ordered))).round().astype(int).tolist())
    total: Counter[Release] = Counter()
    found = []
    for place, index in enumerate(ordered):
        total.update(dict(plan.census([index])))
        if place in places:
            found.append((index + 1, tuple(sorted(total.items(), key=repr))))
    return found
