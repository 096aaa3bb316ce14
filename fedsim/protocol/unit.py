"""The unit of privacy: what one of two neighbouring data sets has in another's place.

**Contract.** A unit's term has L2 norm at most the clip; n counts units; neighbours differ in one unit. With
unit `record` a record's clipped term is that. With unit `person` all of a person's records in the silo become
one term by the unit's `bound`, whatever their number s is:

| bound | a person's term |
|---|---|
| `clip` | clip(sum of the records' terms) |
| `mean` | clip(mean of the records' terms) |
| `limit`, h | sum of the clipped terms of at most h own records, chosen at random, over h |
| `smooth`, h | min(h, s) / (h s) times the sum of all clipped terms |

Each has norm <= clip: the first two by the clip; the others are at most h and s terms of norm <= clip, times
1 / h and at most 1 / s. So sensitivity, noise and price are those of n persons, and no number of records
enters them or a divisor. A statistic that no clip bounds, and a choice by scores, takes the mean over a
person's records, whatever the bound is: a mean of numbers in [0, 1], or of one-hot vectors, is within the
same convex set. `presence` and `capped_sum` are one number in [0, 1] of all of them. A minimiser and a label
projection need a sum of clipped terms: `limit` or `smooth`.

Sources: Amin et al. 2019, Algorithm 1 (`limit`); Epasto et al. 2020, Section 4 (`smooth`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from fedsim.common.choice import Choice, Setting, Shorthand
from fedsim.common.errors import InputError, Refused
from fedsim.protocol.batch import Batch, Poisson
from fedsim.protocol.statistics import statistic

Bound = Literal["clip", "mean", "limit", "smooth"]
Relation = Annotated[Literal["replace_person", "replace_values", "add_remove"], Setting("Relation")]
Protects = Literal["record", "label", "group"]  # of a record: all, or its label or group alone


class _Unit:
    """What follows from a unit's relation and bound; an account has no bound."""

    __slots__ = ()
    name: ClassVar[str]
    relation: str = "replace_record"
    silos_per_person: int = 1  # that one has records in at most
    expected_persons: int | None = None  # the public number that stands for a private one
    bound: str = ""
    h: Rule | int | None = None

    @property
    def weighted(self) -> bool:
        """Whether its term is a weighted sum of its records' clipped terms."""
        return self.bound in ("limit", "smooth")

    @property
    def one_sided(self) -> bool:
        """Whether neighbours have one unit more or fewer."""
        return self.relation == "add_remove"

    @property
    def shifts(self) -> bool:
        """Whether a neighbour's other units may be drawn, or their records, in another way."""
        return self.one_sided or self.bound == "limit"

    def fits(self, n: int, said: int) -> bool:
        """Whether a silo of n units may state this number: n, or any where n is private."""
        return self.one_sided or n == said

    def removed_from(self, batch: Batch) -> bool:
        """Whether a neighbour's batch lacks the unit, where it is drawn at random."""
        return self.one_sided and isinstance(batch, Poisson)

    def spread(self, name: str, options: tuple[float, ...] = ()) -> float:
        """How far it moves a statistic's sum, over the clip: by two terms' distance, or by one term."""
        return 1.0 if self.one_sided else statistic(name).spread_of(options)

    def half_range(self, name: str, options: tuple[float, ...]) -> float:
        """Half of how far apart it moves two scores of a choice: the epsilon drawn with is over this."""
        return statistic(name).added(options) if self.one_sided else 1.0

    @property
    def facts(self) -> dict[str, str | bool]:
        """What `fedsim.protocol.clashes` is to know of it."""
        return {
            "unit record": self.name == "record",
            "unit person": self.name == "person",
            "bound clip or mean": self.bound in ("clip", "mean") and self.bound,
            "bound clip": self.bound == "clip",
            "a unit is replaced": not self.one_sided,
            "silos_per_person above 1": self.silos_per_person > 1,
            "h to be chosen": isinstance(self.h, Rule),
            **{each: self.relation == each for each in ("replace_person", "replace_values", "add_remove")},
        }

    def check_plan(self, unit: _Unit) -> None:
        """Refuse a plan of another unit than the account's, or of fewer silos."""
        if unit.relation != self.relation:
            protects = f"the silo's account protects a {self.name} ({self.relation}), for its whole life"
            raise Refused(f"offer: it is of unit {unit.name} ({unit.relation}); {protects}")
        if unit.silos_per_person < self.silos_per_person:
            hint = f"the silo's account asks for {self.silos_per_person} or more, for its whole life"
            raise Refused(f"offer: its silos_per_person is {unit.silos_per_person}; {hint}")


@dataclass(frozen=True, slots=True)
class Record(_Unit):
    """One record; neighbours replace it."""

    name: ClassVar[str] = "record"
    weighing: ClassVar[str] = "records"  # what private counts and scores weigh


@dataclass(frozen=True, slots=True)
class Rule:
    """h that is chosen (`fedsim.scenario.contributions`), or asked for: then every query names a number."""

    choose: Literal["sweet_spot", "tradeoff", "quantile", "private_root"]
    profile: Annotated[dict[int, float] | None, Setting("Profile")] = None
    share: Annotated[float | None, Setting("Share")] = None
    q: Annotated[float, Setting("Q")] = 0.9
    largest: Annotated[int, Setting("Largest")] = 50


@dataclass(frozen=True, slots=True)
class Person(_Unit):
    """All records of one person in the silo.

    Neighbours replace a person by another with any number of records (`replace_person`), by one with as many
    (`replace_values`; who has how many records is public then), or have one person more or fewer
    (`add_remove`; the number of persons is private then, and the silo declares one in its place).
    """

    name: ClassVar[str] = "person"
    weighing: ClassVar[str] = "persons, each weighs the same"
    bound: Annotated[Bound, Setting("Bound")] = "clip"
    h: Annotated[Rule | int | None, Setting("H")] = None
    relation: Relation = "replace_person"
    silos_per_person: Annotated[int, Setting("SilosPerPerson")] = 1

    def __post_init__(self) -> None:
        if self.weighted and self.h is None:
            raise InputError("h", None, f"is required with bound {self.bound}: a number of records")
        if not self.weighted and self.h is not None:
            hint = f"bound {self.bound} takes all records of a person; h is for limit and smooth"
            raise InputError("h", self.h, hint)


@dataclass(frozen=True, slots=True)
class PersonAccount(_Unit):
    """A silo's account of persons: what is fixed for its whole life. Bound and h are each plan's own."""

    name: ClassVar[str] = "person"
    relation: Relation = "replace_person"
    expected_persons: Annotated[int | None, Setting("ExpectedPersons")] = None
    silos_per_person: Annotated[int, Setting("LeastSilosPerPerson")] = 1

    def __post_init__(self) -> None:
        if (self.relation == "add_remove") != (self.expected_persons is not None):
            hint = "is for relation add_remove alone, which requires it: the number of persons is private"
            raise InputError("expected_persons", self.expected_persons, f"{hint} there")


def check_h(unit: Unit, h: float | None, clipped: bool) -> None:
    """Refuse an h that the unit does not ask for, or none where it does and terms (`clipped`) need one."""
    most = unit.h.largest if isinstance(unit.h, Rule) else 0
    if (h is None and clipped and most) or (h is not None and not (1 <= h <= most and h % 1 == 0)):
        raise Refused(f"h is {h}; it is from 1 to {most} where the unit asks for it, else there is none")


def stated(unit: Record | Person | PersonAccount) -> dict[str, Any]:
    """Plain values, as a silo's file and its receipts have them."""
    return {"name": unit.name} | {name: each for name, each in asdict(unit).items() if each is not None}


Unit = Annotated[Record | Person, Choice("name"), Shorthand("name")]
AccountUnit = Annotated[Record | PersonAccount, Choice("name"), Shorthand("name")]
RECORD = Record()
