"""Metrics of a model on test records: names, titles, and which direction is better.

`error` and `loss` are the problem's own, means over records; `person_loss` is the mean over persons, of each
one's mean over the test records, where the data say whose they are. `fedsim.measure.groups` compares groups
of records; the others are scikit-learn's (`fedsim.measure.metrics`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedsim.common.errors import InputError
from fedsim.problems.kinds import Problem, gives_probabilities


class Metric(NamedTuple):
    """Words for a reader, a table's heading, whether more is better, and which targets have it."""

    title: str
    short: str
    higher: bool = False
    of: Literal["classes", "numbers", "all", "persons", "groups"] = "classes"
    needs_probabilities: bool = False


METRICS = {
    "error": Metric("test error", "error", of="all"),
    "loss": Metric("test loss", "loss", of="all"),
    "log_loss": Metric("log loss", "log loss", needs_probabilities=True),
    "auc": Metric("ROC AUC", "AUC", higher=True),
    "average_precision": Metric("average precision", "avg. prec.", higher=True),
    "balanced_accuracy": Metric("balanced accuracy", "bal. acc.", higher=True),
    "sensitivity": Metric("sensitivity", "sens.", higher=True),
    "specificity": Metric("specificity", "spec.", higher=True),
    "brier": Metric("Brier score", "Brier", needs_probabilities=True),
    "rmse": Metric("root mean squared error", "RMSE", of="numbers"),
    "mae": Metric("mean absolute error", "MAE", of="numbers"),
    "r2": Metric("R^2", "R^2", higher=True, of="numbers"),
    "person_loss": Metric("test loss, each person weighing the same", "loss by person", of="persons"),
    "parity_gap": Metric("parity gap", "parity gap", of="groups"),
    "odds_gap": Metric("odds gap", "odds gap", of="groups"),
    "opportunity_gap": Metric("opportunity gap", "opport. gap", of="groups"),
    "parity_linf": Metric("largest distance from the overall rate", "parity L-inf", of="groups"),
    "ermi": Metric("ERMI of predicted probabilities", "ERMI", of="groups", needs_probabilities=True),
    "ermi_hard": Metric("ERMI of predicted classes", "hard ERMI", of="groups"),
}
BY_SKLEARN = tuple(name for name, metric in METRICS.items() if metric.of != "all")
BY_GROUP = tuple(name for name, metric in METRICS.items() if metric.of == "groups")

BaselineName = Literal[
    "majority",
    "mean",
    "silo_alone_on_all",
    "silo_alone",
    "at_home",
    "pooled",
    "throw_away",
    "converged",
    "clipped",
]

if TYPE_CHECKING:
    MetricName = str
else:
    MetricName = Literal[tuple(METRICS)]


def applicable(problem: Problem, classes: int, groups: Sequence[str] = ()) -> tuple[str, ...]:
    """The metrics that apply to a problem, a target of `classes` classes, 0 for a number, and `groups`."""
    kinds = ("all", *(("classes", *["groups"] * bool(groups)) if classes else ("numbers",)))
    known = gives_probabilities(problem)
    return tuple(
        name
        for name, metric in METRICS.items()
        if metric.of in kinds and (known or not metric.needs_probabilities)
    )


NO_GROUPS = "compares groups of records, which are not known: name their column in data.attribute"


def check_metric(
    metric: str,
    threshold: float,
    problem: Problem,
    classes: int,
    groups: Sequence[str] = (),
    field: str = "metric",
) -> None:
    """Check that problem and data have the metric in this field, and a threshold if one is set."""
    known, what = applicable(problem, classes, groups), type(problem).__name__
    if metric in BY_GROUP and classes and not groups:
        raise InputError(f"scenario.report.{field}", metric, NO_GROUPS)
    if metric not in known:
        suits = METRICS[metric].of in (("classes", "groups") if classes else ("numbers",))
        target = f"the target is {f'{classes} classes' if classes else 'a number'}"
        why = f"{what} gives no probabilities" if suits else target
        raise InputError(f"scenario.report.{field}", metric, f"{why}; use {', '.join(known)}")
    if threshold != 0.5 and not (classes == 2 and gives_probabilities(problem)):
        hint = "0.5: a threshold needs two classes, and a problem that gives their probabilities"
        raise InputError("scenario.report.threshold", threshold, hint)


def better(metric: str, value: float, other: float) -> bool:
    """Whether `value` is better than `other`."""
    return value > other if METRICS[metric].higher else value < other
