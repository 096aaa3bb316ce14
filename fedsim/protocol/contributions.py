"""The h of least variance, of the bounds `limit` and `smooth`, by how many records units have."""

from __future__ import annotations

from collections.abc import Mapping

Profile = Mapping[int, float]  # {records of a unit: share of units}


def tradeoff(profile: Profile, units: int, noise: float, bound: str) -> int:
    """The h of least `variance`: for the error of a mean over all records, if units are alike."""
    some = range(1, max(profile) + 1)
    return min(some, key=lambda h: variance(h, profile, units, noise, bound))


def variance(h: float, profile: Profile, units: int, noise: float, bound: str) -> float:
    """sum_j c_j^2 + noise^2 W^2, c_j the weights of records in a mean, W = h / n_h a unit's at most.

    With n_h = sum_u min(h, s_u), c_j is min(h, s_u) / (s_u n_h) with `smooth`; with `limit` it is 1 / n_h for
    records that count (Epasto et al. 2020, Section 3).
    """
    counted = units * sum(share * min(h, s) for s, share in profile.items())
    smooth = units * sum(share * min(h, s) ** 2 / s for s, share in profile.items())
    return ((counted if bound == "limit" else smooth) + (noise * h) ** 2) / counted**2
