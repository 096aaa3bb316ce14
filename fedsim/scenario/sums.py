"""What silos of a run that adds them up agree on beforehand: one noise for all, and each one's clip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fedsim.common.errors import InputError, Refused
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.mechanism import SumMechanism
from fedsim.privacy.registry import sum_mechanism
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Plan
from fedsim.protocol.pool import Pool, Share
from fedsim.protocol.terms import Terms
from fedsim.scenario.model import PrivacySection
from fedsim.theory.participants import Participants, size_law

_HALVINGS = 50


@dataclass(frozen=True)
class Sums:
    """A run's sums over silos, before anybody's noise is known."""

    mechanism: SumMechanism
    pool: Pool

    def agreed(self, plan: Plan, terms: Sequence[Terms], given: float | None = None) -> list[Terms]:
        """The terms of all silos with the common noise and each one's clip.

        The silos with the largest epsilon set the noise, at the whole clip, and every other silo whose budget
        asks for more noise than that takes a smaller clip; where the smallest does not do, the noise grows.

        Args:
            plan: what will be asked.
            terms: of all silos in canonical order.
            given: the common noise, where the scenario has it; clips are whole then.

        Raises:
            Refused: a silo cannot afford the plan.
        """
        rounds = tuple(own.rounds if isinstance(own.rounds, range) else tuple(own.rounds) for own in terms)
        budgets = tuple(Budget(own.n, own.epsilon, own.delta) for own in terms)
        clips: Sequence[float] = [1.0] * len(terms)
        if given is None:
            given, clips = _common(self, plan, rounds, budgets)
        return [
            replace(own, noise_multiplier=given, share=Share(self.pool, i, clip))
            for i, (own, clip) in enumerate(zip(terms, clips, strict=True))
        ]


def sums_of(
    privacy: PrivacySection,
    dimension: int,
    sizes: Sequence[int],
    weights: Sequence[float],
    active: Participants,
) -> Sums:
    """The sums that a scenario asks for.

    Raises:
        InputError: names the field.
    """
    least = int(min(size for size, chance in zip(*size_law(active, len(sizes)), strict=True) if chance > 0))
    chosen = least if privacy.min_silos is None else privacy.min_silos
    if chosen > len(sizes):
        raise InputError("scenario.privacy.min_silos", chosen, f"at most {len(sizes)}, the silos there are")
    if isinstance(active, int) and chosen > active:
        raise InputError("scenario.privacy.min_silos", chosen, f"at most {active}, the silos of a round")
    pool = Pool(tuple(sizes), tuple(weights), chosen, privacy.honest_fraction or 1.0)
    return Sums(sum_mechanism(privacy.mechanism, dimension, pool, privacy.noise_by, privacy.steps), pool)


@lru_cache(maxsize=64)  # a host of silos and the next trial ask again
def _common(
    sums: Sums, plan: Plan, rounds: tuple[Sequence[int], ...], budgets: tuple[Budget, ...]
) -> tuple[float, tuple[float, ...]]:
    mechanism = sums.mechanism
    parts = [sums.pool.heaviest(i, plan.batches(own)) for i, own in enumerate(rounds)]
    needed = _needed(mechanism, plan, rounds, budgets)
    common = [mechanism.common(z, part) for z, part in zip(needed, parts, strict=True)]
    loosest = max(budget.epsilon for budget in budgets)
    z = max(own for own, budget in zip(common, budgets, strict=True) if budget.epsilon == loosest)
    z = max(z, *(mechanism.common(own, 0.0) for own in needed))
    return z, tuple(_clip(mechanism, z, own, part) for own, part in zip(needed, parts, strict=True))


def _needed(
    mechanism: SumMechanism, plan: Plan, rounds: Sequence[Sequence[int]], budgets: Sequence[Budget]
) -> list[float]:
    """Each silo's own multiplier, z_i."""
    found: dict[int, float] = {}
    censuses = [plan.census(own) for own in rounds]
    for census in set(censuses):
        group = [i for i, other in enumerate(censuses) if other == census]
        own = [budgets[i] for i in group]
        multipliers = mechanism.noise_multipliers(census, own, LIMITS.max_noise_multiplier)
        found.update(zip(group, multipliers, strict=True))
    return [found[i] for i in range(len(budgets))]


def _clip(mechanism: SumMechanism, z: float, needed: float, part: float) -> float:
    """The largest kappa at which a silo of weight `part` has its multiplier."""
    if mechanism.effective(z, part) >= needed:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mechanism.effective(z, middle * part) >= needed else (low, middle)
    if not low:
        raise Refused(f"a budget asks for noise multiplier {needed:.6g}, and no clip gives that")
    return low
