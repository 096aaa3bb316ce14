"""How many records of a person are to count: rules for h, of the bounds `limit` and `smooth`.

No h costs more than another (`fedsim.protocol.unit`). Of a silo of m persons, s_u records each, rules know m
and `noise`: the length of the noise on a sum of terms over the clip, spread sqrt(d) / mu at the budget's mu.
On a sum of records' terms, h times as large, it is h times that. Assumed are full batches, rounds that
average their noise, and records' terms as long as the clip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fedsim.common.errors import InputError
from fedsim.data.source import Outline
from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.contributions import Profile, tradeoff
from fedsim.protocol.statistics import GRADIENT
from fedsim.protocol.unit import Person, Rule, Unit
from fedsim.scenario.model import Scenario

if TYPE_CHECKING:
    from fedsim.algorithms.prepared import Contributions, StageKind

Stages = tuple["StageKind | Contributions", ...]


def sweet_spot(profile: Profile, persons: int, noise: float) -> int:
    """The ceil(noise)-th largest contribution, which minimises noise h + sum_u max(0, s_u - h).

    In Amin et al. 2019, Section 2, the ceil(1 / epsilon)-th: one number, Laplace noise, persons removed.
    """
    above = {s: sum(share for t, share in profile.items() if t > s) for s in profile}
    return min(s for s, share in above.items() if persons * share < max(1.0, noise))


def asked(unit: Unit) -> Rule | None:
    """The rule, where silos are asked for a histogram. InputError if a rule has not what it needs."""
    if not isinstance(rule := unit.h, Rule):
        return None
    needed = "share" if rule.choose in ("quantile", "private_root") else "profile"
    for field, value in (("share", rule.share), ("profile", rule.profile)):
        if (value is None) == (field == needed):
            raise InputError(f"scenario.privacy.unit.h.{field}", value, f"{rule.choose} needs {needed} alone")
    if rule.profile is not None and abs(sum(rule.profile.values()) - 1) > 1e-6:
        hint = "shares of persons, by records of each, that sum to 1"
        raise InputError("scenario.privacy.unit.h.profile", rule.profile, hint)
    return rule if needed == "share" else None


def lines(given: Unit, used: Unit, shape: Outline, sizes: Sequence[int]) -> list[str]:
    """What a report says of the unit: an h that was not given, and what a simulation's records tell."""
    found, rule = [shape.alike], given.h
    if isinstance(rule, Rule):
        by = f"quantile {rule.q:g}" if rule.choose == "quantile" else rule.choose
        asks = f"a noisy histogram of records per person, for {rule.share or 0:g} of mu^2"
        declared = f"h = {used.h}, by {by} of the declared profile: the smallest of the silos'"
        found.append(declared if rule.profile else f"h, at most {rule.largest}, is chosen by {by} of {asks}")
    odd = [own for (own, n), said in zip(shape.sizes.items(), sizes, strict=True) if abs(said - n) > 0.2 * n]
    if odd:  # without the relation add_remove what is said is n
        what = "not private: privacy.expected_persons is more than 20 % off the persons who train"
        found.append(f"{what} in silo {', '.join(odd)}")
    return [line for line in found if line]


def with_h(scenario: Scenario, stages: Stages, d: int, budgets: Sequence[Budget]) -> tuple[Scenario, Stages]:
    """One h for all silos from a declared profile: the smallest of theirs, where noise weighs most. A stage
    that makes it of a histogram is told the noise of that silo, where its rule asks for it.
    """
    privacy, unit = scenario.privacy, scenario.privacy.unit
    if not (isinstance(unit, Person) and isinstance(rule := unit.h, Rule)):
        return scenario, stages
    length = unit.spread(GRADIENT.name) * math.sqrt(d * unit.silos_per_person)
    noises = [length / float(gaussian.mu(own.epsilon, own.delta)) for own in budgets]
    if rule.profile:
        by = sweet_spot if rule.choose == "sweet_spot" else partial(tradeoff, bound=unit.bound)
        found = [by(rule.profile, own.n, noise) for own, noise in zip(budgets, noises, strict=True)]
        unit = replace(unit, h=min(found, default=max(rule.profile)))
        return scenario.model_copy(update={"privacy": privacy.model_copy(update={"unit": unit})}), stages
    if rule.choose == "private_root" and budgets:
        weighs = max(range(len(budgets)), key=lambda i: noises[i] / budgets[i].n)
        from fedsim.algorithms.prepared import Contributions

        first, *rest = stages  # that of the histogram comes first
        assert isinstance(first, Contributions)
        first = replace(first, bound=unit.bound, persons=budgets[weighs].n, noise=noises[weighs])
        stages = first, *rest
    return scenario, stages
