"""The true epsilon of each silo beside what a theorem claims: the first that is said of such a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.results.summary import SiloRow

_MOST_GROUPS, _MOST_NAMES = 5, 4
_Group = tuple[float | None, float | None]


def true_epsilons(silos: Sequence[SiloRow]) -> list[str]:
    """One line for each claimed epsilon; none where nothing is claimed."""
    claims: dict[float, list[SiloRow]] = {}
    for silo in silos:
        if silo.epsilon_claimed is not None:
            claims.setdefault(silo.epsilon_claimed, []).append(silo)
    return [f"claimed epsilon {claim:g}, true epsilon {_of(each)}" for claim, each in claims.items()]


def true_epsilon(least: float | None, most: float | None) -> str:
    """What is known of one, rounded so that it never flatters.

    >>> true_epsilon(None, 12.9123), true_epsilon(33.07, 47.274), true_epsilon(None, None)
    ('12.92', 'between 33.07 and 47.28', 'without bound')
    """
    if most is None:
        return "without bound"
    return shown_up(most) if least is None else f"between {shown_down(least)} and {shown_up(most)}"


def _of(silos: Sequence[SiloRow]) -> str:
    groups: dict[_Group, list[str]] = {}
    for silo in silos:
        groups.setdefault((silo.epsilon_attainable, silo.epsilon_guaranteed), []).append(silo.name)
    if len(groups) > _MOST_GROUPS:
        costs = [silo.epsilon_guaranteed for silo in silos]
        most = max(inf if cost is None else cost for cost in costs)
        return f"up to {shown_up(most)} in {len(silos)} silos"
    return "; ".join(f"{true_epsilon(*group)} ({_named(names)})" for group, names in groups.items())


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"
