"""Calibration: the smallest noise multiplier whose cost is within a silo's budget (inverts `cost.epsilon`).

A silo's multiplier depends on that silo's budget alone, not on the others in the call: it is the same in its
daemon and among a thousand silos of a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsim.common.errors import InputError, Refused
from fedsim.privacy import cost, gaussian
from fedsim.privacy.rounding import shown_up
from fedsim.protocol.plan import Census

_TOLERANCE = 1e-3  # of epsilon, relative below 1
_MARGIN = 1e-9  # keeps the last bits of a closed form on the safe side
_SECANT_STEPS = 10  # two to five are usual; then halve the bracket
_MAX_EVALUATIONS = 100


@dataclass(frozen=True, slots=True)
class Budget:
    """The privacy budget of one silo, or the claim that a theorem makes for it."""

    n: int  # its number of units
    epsilon: float  # > 0; infinity for no limit
    delta: float  # in (0, 1); without a limit it may be 1

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError("budget.n", self.n, "a silo has at least one unit")
        if not self.epsilon > 0:
            raise InputError("budget.epsilon", self.epsilon, "must be > 0")
        if not (0 < self.delta < 1 or (self.delta == 1 and self.epsilon == math.inf)):
            raise InputError("budget.delta", self.delta, "must be in (0, 1)")


def noise_multipliers(census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
    """Return the smallest z per budget at which `cost.epsilon(census, n, z, delta) <= epsilon`.

    The cost lands in [epsilon - 1e-3 min(1, epsilon), epsilon] and never above. A silo that takes part in
    nothing, or that sets no limit, gets 0. Refused if a plan costs more than its budget even at `limit`, the
    largest noise multiplier that a silo adds; the text names both numbers.
    """
    compositions = {n: cost.compose(census, n) for n in {budget.n for budget in budgets}}
    return smallest_multipliers(compositions, budgets, limit)


def smallest_multipliers(
    compositions: dict[int, cost.Composition], budgets: Sequence[Budget], limit: float
) -> list[float]:
    """`noise_multipliers`, given {n: the composition for a silo of n records}."""
    found: dict[Budget, float] = {}
    closed = [budget for budget in set(budgets) if not compositions[budget.n].sampled]
    found.update(_closed_form(closed, compositions))
    for budget in budgets:
        if budget not in found:
            found[budget] = _searched(compositions[budget.n], budget)
        if found[budget] > limit:  # which a search to a tolerance may just overshoot
            spent = compositions[budget.n].epsilon(limit, budget.delta)
            if not spent <= budget.epsilon:
                raise Refused(over_budget(spent, limit, budget.epsilon))
            found[budget] = limit
    return [found[budget] for budget in budgets]


def _closed_form(budgets: Sequence[Budget], compositions: dict[int, cost.Composition]) -> dict[Budget, float]:
    """z = weight / mu(epsilon, delta), all silos at once."""
    epsilon = np.array([budget.epsilon for budget in budgets])
    delta = np.array([budget.delta for budget in budgets])
    weight = np.array([compositions[budget.n].weight for budget in budgets])
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(weight > 0, weight / gaussian.mu(epsilon * (1 - _MARGIN), delta), 0.0)
        mu = np.where(z > 0, weight / z, 0.0)
    # `gaussian.mu` rounds: where epsilon is still exceeded, lower mu by a margin that doubles.
    for power in range(_MAX_EVALUATIONS):
        over = (gaussian.epsilon(mu, delta) > epsilon * (1 - _MARGIN / 2)) & (epsilon < math.inf)
        if not over.any():
            break
        mu = np.where(over, mu * (1 - _MARGIN * 2 ** min(power, 28)), mu)
        z = np.where(over, weight / mu, z)
    return dict(zip(budgets, z.tolist(), strict=True))


def _searched(composition: cost.Composition, budget: Budget) -> float:
    """Secant steps on ln cost against ln z, kept inside the bracket that they find."""
    if budget.epsilon == math.inf:
        return 0.0
    guess = _first_guess(composition, float(gaussian.mu(budget.epsilon, budget.delta)))
    return secant(lambda z: composition.epsilon(z, budget.delta), guess, budget.epsilon)


def noise_ratios(shares: Sequence[float], census: Census, budgets: Sequence[Budget]) -> tuple[float, ...]:
    """Noise ratios of full releases beside `census`, each of mu = sqrt(s) mu(epsilon, delta), s its share.

    Without sampling they are sqrt((1 - sum of shares) / s) / weight. Where silos need others, each is the
    largest, so that no release has more than its share in any silo.
    """
    total = sum(shares)

    def inverse(budget: Budget) -> float:
        """1 / (z mu), z the multiplier that spends the budget on all releases."""
        rest, mu = cost.compose(census, budget.n), float(gaussian.mu(budget.epsilon, budget.delta))
        if not rest.sampled:
            return math.sqrt(1 - total) / rest.weight

        def spent(z: float) -> float:
            weight = math.hypot(rest.weight, math.sqrt(total) * mu * z)
            return replace(rest, weight=weight).epsilon(z, budget.delta)

        return 1 / (mu * secant(spent, _first_guess(rest, mu * math.sqrt(1 - total)), budget.epsilon))

    largest = max(map(inverse, set(budgets)), default=1.0)
    return tuple(largest / math.sqrt(share) for share in shares)


def _first_guess(composition: cost.Composition, mu: float) -> float:
    """Guess as if sampling multiplied mu by q: right for many releases of small mu, and never a bound."""
    sampled = sum(count * (pair.q * pair.mu) ** 2 for pair, count in composition.sampled)
    return math.sqrt(composition.weight**2 + sampled) / mu


def secant(cost_at: Callable[[float], float], z: float, epsilon: float) -> float:
    """Find z with epsilon - tolerance <= cost_at(z) <= epsilon; cost_at falls with z.

    If the cost jumps over that interval, the smallest affordable z that was seen.
    """
    tolerance = _TOLERANCE * min(1.0, epsilon)
    target = math.log(epsilon - 0.4 * tolerance)
    low, high = 0.0, math.inf
    slope, last = -1.3, None  # of ln cost against ln z; a Gaussian's is -1 for small mu, -2 for large
    for evaluation in range(_MAX_EVALUATIONS):
        spent = cost_at(z)
        if epsilon - tolerance <= spent <= epsilon:
            return z
        low, high = (z, high) if spent > epsilon else (low, z)
        if high <= low * (1 + 1e-12):
            break  # the cost jumps here
        here = (math.log(z), math.log(max(spent, 1e-300)))
        if last is not None and here[0] != last[0]:
            slope = (here[1] - last[1]) / (here[0] - last[0])
        last = here
        slope = min(-0.5, max(-8.0, slope))  # two close points may give any slope
        proposal = math.exp(here[0] + min(2.0, max(-2.0, (target - here[1]) / slope)))
        bracketed = low > 0 and high < math.inf
        # After too many secant steps, or outside the bracket: bisect in ln z.
        stuck = evaluation >= _SECANT_STEPS or not low < proposal < high
        z = math.sqrt(low * high) if bracketed and stuck else proposal
    return high


def over_budget(spent: float, limit: float, epsilon: float) -> str:
    """The text of a refusal: the plan's cost at the largest noise multiplier, and the budget."""
    cost = f"plan costs epsilon {shown_up(spent, 6)} at noise multiplier {limit:.6g}"
    return f"{cost}, the largest this silo allows; its budget is {epsilon:.6g}"
