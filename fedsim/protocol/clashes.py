"""What does not go with what: one table, which every door asks.

A row has facts that exclude each other, why, and what to use instead. It names its doors, where a run is
refused before anything is spent. A door must know all facts of its rows: to ask for one that it does not know
is an error, so that no row is skipped. A scenario's page of the manual is made from the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedsim.common.errors import InputError, Refused
from fedsim.protocol.batch import Poisson
from fedsim.protocol.plan import Plan
from fedsim.protocol.statistics import LONGER, OPPOSITE, is_drawn, statistic
from fedsim.protocol.unit import RECORD, Person, Rule

Door = Literal["scenario", "deployment", "offer", "gate", "sweep", "tuning", "fold", "audit", "release"]
Told = str | bool  # of a fact: whether it holds, or what fills a row's words where it does
_HEADS = ("gradient", "gradient_difference")
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
        return OF_PLANS[name](self.plan)


def _of_asked(fits: Callable[[str], bool]) -> Callable[[Plan], Told]:
    """The first statistic of a plan that fits."""
    return lambda plan: min((each.statistic for each in plan.queries if fits(each.statistic)), default=False)


def _other_than(names: Collection[str]) -> Callable[[Plan], Told]:
    return _of_asked(lambda name: name not in names)


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
    "unit record": lambda plan: plan.unit == RECORD,
    "unit person": lambda plan: plan.unit != RECORD,
    "bound clip or mean": lambda plan: (
        isinstance(plan.unit, Person) and not plan.unit.weighted and plan.unit.bound
    ),
    "bound clip": lambda plan: isinstance(plan.unit, Person) and plan.unit.bound == "clip",
    "add_remove": lambda plan: plan.unit.one_sided,
    "a unit is replaced": lambda plan: not plan.unit.one_sided,
    "replace_person": lambda plan: plan.unit.relation == "replace_person",
    "replace_values": lambda plan: plan.unit.relation == "replace_values",
    "silos_per_person above 1": lambda plan: plan.unit.silos_per_person > 1,
    "h to be chosen": lambda plan: isinstance(plan.unit, Person) and isinstance(plan.unit.h, Rule),
    "no histogram of records": lambda plan: not OF_PLANS["contributions"](plan),
    "contributions": _of_asked("contributions".__eq__),
    "minimiser or label_projection": _of_asked(("minimiser", "label_projection").__contains__),
    "label_projection": _of_asked("label_projection".__eq__),
    "an exponential mechanism": _of_asked(is_drawn),
    "a private clip": _of_asked(LONGER.__eq__),
    "statistics beside gradients": _other_than(_HEADS),
    "statistics that ask no group": _of_asked(lambda name: not statistic(name).by_group),
    "statistics beside counts": _other_than(_COUNTS),
    "batches drawn at random": lambda plan: plan.sampled,
    "statistics with a small spread on Poisson batches": _halved,
    "batches of a fixed size": lambda plan: min(
        {ask.batch.sampler for ask in plan.asks} - {"full", "poisson"}, default=False
    ),
}

FOLD = (
    "a network",
    "other silos in every round",
    "noise that is given",
    "secure aggregation",
    "parameters by a theorem",
    "a plug-in",
    "answers of any size",
    "weights by precision",
    "prepare",
    "a private clip",
    "a unit of persons",
    "public records",
)
"""What keeps a run of a sweep from being made together with others (`fedsim.simulation.side_by_side`)."""


class Clash(NamedTuple):
    """Facts that exclude each other; `{0}`, `{1}` in the words are what these say of themselves."""

    doors: tuple[Door, ...]
    field: str  # of a scenario, the one to mend
    facts: tuple[str, ...]
    words: str


def _rows(
    doors: tuple[Door, ...], name: str, rows: Mapping[tuple[str, ...], str], why: str = "{}"
) -> Iterator[Clash]:
    """Rows of one field and the same doors; each one's own words within those that all share."""
    return (Clash(doors, name, facts, why.replace("{}", words)) for facts, words in rows.items())


def _at_once(door: Door, what: str) -> Iterator[Clash]:
    return _rows((door,), "runtime.noise", {("noise drawn at once",): f"silos: aggregate is for {what}"})


_UNIT, _MECHANISM, _TYPE = "privacy.unit", "privacy.mechanism", "runtime.dtype"
_PRICED: tuple[Door, ...] = ("scenario", "gate")
_EVALUATED: tuple[Door, ...] = ("scenario", "deployment")

CLASHES: tuple[Clash, ...] = (
    *_rows(
        _PRICED,
        _UNIT,
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
    *_rows(
        _PRICED,
        _UNIT,
        {
            ("add_remove", "shuffled messages"): "relation add_remove",
            ("silos_per_person above 1", "shuffled messages"): "silos_per_person above 1",
        },
        "{} with mechanism {1}: it has a price for a person replaced in one silo; use gaussian or "
        "summed_gaussian",
    ),
    *_rows(
        _PRICED,
        _MECHANISM,
        {
            ("protection of groups alone", "statistics that ask no group"): "{1}",
            ("protection of groups alone", "batches drawn at random"): "batches drawn at random",
            ("protection of groups alone", "unit person"): "person",
        },
        "it has no price for {}; use fair_minibatch_sgd, full batches and unit record",
    ),
    *_rows(
        _PRICED,
        _MECHANISM,
        {
            ("secure aggregation", "an exponential mechanism"): (
                "{1} draws from a silo's own records, and sums have no place for that; use gaussian"
            ),
            ("shuffled messages", "statistics beside gradients"): (
                "{0} serves gradients alone, not {1}; use summed_gaussian"
            ),
        },
    ),
    *_rows(
        ("gate",),
        "privacy.epsilon",
        {
            ("public silo", "an exponential mechanism"): (
                "silo {0} is public, and the plan's draws are all noise: give a budget"
            )
        },
    ),
    *_rows(
        ("scenario",),
        _UNIT + ".bound",
        {
            ("bound clip or mean", "a private clip"): (
                "limit or smooth: clip_norm counts records' gradients, and bound {0} clips persons'"
            ),
            ("bound clip", "preconditioned_sgd"): (
                "mean, limit or smooth: by clip a person's records weigh less in the moment than in the "
                "gradients that it divides"
            ),
        },
    ),
    *_rows(
        ("scenario", "offer"),
        "algorithm.clip_norm",
        {
            ("secure aggregation", "a private clip"): (
                "a number where mechanism is {0}: answers to longer have not the size of gradients"
            )
        },
    ),
    *_rows(
        ("scenario", "offer"),
        _MECHANISM,
        {
            ("secure aggregation", "messages of several sizes"): (
                "{0} adds up messages of one size a round, and the algorithm's differ; use gaussian"
            )
        },
    ),
    *_rows(
        _PRICED,
        "algorithm.batch",
        {
            ("a unit is replaced", "statistics with a small spread on Poisson batches"): (
                "{1}: it has no price for such batches; use full or fresh ones"
            )
        },
    ),
    *_rows(
        ("offer",),
        "algorithm.batch",
        {
            ("secure aggregation", "batches drawn at random"): (
                "sampled batches with secure aggregation; use full or fresh ones"
            )
        },
    ),
    *_rows(
        ("offer",),
        "algorithm",
        {
            ("secure aggregation", "memory"): (
                "the algorithm's silo method keeps memory, and in sums it has no answers to keep"
            ),
            ("held-out records", "statistics beside counts"): (
                "held-out records answer score_histogram and joint alone"
            ),
        },
    ),
    *_rows(
        ("offer",),
        "privacy.epsilon",
        {("secure aggregation", "public silo"): "silo {1} is public, and takes part in no sums"},
    ),
    *_rows(
        ("offer",),
        _TYPE,
        {
            ("float32", "batches drawn at random"): "sampled batches",
            ("float32", "unit person"): "persons",
            ("float32", "a plug-in's problem"): "a plug-in's graph",  # a record that raises moves others
        },
        "float32 with {}, where its terms are not exact; give float64",
    ),
    *_rows(
        ("deployment",),
        _MECHANISM,
        {("a simulation's mechanism",): "exists in simulation only"},
    ),
    *_rows(("deployment",), "prepare", {("prepare",): "exists in simulation only: leave it out"}),
    *_rows(("deployment",), _UNIT + ".h", {("a stage for h",): "exists in simulation only: give a number"}),
    *_rows(("deployment",), "privacy.epsilon", {("unlimited",): "exists in simulation only; give a number"}),
    *_rows(
        ("scenario",),
        "runtime.noise",
        {
            ("noise drawn at once", "noise that is not Gaussian"): "mechanism gaussian",
            ("noise drawn at once", "an algorithm that is not linear or has memory"): (
                "linear algorithms without memory"
            ),
            ("noise drawn at once", "an exponential mechanism"): "Gaussian noise",
            ("noise drawn at once", "prepare"): "runs without prepare",
            ("noise drawn at once", "evaluate"): "runs without evaluate",
            ("noise drawn at once", "counts of clipped terms"): "report.clipping false",
            ("noise drawn at once", "hosts of silos"): "silo_hosts 0",
        },
        "silos: aggregate is for {}",
    ),
    *_at_once("deployment", "simulations"),
    *_at_once("sweep", "single runs, not sweeps and their tuning"),
    *_at_once("release", "runs that train a model"),
    *_at_once("audit", "runs, and an audit looks at single silos"),
    *_rows(
        _EVALUATED,
        "evaluate",
        {
            ("evaluate", "add_remove"): "is for numbers of persons that are public, not relation add_remove",
            ("evaluate", "shuffled messages"): "mechanism {1} serves gradients alone; use summed_gaussian",
            ("evaluate by bins and group", "secure aggregation"): (
                "is for either bins or by_group, since secure aggregation adds up answers of one size"
            ),
        },
    ),
    *_rows(
        ("scenario",),
        "evaluate",
        {("evaluate", "no budget"): "is for silos with a budget, neither unlimited nor public"},
    ),
    *_rows(
        ("tuning",),
        _MECHANISM,
        {
            ("private tuning", "secure aggregation"): (
                "private tuning needs a mechanism that protects each silo's own scores"
            ),
            ("private tuning", "protection of groups alone"): (
                "private tuning counts records' mistakes, and this protects groups alone; use gaussian"
            ),
        },
    ),
    *_rows(
        ("tuning",),
        _UNIT,
        {("private tuning", "add_remove"): "", ("private tuning", "silos_per_person above 1"): ""},
        "private tuning is for persons of one silo each, whose number is public",
    ),
    *_rows(
        ("tuning",),
        "privacy.calibration",
        {
            ("private tuning", "a calibration beside accountant"): (
                "private tuning needs calibration accountant, which finds the noise for a budget"
            )
        },
    ),
    *_rows(("audit",), "prepare", {("prepare",): "left out: an audit has no stages"}),
    *_rows(("audit",), _UNIT + ".h", {("a stage for h",): "a number: an audit has no stages"}),
    *_rows(
        ("release",),
        _UNIT + ".h",
        {("a stage for h",): "a number, or bound mean: a release takes means, whatever h is"},
    ),
    *_rows(("fold",), "", {(fact,): "runs by itself in a sweep" for fact in FOLD}),
)


def clashes(facts: Facts, door: Door) -> Iterator[tuple[str, str]]:
    """The fields and words of the rows that a run breaks at a door, in the table's order."""
    for row in CLASHES:
        if door in row.doors and all(map(facts.told, row.facts)):
            yield row.field, row.words.format(*map(facts.told, row.facts))


def check(facts: Facts, door: Door, values: Callable[[str], object] | None = None) -> None:
    """Refuse the first of them.

    Raises:
        InputError: on its field, if `values` gives a scenario's fields.
        Refused: else.
    """
    for name, words in clashes(facts, door):
        if values is None:
            raise Refused(f"offer: {words}" if door == "offer" else words)
        raise InputError(f"scenario.{name}", values(name), words)
