"""What is known of a run at a door, and what does not go with what in a silo's gate.

A row has facts that exclude each other, why, and what to use instead. It names its doors, where a run is
refused before anything is spent. A door must know all facts of its rows: to ask for one that it does not know
is an error, so that no row is skipped. `fedsim.protocol.clashes` has the rows of the other doors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedsim.common.errors import Refused
from fedsim.protocol.batch import Poisson
from fedsim.protocol.plan import Plan
from fedsim.protocol.statistics import LONGER, OPPOSITE, Statistic, statistic

Door = Literal["scenario", "deployment", "offer", "gate", "sweep", "tuning", "fold", "audit", "release"]
Told = str | bool  # of a fact: whether it holds, or what fills a row's words where it does
_COUNTS = ("score_histogram", "joint")


@dataclass(frozen=True)
class Facts:
    """What is known of a run at a door: its plan, and by name what is no property of one."""

    plan: Plan | None = None
    more: Mapping[str, Told] = field(default_factory=dict)

    def told(self, name: str) -> Told:
        """A fact by its name; LookupError if the door does not know it."""
        if name in self.more:
            return self.more[name]
        if self.plan is None:
            raise LookupError(f"the fact {name!r} is not known here")
        of_unit = self.plan.unit.facts
        return of_unit[name] if name in of_unit else OF_PLANS[name](self.plan)


def _of_asked(fits: Callable[[Statistic], bool]) -> Callable[[Plan], Told]:
    """The first statistic of a plan that fits."""
    return lambda plan: min(
        (each.statistic for each in plan.queries if fits(statistic(each.statistic))), default=False
    )


def _named(*names: str) -> Callable[[Plan], Told]:
    return _of_asked(lambda known: known.name in names)


def _halved(plan: Plan) -> Told:
    """A statistic that moves by less than two terms, on Poisson batches. A unit may be missing from one: that
    moves a sum by a term, which is half of what its replacement is priced at only if terms may be opposite.
    """
    for ask in plan.asks:
        for query in ask.queries if isinstance(ask.batch, Poisson) else ():
            if statistic(query.statistic).spread_of(query.options) < OPPOSITE:
                return f"{query.statistic} on {ask.batch}"
    return False


OF_PLANS: dict[str, Callable[[Plan], Told]] = {
    "no histogram of records": lambda plan: not OF_PLANS["contributions"](plan),
    "contributions": _named("contributions"),
    "minimiser or label_projection": _named("minimiser", "label_projection"),
    "label_projection": _named("label_projection"),
    "an exponential mechanism": _of_asked(lambda known: known.drawn),
    "a private clip": _named(LONGER),
    "statistics beside gradients": _of_asked(lambda known: known.by_group or not known.gradient),
    "statistics that ask no group": _of_asked(lambda known: not known.by_group),
    "statistics beside counts": _of_asked(lambda known: known.name not in _COUNTS),
    "batches drawn at random": lambda plan: plan.sampled,
    "statistics with a small spread on Poisson batches": _halved,
    "batches of a fixed size": lambda plan: min(
        {ask.batch.sampler for ask in plan.asks} - {"full", "poisson"}, default=False
    ),
}


class Clash(NamedTuple):
    """Facts that exclude each other; `{0}`, `{1}` in the words are what these say of themselves."""

    doors: tuple[Door, ...]
    field: str  # of a scenario, the one to mend
    facts: tuple[str, ...]
    words: str


def rows(
    doors: tuple[Door, ...], name: str, rows: Mapping[tuple[str, ...], str], why: str = "{}"
) -> Iterator[Clash]:
    """Rows of one field and the same doors; each one's own words within those that all share."""
    return (Clash(doors, name, facts, why.replace("{}", words)) for facts, words in rows.items())


UNIT, MECHANISM = "privacy.unit", "privacy.mechanism"
_PRICED: tuple[Door, ...] = ("scenario", "gate")

OF_GATES: tuple[Clash, ...] = (
    *rows(
        _PRICED,
        UNIT,
        {
            ("unit record", "contributions"): "contributions are records of persons; use unit person",
            ("h to be chosen", "no histogram of records"): (
                "h is to be chosen, and the plan releases no contributions; give a number"
            ),
            ("bound clip or mean", "minimiser or label_projection"): (
                "{1} with bound {0}: it is no function of clipped sums of a person's terms; use bound limit "
                "or smooth"
            ),
            ("add_remove", "minimiser or label_projection"): (
                "{1} divides by the number of persons, which add_remove keeps private; use replace_values"
            ),
            ("replace_person", "label_projection"): (
                "{1} is of labels alone, whose features and numbers are public; use replace_values"
            ),
            ("add_remove", "batches of a fixed size"): (
                "relation add_remove with {1} batches: one person more shifts every draw; use full or poisson"
            ),
            ("replace_values", "secure aggregation"): (
                "relation replace_values with sums: numbers of records are public, and sums hide them; use "
                "replace_person"
            ),
            ("silos_per_person above 1", "secure aggregation", "batches drawn at random"): (
                "silos_per_person above 1 with batches drawn at random and sums: a person may be in several "
                "terms of one sum; use full or fresh batches, or mechanism gaussian"
            ),
        },
    ),
    *rows(
        _PRICED,
        UNIT,
        {
            ("add_remove", "shuffled messages"): "relation add_remove",
            ("silos_per_person above 1", "shuffled messages"): "silos_per_person above 1",
        },
        "{} with mechanism {1}: it has a price for a person replaced in one silo; use gaussian or "
        "summed_gaussian",
    ),
    *rows(
        _PRICED,
        MECHANISM,
        {
            ("protection of groups alone", "statistics that ask no group"): "{1}",
            ("protection of groups alone", "batches drawn at random"): "batches drawn at random",
            ("protection of groups alone", "unit person"): "person",
        },
        "it has no price for {}; use fair_minibatch_sgd, full batches and unit record",
    ),
    *rows(
        _PRICED,
        MECHANISM,
        {
            ("secure aggregation", "an exponential mechanism"): (
                "{1} draws from a silo's own records, and sums have no place for that; use gaussian"
            ),
            ("shuffled messages", "statistics beside gradients"): (
                "{0} serves gradients alone, not {1}; use summed_gaussian"
            ),
        },
    ),
    *rows(
        ("gate",),
        "privacy.epsilon",
        {
            ("public silo", "an exponential mechanism"): (
                "silo {0} is public, and the plan's draws are all noise: give a budget"
            )
        },
    ),
    *rows(
        _PRICED,
        "algorithm.batch",
        {
            ("a unit is replaced", "statistics with a small spread on Poisson batches"): (
                "{1}: it has no price for such batches; use full or fresh ones"
            )
        },
    ),
)
"""Rows that a gate asks, whoever asked them before."""
OF_SILOS: tuple[Clash, ...] = (
    *rows(
        ("offer",),
        "algorithm.batch",
        {
            ("secure aggregation", "batches drawn at random"): (
                "sampled batches with secure aggregation; use full or fresh ones"
            )
        },
    ),
    *rows(
        ("offer",),
        "algorithm",
        {
            ("held-out records", "statistics beside counts"): (
                "held-out records answer score_histogram and joint alone"
            ),
        },
    ),
    *rows(
        ("offer",),
        "privacy.epsilon",
        {("secure aggregation", "public silo"): "silo {1} is public, and takes part in no sums"},
    ),
    *rows(
        ("offer",),
        "runtime.dtype",
        {
            ("float32", "batches drawn at random"): "sampled batches",
            ("float32", "unit person"): "persons",
            ("float32", "a plug-in's problem"): "a plug-in's graph",  # a record that raises moves others
        },
        "float32 with {}, where its terms are not exact; give float64",
    ),
)
"""Rows that a deployed silo asks of a plan."""


def broken(table: Iterable[Clash], facts: Facts, door: Door) -> Iterator[tuple[str, str]]:
    """The fields and words of the rows that a run breaks at a door, in the table's order."""
    for row in table:
        if door in row.doors and all(map(facts.told, row.facts)):
            yield row.field, row.words.format(*map(facts.told, row.facts))


def check_silo(facts: Facts) -> None:
    """Refuse what breaks a row of a deployed silo's."""
    for _, words in broken(OF_SILOS, facts, "offer"):
        raise Refused(f"offer: {words}")


def check_gate(facts: Facts) -> None:
    """Refuse what breaks a row of a gate's."""
    for _, words in broken(OF_GATES, facts, "gate"):
        raise Refused(words)
