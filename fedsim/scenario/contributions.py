"""How many records of a person are to count: rules for h, of the bounds `limit` and `smooth`.

No h costs more than another (`fedsim.protocol.unit`). Of a silo of m persons, s_u records each, rules know m
and `noise`: the length of the noise on a sum of terms over the clip, spread sqrt(d) / mu at the budget's mu.
On a sum of records' terms, h times as large, it is h times that. Assumed are full batches, rounds that
average their noise, and records' terms as long as the clip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from fedsim.common.errors import InputError
from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.statistics import OPPOSITE
from fedsim.protocol.unit import Person, Record, Rule
from fedsim.scenario.model import Scenario

Profile = Mapping[int, float]  # {records of a person: share of persons}, declared


def sweet_spot(profile: Profile, persons: int, noise: float) -> int:
    """The ceil(noise)-th largest contribution, which minimises noise h + sum_u max(0, s_u - h).

    In Amin et al. 2019, Section 2, the ceil(1 / epsilon)-th: one number, Laplace noise, persons removed.
    """
    above = {s: sum(share for t, share in profile.items() if t > s) for s in profile}
    return min(s for s, share in above.items() if persons * share < max(1.0, noise))


def tradeoff(profile: Profile, persons: int, noise: float, bound: str) -> int:
    """The h of least `variance`: for the error of a mean over all records, if persons are alike."""
    some = range(1, max(profile) + 1)
    return min(some, key=lambda h: variance(h, profile, persons, noise, bound))


def variance(h: float, profile: Profile, persons: int, noise: float, bound: str) -> float:
    """sum_j c_j^2 + noise^2 W^2, c_j the weights of records in a mean, W = h / n_h a person's at most.

    With n_h = sum_u min(h, s_u), c_j is min(h, s_u) / (s_u n_h) with `smooth`; with `limit` it is 1 / n_h for
    records that count (Epasto et al. 2020, Section 3).
    """
    counted = persons * sum(share * min(h, s) for s, share in profile.items())
    smooth = persons * sum(share * min(h, s) ** 2 / s for s, share in profile.items())
    return ((counted if bound == "limit" else smooth) + (noise * h) ** 2) / counted**2


def asked(unit: Record | Person) -> Rule | None:
    """The rule, where silos are asked for a histogram. InputError if a rule has not what it needs."""
    rule = unit.h if isinstance(unit, Person) else None
    if not isinstance(rule, Rule):
        return None
    needed = "share" if rule.choose == "quantile" else "profile"
    for field in ("share", "profile"):
        if (getattr(rule, field) is None) == (field == needed):
            hint = f"{rule.choose} needs {needed} alone"
            raise InputError(f"scenario.privacy.unit.h.{field}", getattr(rule, field), hint)
    if rule.profile is not None and abs(sum(rule.profile.values()) - 1) > 1e-6:
        hint = "shares of persons, by records of each, that sum to 1"
        raise InputError("scenario.privacy.unit.h.profile", rule.profile, hint)
    return rule if needed == "share" else None


def with_h(scenario: Scenario, d: int, budgets: Sequence[Budget]) -> Scenario:
    """One h for all silos from a declared profile: the smallest of theirs, where noise weighs most."""
    privacy, unit = scenario.privacy, scenario.privacy.unit
    if not (isinstance(unit, Person) and isinstance(rule := unit.h, Rule) and rule.profile):
        return scenario
    length = (1 if unit.one_sided else OPPOSITE) * math.sqrt(d * unit.silos_per_person)
    noises = [length / float(gaussian.mu(own.epsilon, own.delta)) for own in budgets]
    by = sweet_spot if rule.choose == "sweet_spot" else partial(tradeoff, bound=unit.bound)
    found = [by(rule.profile, own.n, noise) for own, noise in zip(budgets, noises, strict=True)]
    unit = replace(unit, h=min(found, default=max(rule.profile)))
    return scenario.model_copy(update={"privacy": privacy.model_copy(update={"unit": unit})})
