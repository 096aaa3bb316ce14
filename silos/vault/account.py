"""A silo's budget over its whole life: the one place that states and keeps the lifetime guarantee.

**Guarantee.** Everything that a silo ever releases, over all its runs, is (epsilon, delta)-DP with respect to
one of its units, where unit and relation (replacing one of its records, n fixed; or how neighbours differ in
another, `fedsim.protocol.unit`), (epsilon, delta) and the caps below were fixed at
enrolment, and plans of another unit or relation are refused (`silos.front.offers`). It holds for any
behaviour of servers and other silos: which runs are offered, when, with what plan and noise, how many at
once, which rounds are asked for and which runs are broken off may all depend on earlier answers. Runs of
secure aggregation, in which a silo takes part only where its operator has pinned a roster, are charged what
the server sees of them (`fedsim.privacy.summed_gaussian`): for those it holds as long as server and shuffler
do not collude and as many other silos add their noise as the roster says.

The caps (`Caps.of`), of lifetime epsilon, delta and a share (epsilon_S, delta_S) for sampled plans, and for
those whose noise is not Gaussian:

    T       = DISTANCE_SHARE (delta - delta_S) / (1 + e^epsilon)
    delta_G = delta - delta_S - (1 + e^epsilon) T
    mu_B^2  : the largest with h(epsilon - epsilon_S; mu_B) <= delta_G   (`fedsim.privacy.gaussian`)

and on every path: sum of mu^2 of Gaussian plans <= mu_B^2, sum of the prices of sampled plans <= (epsilon_S,
delta_S), sum of the total-variation distances of discrete noise in Gaussian plans <= T.

Why:

* *Gaussian plans* (FULL, Fresh and Part batches). Fix the permutations of all runs' batches; they are drawn
  independently of the records and equal in neighbouring data sets. What is released is then one sequence of
  Gaussian releases, each chosen from all that came before, whichever runs they belong to. A FULL release has
  its mu; of a run's Fresh releases only the batch that holds the differing record has one other than 0, at
  most the largest of those made; of its parts only the one that holds it, whose releases add. So the sum of
  mu^2 along every path is at most what the account charges, which never exceeds mu_B^2, and the sequence is
  mu_B-GDP: fully adaptive composition of Gaussian DP under a cap fixed in advance (Smith and Thakurta 2022,
  arXiv 2210.17520; Koskela, Tobaben and Honkela 2023, arXiv 2209.15596). Averaging over permutations keeps
  the bound, by joint convexity. No cap on one release is needed, and a run may return what it did not use,
  since only releases that were made count.
* *Sampled plans.* Each is an interactive (epsilon_j, delta_j)-DP mechanism by its own accountant, priced as a
  whole before its first answer. A share of that price is not the price of a share when the server picks the
  rounds by the answers, so a plan that answered one round keeps its whole price; one that answered none
  released nothing. The sum is a filter for adaptively chosen (epsilon_j, delta_j) (Rogers et al. 2016), also
  of runs at the same time: filters extend to interleaved interactive mechanisms (Haney et al. 2023, arXiv
  2309.05901).
* *Both together.* All Gaussian releases are one interactive mechanism, (epsilon - epsilon_S, delta_G)-DP, all
  sampled runs another; interleaved, the two add (Vadhan and Zhang 2023, arXiv 2207.08335).
* *Discrete noise.* Let each release of a Gaussian plan be drawn so that it equals its ideal Gaussian one
  except with probability t_j, its total-variation distance. The two transcripts differ with probability
  E[sum t_j] <= T, so (epsilon, delta')-DP of the ideal one gives (epsilon, delta' + (1 + e^epsilon) T)-DP. A
  sampled plan's own price has that term in its delta already.

**Two parts.** A silo that holds units out (`silos.front.own_records`) has the caps for each part, and a run
is charged to the part that it reads. The division is fixed before anything is released, and the unit that
differs between neighbouring data sets is in the same part of both. Releases of the other part are functions
of equal records, of noise that is independent of everything, and of earlier releases: post-processing. So the
lifetime guarantee is that of the differing unit's part: what counts is the larger cost, not the sum. With
unit record costs add up for a group of records of which some are in either part.

Sums are exact (fractions), every float that enters is rounded up and every cap down. A spend that is NaN,
infinite, negative or subnormal is refused.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, NamedTuple, get_args

from fedsim.common.errors import InputError, Refused
from fedsim.privacy import gaussian
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.protocol.plan import Part

DISTANCE_SHARE = 1e-3
"""Share of the Gaussian plans' delta that pays for the distance of discrete noise from Gaussian noise."""

_PROFILE_ERROR = 1e-9  # the profile's own rounding is about 1e-12 of it

_NAMES = {
    "mu_sq": "mu^2 of Gaussian plans",
    "epsilon": "epsilon of sampled plans",
    "delta": "delta of sampled plans",
    "distance": "total-variation distance of discrete noise",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a plan, or of all runs of a silo: four numbers that each add up. Refused if one is no float, or
    NaN, infinite, negative or subnormal.
    """

    mu_sq: float = 0.0  # of Gaussian releases that are not sampled
    epsilon: float = 0.0  # of sampled plans
    delta: float = 0.0  # of sampled plans
    # total variation distance between the drawn noise and Gaussian noise, in Gaussian plans
    distance: float = 0.0

    def __post_init__(self) -> None:
        for name, value in self.tree().items():
            normal = type(value) is float and (value == 0 or sys.float_info.min <= value < math.inf)
            if not normal:  # NaN compares false
                raise Refused(f"{_NAMES[name]}: {value!r} is no cost")

    def tree(self) -> dict[str, float]:
        """The numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def least(self, other: Cost) -> Cost:
        """The smaller of each number, where both bound the same thing."""
        return Cost(*map(min, self.tree().values(), other.tree().values()))

    def most(self, other: Cost) -> Cost:
        """The larger of each number."""
        return Cost(*map(max, self.tree().values(), other.tree().values()))


FREE = Cost()


def up(value: Fraction) -> float:
    """The least normal float, or 0, that is not below `value` >= 0."""
    near = float(value)
    near = near if Fraction(near) >= value else math.nextafter(near, math.inf)
    return near if value == 0 else max(near, sys.float_info.min)


def down(value: Fraction) -> float:
    """The largest normal float, or 0, that is not above `value` >= 0."""
    near = float(value)
    near = near if Fraction(near) <= value else math.nextafter(near, 0.0)
    return near if near >= sys.float_info.min else 0.0


def total(costs: Iterable[Cost]) -> Cost:
    """The sum, each number rounded up."""
    sums = dict.fromkeys(_NAMES, Fraction(0))
    for cost in costs:
        for name, value in cost.tree().items():
            sums[name] += Fraction(value)
    return Cost(**{name: up(value) for name, value in sums.items()})


class OnPart(NamedTuple):
    """What a round costs the units between two places of the silo's order, and no others."""

    start: float
    stop: float
    mu_sq: float


class Stretch(NamedTuple):
    """Rounds first, first + 1, ... of equal price: mu^2 of FULL, largest mu^2 of Fresh, distance, parts."""

    first: int
    length: int
    full: float
    fresh: float
    distance: float
    parts: tuple[OnPart, ...] = ()


@dataclass(frozen=True)
class Price:
    """Cost of a run's rounds to the account (`Account`)."""

    stretches: tuple[Stretch, ...]  # the run's rounds, ascending
    sampled: Cost = FREE  # of a plan with sampled batches, whole from its first answer on; else free

    @property
    def whole(self) -> Cost:
        """Cost of all rounds."""
        return self.of(self.rounds)

    @property
    def rounds(self) -> list[int]:
        """The run's rounds, ascending."""
        return [r for stretch in self.stretches for r in range(stretch.first, stretch.first + stretch.length)]

    def of(self, rounds: Iterable[int]) -> Cost:
        """Cost of these rounds together, rounded up: FULL releases add, those on one part too, and of parts
        or Fresh releases the largest counts. Refused if one is not in the plan.
        """
        chosen = Counter(self.stretch(r)[2:] for r in set(rounds))
        if not chosen or self.sampled != FREE:
            return self.sampled if chosen else FREE
        full = sum((count * Fraction(each[0]) for each, count in chosen.items()), Fraction(0))
        fresh = max(Fraction(each[1]) for each in chosen)
        parts: defaultdict[tuple[float, float], Fraction] = defaultdict(Fraction)
        for (*_, own), count in chosen.items():
            for start, stop, mu_sq in own:
                parts[start, stop] += count * Fraction(mu_sq)
        distance = sum((count * Fraction(each[2]) for each, count in chosen.items()), Fraction(0))
        return Cost(mu_sq=up(full + max(fresh, *parts.values(), Fraction(0))), distance=up(distance))

    def stretch(self, round_index: int) -> Stretch:
        """The stretch that a round is in; Refused if it is not in the plan."""
        place = bisect_right(self.stretches, round_index, key=lambda stretch: stretch.first) - 1
        if place >= 0:
            found = self.stretches[place]
            if round_index < found.first + found.length:
                return found
        raise Refused(f"round {round_index} is not in the run's plan")

    def tree(self) -> dict[str, Any]:
        """Plain values, for `from_tree`."""
        # without parts the five numbers that ledgers before parts hold
        stretches = [[*each[:5], *([each.parts] if each.parts else [])] for each in self.stretches]
        return {"stretches": stretches, "sampled": self.sampled.tree()}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Price:
        """The inverse of `tree`."""
        stretches = (
            Stretch(
                first, length, full, fresh, distance, tuple(OnPart(*part) for each in parts for part in each)
            )
            for first, length, full, fresh, distance, *parts in tree["stretches"]
        )
        return cls(tuple(stretches), Cost(**tree["sampled"]))


@dataclass(frozen=True)
class Caps:
    """A silo's promise over its life and the caps that keep it (module docstring), fixed at enrolment."""

    epsilon: float
    delta: float
    total: Cost

    @classmethod
    def of(
        cls, epsilon: float, delta: float, sampled_epsilon: float = 0.0, sampled_delta: float = 0.0
    ) -> Caps:
        """The caps for (epsilon, delta), where sampled plans may use (sampled_epsilon, sampled_delta) of it.
        InputError names the number that is out of bounds.
        """
        _check("lifetime.epsilon", epsilon, 0 < epsilon <= 500, "a number in (0, 500]")
        _check("lifetime.delta", delta, 1e-200 <= delta < 1, "a number in [1e-200, 1)")
        within = sampled_epsilon == 0 or 1e-200 <= sampled_epsilon <= epsilon
        hint = f"0, or a number in [1e-200, {epsilon:g}]"
        _check("lifetime.sampled.epsilon", sampled_epsilon, within, hint)
        within = sampled_delta == 0 or 1e-200 <= sampled_delta < delta
        _check("lifetime.sampled.delta", sampled_delta, within, f"0, or a number in [1e-200, {delta:g})")
        left, factor = Fraction(delta) - Fraction(sampled_delta), 1 + math.exp(epsilon) * (1 + 1e-15)
        distance = down(Fraction(DISTANCE_SHARE) * left / Fraction(factor))
        gaussian_delta = down(left - Fraction(factor) * Fraction(distance))
        gaussian_epsilon = down(Fraction(epsilon) - Fraction(sampled_epsilon))
        mu = float(gaussian.mu(gaussian_epsilon, gaussian_delta * (1 - _PROFILE_ERROR)))
        sampled = float(sampled_epsilon), float(sampled_delta)
        return cls(float(epsilon), float(delta), Cost(down(Fraction(mu) ** 2), *sampled, distance))

    def tree(self) -> dict[str, object]:
        """Plain values, for `from_tree`."""
        return asdict(self)

    @classmethod
    def from_tree(cls, tree: Mapping[str, object]) -> Caps:
        """The inverse of `tree`."""
        total = tree["total"]
        assert isinstance(total, dict)
        return cls(float(str(tree["epsilon"])), float(str(tree["delta"])), Cost(**total))


PARTS: tuple[Part, ...] = get_args(Part)


class Column(NamedTuple):
    """An account's sums over the runs that read one part of the records."""

    charged: Cost
    reserved: Cost
    left: Cost


class Account:
    """Sums of what the runs of a silo have reserved and used, never above the caps (module docstring).

    A run reserves the cost of its whole plan before it answers; when it closes, what it used stands instead.
    """

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self._held: dict[str, Cost] = {}
        self._parts: dict[str, Part] = {}
        self._open: set[str] = set()

    def reserve(self, run: str, cost: Cost, part: Part = "training") -> None:
        """Set the cost of a plan that reads this part aside. Refused if it does not fit beside what all runs
        of the part have reserved and used; nothing is set aside.
        """
        if run in self._held:
            raise Refused("a run reserves once")
        self.check(cost, part)
        self._held[run], self._parts[run] = cost, part
        self._open.add(run)

    def check(self, cost: Cost, part: Part = "training") -> None:
        """Refuse a cost that does not fit; nothing is set aside."""
        if part not in PARTS:
            raise Refused("a run reads a part of the records, training or holdout")
        caps = self.caps.total.tree()
        of, left = " on held-out records" * (part == "holdout"), self._left(part)
        for name, value in cost.tree().items():
            if Fraction(value) > left[name]:
                raise Refused(
                    f"the silo's lifetime budget cannot carry this run{of}: {_NAMES[name]} is "
                    f"{shown_up(value)}, {shown_down(down(left[name]))} of {shown_down(caps[name])} is left"
                )

    def charge(self, run: str, used: Cost) -> Cost:
        """Put what a run used in the place of its reservation, and return it; never more than was reserved.
        Refused if the run holds no reservation.
        """
        if run not in self._open:
            raise Refused("the run has no reservation")
        self._held[run] = used.least(self._held[run])  # both bound what it released
        self._open.discard(run)
        return self._held[run]

    def column(self, part: Part) -> Column:
        """What runs that read a part have used and reserved, rounded up, and what is left, rounded down."""
        own = {run: cost for run, cost in self._held.items() if self._parts[run] == part}
        charged = total(cost for run, cost in own.items() if run not in self._open)
        reserved = total(cost for run, cost in own.items() if run in self._open)
        return Column(charged, reserved, Cost(**{k: down(value) for k, value in self._left(part).items()}))

    @property
    def left(self) -> Cost:
        """The most that a further run may cost, of whichever records."""
        return self.column("training").left.least(self.column("holdout").left)

    @property
    def reserved(self) -> Cost:
        """Cost that open runs have reserved: the larger one of the two parts."""
        return self.column("training").reserved.most(self.column("holdout").reserved)

    @property
    def charged(self) -> Cost:
        """Cost that closed runs used: the larger one of the two parts."""
        return self.column("training").charged.most(self.column("holdout").charged)

    def _left(self, part: Part) -> dict[str, Fraction]:
        left = {name: Fraction(value) for name, value in self.caps.total.tree().items()}
        for cost in (cost for run, cost in self._held.items() if self._parts[run] == part):
            for name, value in cost.tree().items():
                left[name] -= Fraction(value)
        return left


def _check(field: str, value: float, good: bool, hint: str) -> None:
    if not good:  # NaN is not
        raise InputError(field, value, hint)
