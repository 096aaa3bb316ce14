"""Which statistics a problem has terms for, known before records are read.

The terms of `choice` and `minimiser` rest on what fedsim's own losses are: functions of one record's score,
convex and of a known curvature. A plug-in's word for that is no guarantee.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedsim.common.errors import Refused
from fedsim.problems.glm import OWN, GeneralisedLinear
from fedsim.problems.kinds import Problem, gives_probabilities, head
from fedsim.protocol.groups import Cells
from fedsim.protocol.statistics import QueryShape, statistic


def check_answerable(problem: Problem, queries: Iterable[QueryShape]) -> None:
    """Refuse a query that the problem's records have no terms for."""
    loss = head(problem)
    facts = {
        "fedsim's loss": type(loss) in OWN,
        "classes": not loss.suits(0),
        "a number as target": loss.suits(0),
        "probabilities": gives_probabilities(problem),
        "two classes": loss.suits(2) and problem.num_outputs <= 2,
        "one linear output": isinstance(problem, GeneralisedLinear) and problem.num_outputs == 1,
        "a known curvature": loss.curvature is not None,
    }
    for query in queries:
        known = statistic(query.statistic)
        if query.transform and not isinstance(problem, GeneralisedLinear):
            raise Refused("records are transformed for linear models only, and this is a network")
        if known.by_group and Cells.of(query.options).classes != max(2, problem.num_outputs):
            raise Refused(f"{known.name} is for other classes than the model's {problem.num_outputs}")
        if missing := sorted(need for need in known.needs if not facts[need]):
            needed = " and ".join(missing)
            raise Refused(f"{known.name} is for problems of {needed}, not for {type(problem).__name__}")
