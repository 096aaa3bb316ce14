"""Which statistics a problem has terms for, and in which precision, known before records are read.

The terms of `choice` and `minimiser` rest on what fedsim's own losses are: functions of one record's score,
convex and of a known curvature. A plug-in's word for that is no guarantee.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedsim.common.errors import Refused
from fedsim.problems.glm import OWN, GeneralisedLinear
from fedsim.problems.kinds import Problem, gives_probabilities, head, is_shipped
from fedsim.protocol.groups import Cells
from fedsim.protocol.plan import Plan
from fedsim.protocol.statistics import BY_GROUP, QueryShape
from fedsim.protocol.unit import RECORD


def check_answerable(problem: Problem, queries: Iterable[QueryShape]) -> None:
    """Refuse a query that the problem's records have no terms for."""
    for query in queries:
        if query.transform and not isinstance(problem, GeneralisedLinear):
            raise Refused("records are transformed for linear models only, and this is a network")
        if query.statistic in BY_GROUP and Cells.of(query.options).classes != max(2, problem.num_outputs):
            raise Refused(f"{query.statistic} is for other classes than the model's {problem.num_outputs}")
        if wanted := _wanted(problem, query.statistic):
            raise Refused(f"{query.statistic} is for {wanted}, not for {type(problem).__name__}")


def shifts(problem: Problem, plan: Plan) -> str:
    """What of a plan moves records of other units to other places, by name; "" where nothing does.

    In float32 a term rounds by its record's place, and a sum by its terms' places, so that a silo refuses it
    there, and a report says so. In float64 on a CPU no term does, and rounding of the sum is bounded.
    """
    reasons = {
        "sampled batches": plan.sampled,
        "persons": plan.unit != RECORD,
        "a plug-in's graph": not is_shipped(problem),  # a record that raises moves those beside it
    }
    return " and ".join(reason for reason, applies in reasons.items() if applies)


def _wanted(problem: Problem, name: str) -> str:
    """What the statistic is for, where the problem is something else."""
    loss = head(problem)
    own, classes = type(loss) in OWN, not loss.suits(0)
    linear = isinstance(problem, GeneralisedLinear) and problem.num_outputs == 1
    if name == "choice" and not own:
        return "a loss that fedsim ships"
    if name == "minimiser" and not (own and linear and loss.curvature is not None):
        return "a linear model of one output, whose loss fedsim ships and knows the curvature of"
    if name == "label_projection" and not (linear and not classes):
        return "a linear model of one number"
    if name == "mistakes" and not classes:
        return "classes"
    if name == "costed_gradient" and not (own and classes and gives_probabilities(problem)):
        return "a loss that fedsim ships and that gives probabilities"
    if name in ("log_loss", "brier", "joint") and not (classes and gives_probabilities(problem)):
        return "classes with probabilities"
    if name == "score_histogram" and not (
        loss.suits(2) and problem.num_outputs <= 2 and gives_probabilities(problem)
    ):
        return "two classes with probabilities"
    return ""
