"""What each round of an admitted plan costs the silo's account, kept with the run."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsim.common.errors import Refused
from fedsim.privacy.cost import compose
from fedsim.protocol.batch import Fresh
from fedsim.protocol.plan import Census, Plan, Release
from silos.account import FREE, Cost, up

if TYPE_CHECKING:  # they load torch
    from fedsim.mechanisms.mechanism import Mechanism
    from fedsim.protocol.terms import Admitted

_MARGIN = 1 + Fraction(1, 10**12)
"""Above the rounding errors of a weight, which are a few units in its last place."""


class Stretch(NamedTuple):
    """Rounds first, first + 1, ... of equal price: mu^2 of FULL, largest mu^2 of Fresh, distance."""

    first: int
    length: int
    full: float
    fresh: float
    distance: float


@dataclass(frozen=True)
class Price:
    """What a run's rounds cost the account (`silos.account`).

    Args:
        stretches: the run's rounds, ascending.
        sampled: the whole price of a plan with sampled batches, which any answered round costs; else free.
    """

    stretches: tuple[Stretch, ...]
    sampled: Cost = FREE

    @property
    def whole(self) -> Cost:
        """Of all rounds."""
        return self.of(self.rounds)

    @property
    def rounds(self) -> list[int]:
        """The run's rounds, ascending."""
        return [r for stretch in self.stretches for r in range(stretch.first, stretch.first + stretch.length)]

    def of(self, rounds: Iterable[int]) -> Cost:
        """What these rounds cost together, rounded up: FULL adds, of Fresh batches the largest counts.

        Raises:
            Refused: one is not in the plan.
        """
        chosen = Counter(self.stretch(r) for r in set(rounds))
        if not chosen or self.sampled != FREE:
            return self.sampled if chosen else FREE
        full = sum((count * Fraction(each.full) for each, count in chosen.items()), Fraction(0))
        fresh = max(Fraction(each.fresh) for each in chosen)
        distance = sum((count * Fraction(each.distance) for each, count in chosen.items()), Fraction(0))
        return Cost(mu_sq=up(full + fresh), distance=up(distance))

    def stretch(self, round_index: int) -> Stretch:
        """The stretch that a round is in.

        Raises:
            Refused: it is not in the plan.
        """
        place = bisect_right(self.stretches, round_index, key=lambda stretch: stretch.first) - 1
        if place >= 0:
            found = self.stretches[place]
            if round_index < found.first + found.length:
                return found
        raise Refused(f"round {round_index} is not in the run's plan")

    def tree(self) -> dict[str, Any]:
        """Plain values, for `from_tree`."""
        return {"stretches": [list(each) for each in self.stretches], "sampled": self.sampled.tree()}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Price:
        """The inverse of `tree`."""
        return cls(tuple(Stretch(*each) for each in tree["stretches"]), Cost(**tree["sampled"]))


def price(plan: Plan, admitted: Admitted, mechanism: Mechanism) -> Price:
    """What an admitted plan costs, round by round, at the silo's noise.

    A plan whose every release is of all records or of Fresh batches, with Gaussian noise, costs mu^2; any
    other costs what its accountant found, (epsilon_guaranteed, delta), and as a whole.

    Raises:
        Refused: the mechanism guarantees nothing, or the plan has no finite price.
    """
    if not mechanism.private or not admitted.noise_multiplier > 0:
        raise Refused("a run without noise has no price")
    terms, z = admitted.terms, admitted.noise_multiplier
    if compose(plan.census(terms.rounds), terms.n).sampled or not mechanism.squares_add:
        own = Cost(epsilon=float(admitted.epsilon_guaranteed), delta=float(terms.delta))
        return Price(_stretches((r, (0.0, 0.0, 0.0)) for r in terms.rounds), own)

    @cache  # rounds are alike as a rule
    def numbers(census: Census) -> tuple[float, float, float]:
        fresh = [entry for entry in census if isinstance(entry[0].batch, Fresh)]
        full = [entry for entry in census if entry not in fresh]
        return _mu_sq(full, terms.n, z), _mu_sq(fresh, terms.n, z), _distance(mechanism, census, z)

    return Price(_stretches((r, numbers(plan.census([r]))) for r in terms.rounds))


def _mu_sq(part: Sequence[tuple[Release, int]], n: int, z: float) -> float:
    return up(_MARGIN * Fraction(compose(tuple(part), n).weight) ** 2 / Fraction(z) ** 2)


def _distance(mechanism: Mechanism, census: Census, z: float) -> float:
    """Of the noise of a mechanism that draws something else than Gaussian noise."""
    distance = getattr(mechanism, "distance", None)
    return 0.0 if distance is None else up(_MARGIN * Fraction(distance(census, z)))


def _stretches(rounds: Iterable[tuple[int, tuple[float, float, float]]]) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    for index, numbers in rounds:
        last = found[-1] if found else None
        if last is not None and index == last.first + last.length and numbers == last[2:]:
            found[-1] = last._replace(length=last.length + 1)
        else:
            found.append(Stretch(index, 1, *numbers))
    return tuple(found)
