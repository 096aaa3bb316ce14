"""What does not go with what: one table, which every door asks.

A scenario's page of the manual is made from the same rows; `fedsim.protocol.facts` says what a row is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fedsim.common.errors import InputError, Refused
from fedsim.protocol.facts import MECHANISM, OF_GATES, OF_SILOS, UNIT, Clash, Door, Facts, broken, rows

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


_AT_ONCE = ("runtime.noise", "noise drawn at once")
_ALONE: dict[Door, dict[tuple[str, str], str]] = {
    "deployment": {
        (MECHANISM, "a simulation's mechanism"): "exists in simulation only",
        ("prepare", "prepare"): "exists in simulation only: leave it out",
        (UNIT + ".h", "a stage for h"): "exists in simulation only: give a number",
        ("privacy.epsilon", "unlimited"): "exists in simulation only; give a number",
        (
            "privacy.epsilon",
            "a silo named as public",
        ): "numbers: its own operator says so (public_silo: true)",
        ("algorithm.name", "an object"): "a name: silos run algorithms of their own installation only",
        ("data.reserve", "records put aside"): "exists in simulation only: leave it out",
        ("sweep", "a sweep"): "left out: a deployed run spends real budgets once",
        ("runtime.device", "a device"): "cpu: {0} is for simulations",
        _AT_ONCE: "silos: aggregate is for simulations",
    },
    "sweep": {
        _AT_ONCE: "silos: aggregate is for single runs, not sweeps and their tuning",
        ("report.at_home", "a fit at home"): "false: it is measured in single runs, not in sweeps",
    },
    "release": {
        (UNIT + ".h", "a stage for h"): "a number, or bound mean: a release takes means, whatever h is",
        _AT_ONCE: "silos: aggregate is for runs that train a model",
    },
    "audit": {
        ("prepare", "prepare"): "left out: an audit has no stages",
        (
            "algorithm.name",
            "whitened_newton",
        ): "another, as accelerated_minibatch_sgd: an audit makes runs side by side, each of another metric",
        (UNIT + ".h", "a stage for h"): "a number: an audit has no stages",
        ("runtime.device", "a device"): "cpu: {0} is for runs, not audits",
        _AT_ONCE: "silos: aggregate is for runs, and an audit looks at single silos",
    },
}
"""What a door has no place for at all: field and fact."""
_EVALUATED: tuple[Door, ...] = ("scenario", "deployment")

CLASHES: tuple[Clash, ...] = (
    *OF_GATES,
    *OF_SILOS,
    *rows(
        ("scenario",),
        UNIT + ".bound",
        {
            ("bound clip or mean", "a private clip"): (
                "limit or smooth: clip_norm counts records' gradients, and bound {0} clips persons'"
            ),
            ("bound clip", "whitened_newton"): (
                "mean, limit or smooth: by clip a person's records weigh less in the moment than in the "
                "gradients that it whitens"
            ),
        },
    ),
    *rows(
        ("scenario",),
        "data.intercept",
        {
            (
                "no constant feature",
                "whitened_newton",
            ): "true: the constant feature has the offsets of its metric"
        },
    ),
    *rows(
        ("scenario", "offer"),
        "algorithm.clip_norm",
        {
            ("secure aggregation", "a private clip"): (
                "a number where mechanism is {0}: answers to longer have not the size of gradients"
            )
        },
    ),
    *rows(
        ("scenario", "offer"),
        MECHANISM,
        {
            ("secure aggregation", "messages of several sizes"): (
                "{0} adds up messages of one size a round, and the algorithm's differ; use gaussian"
            )
        },
    ),
    *rows(
        ("offer",),
        "algorithm",
        {
            ("secure aggregation", "memory"): (
                "the algorithm's silo method keeps memory, and in sums it has no answers to keep"
            ),
        },
    ),
    *rows(
        ("offer",),
        "problem.public",
        {
            ("code in a confined process", "public records"): (
                "public records are not for code in a confined process, where silos run a plug-in"
            )
        },
    ),
    *rows(
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
    *rows(
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
    *rows(
        ("scenario",),
        "evaluate",
        {("evaluate", "no budget"): "is for silos with a budget, neither unlimited nor public"},
    ),
    *rows(
        ("scenario",),
        "report.at_home",
        {("a fit at home", "own models"): "false: the algorithm has models of silos' own already"},
    ),
    *rows(
        ("scenario", "deployment"),
        "report.at_home",
        {
            ("a fit at home", "a loss without one"): (
                "false: it is for logistic (without score_bound), softmax and linear regression, and for the "
                "networks mlp, paired_mlp and lenet"
            )
        },
    ),
    *rows(
        ("tuning",),
        MECHANISM,
        {
            ("private tuning", "secure aggregation"): (
                "private tuning needs a mechanism that protects each silo's own scores"
            ),
            ("private tuning", "protection of groups alone"): (
                "private tuning counts records' mistakes, and this protects groups alone; use gaussian"
            ),
        },
    ),
    *rows(
        ("tuning",),
        UNIT,
        {("private tuning", "add_remove"): "", ("private tuning", "silos_per_person above 1"): ""},
        "private tuning is for persons of one silo each, whose number is public",
    ),
    *rows(
        ("tuning",),
        "privacy.calibration",
        {
            ("private tuning", "a calibration beside accountant"): (
                "private tuning needs calibration accountant, which finds the noise for a budget"
            )
        },
    ),
    *(
        Clash((door,), name, (fact,), why)
        for door, its in _ALONE.items()
        for (name, fact), why in its.items()
    ),
    *rows(("fold",), "", {(fact,): "runs by itself in a sweep" for fact in FOLD}),
)


def clashes(facts: Facts, door: Door) -> Iterator[tuple[str, str]]:
    """The fields and words of the rows that a run breaks at a door, in the table's order."""
    return broken(CLASHES, facts, door)


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
