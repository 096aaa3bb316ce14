"""The fields that a scenario or an offer has for a problem, and the problem that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field, WrapValidator

from fedsim.common.errors import InputError
from fedsim.common.plugins import file_of
from fedsim.common.registry import Later
from fedsim.common.section import Section, validated
from fedsim.problems.composite import Composite
from fedsim.problems.glm import OWN, ClippedLogisticRegression, KinkedLoss, LogisticRegression
from fedsim.problems.kinds import NETWORK, Problem, check, gives_probabilities, head
from fedsim.problems.registry import problem_class, problems
from fedsim.problems.regularisers import Constraint, GroupLasso, Notion, Ridge, WholeSpace

Share = Annotated[float, Field(gt=0)]
FeatureIndex = Annotated[int, Field(ge=0)]


def _of_file(value: Any, validate: Callable[[Any], str]) -> str:
    return value if file_of(value) else validate(value)


if TYPE_CHECKING:
    from fedsim.problems.fairness import Fairness
    from fedsim.problems.network_models import Model

    ProblemName = str
else:
    Model = Annotated[Any, Later("fedsim.problems.network_models:Model")]
    ProblemName = Annotated[Literal[tuple(problems())], WrapValidator(_of_file)]


class ContiguousGroups(Section):
    """Groups of neighbouring features, the last one possibly smaller."""

    size: int = Field(ge=1, description="features in a group")


class GroupLassoSection(Section):
    """weight sum_g sqrt(|g|) |w_g|_2."""

    weight: float = Field(gt=0, description="factor of the sum over groups")
    groups: (
        Annotated[tuple[Annotated[tuple[FeatureIndex, ...], Field(min_length=1)], ...], Field(min_length=1)]
        | ContiguousGroups
    ) = Field(
        description="lists of features (from 0; the constant one is the last), or {size: k} for neighbours; "
        "a feature brings its coefficients for all outputs; a feature in no list is not penalised"
    )


class RegulariserSection(Section):
    """l1 |w|_1 + l2 / 2 |w|^2 + group lasso, public and never clipped."""

    l1: float = Field(0.0, ge=0, description="weight of the l1 norm")
    l2: float = Field(0.0, ge=0, description="lambda: weight of half the squared l2 norm")
    group_lasso: GroupLassoSection | None = Field(None, description="sum of the groups' l2 norms")


class SmoothingSection(Section):
    """Moreau envelope of every record's loss; reported losses and errors stay the original loss's."""

    beta: float = Field(gt=0, description="beta: smoothness of the envelope, at most L^2 / (2 beta) below f")


class FairnessSection(Section):
    """A penalty on the dependence of predictions and groups; groups are those of `data.attribute`."""

    notion: Notion = Field(
        description="demographic_parity; equalized_odds: for each class of records; equal_opportunity: for "
        "those of class 1 (of several classes, of all but 0)"
    )
    weight: float = Field(ge=0, le=1e3, description="lambda: weight of the penalty")
    reference: Literal["uniform"] | tuple[Share, ...] = Field(
        "uniform",
        description="pi: public shares of the groups in the order of their categories, summing to 1; any "
        "will do, and those near the true ones make it ERMI",
    )
    population: Literal["records", "weights"] = Field(
        "records",
        description="whose predictions are to be fair: records, all alike, which silo_weights: size means; "
        "or weights, a population in which silo i has the share p_i",
    )


class PublicSection(Section):
    """What a run does with the records of the scenario's section `public`."""

    weight: Annotated[float, Field(ge=0, le=1e6)] | Literal["optimal"] = Field(
        0.0,
        description="kappa: f1 gains so many times their mean loss; alpha of the thesis's Algorithm 11 is "
        "1 / (1 + kappa). optimal: of least variance, by the plan's noise and public gradients",
    )
    precondition: bool = Field(
        False, description="multiply gradients by (H + 0.05 tr(H) / d I)^-1, H their Hessian at the start"
    )
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        None, description="of their file, as a run writes it: with other contents they are refused"
    )


class ProblemSection(Section):
    """What is minimised: the silos' weighted mean loss, plus a public part."""

    name: ProblemName = Field(
        description="the loss of one record; neural_network takes its classes' cross entropy, or half the "
        "squared error of a number; my.py:MyProblem is a class of a file"
    )
    model: Model | None = Field(None, description="neural_network: which network")
    regulariser: RegulariserSection = Field(RegulariserSection(), description="f1, without the constraint")
    ridge: Ridge | None = Field(None, description="pulls the parameters towards w0")
    smoothing: SmoothingSection | None = Field(None, description="smooths a loss with a kink")
    score_bound: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None,
        description="logistic_regression: clip scores to [-b, b] before loss and slope; beyond, the slope is "
        "that at the bound and not 0, as in the thesis's MNIST experiments (b = 15)",
    )
    constraint: Constraint = Field(WholeSpace(), description="W: the set that parameters stay in")
    fairness: FairnessSection | None = Field(None, description="fair_minibatch_sgd: what is to be fair")
    public: PublicSection | None = Field(None, description="public records, as a part of f1")
    start: Literal["default", "public"] = Field(
        "default",
        exclude_if=lambda start: start == "default",
        description="where a run begins; public: at the minimiser of the public records' loss",
    )
    silo_weights: Literal["equal", "size", "precision"] | tuple[Share, ...] | dict[str, Share] = Field(
        "equal",
        description="p_i: equal (1/N), by number of records, or one weight a silo (scaled to sum 1); or "
        "precision, 1 / (V^2 / K_i + d sigma_i^2), V assumptions.phi or else the clip, sigma_i of the noise "
        "on a silo's mean of K_i gradients: this changes the objective where silos differ",
    )


def problem_section(given: Mapping[str, Any]) -> ProblemSection:
    """The section with these fields; InputError if one is missing, unknown or out of bounds."""
    return validated(ProblemSection, "problem", given)


def problem_of(
    section: ProblemSection, num_features: int, num_classes: int, dtype: torch.dtype, num_groups: int = 0
) -> Problem:
    """The problem for records of so many features, classes (0 for a number) and groups (0 without an
    attribute); InputError if they do not fit the section.
    """
    kind = _kind(section.name, num_classes)
    features, outputs = num_features, kind.outputs(num_classes)
    chosen = section.regulariser
    lasso = _group_lasso(chosen.group_lasso, features, outputs)
    ridge, dimension = section.ridge, features * outputs
    if ridge and isinstance(ridge.centre, tuple) and len(ridge.centre) != dimension:
        hint = f"one number, or one for each of the {dimension} parameters, not {len(ridge.centre)}"
        raise InputError("scenario.problem.ridge.centre", list(ridge.centre), hint)
    within = None if isinstance(section.constraint, WholeSpace) else section.constraint
    public = Composite(chosen.l1, chosen.l2, within, lasso, ridge)
    if section.name == NETWORK:
        if section.model is None:
            hint = "is required with neural_network, such as {name: mlp, hidden: [64]}"
            raise InputError("scenario.problem.model", None, hint)
        from fedsim.problems.network import NeuralNetwork

        problem: Problem = NeuralNetwork(features, outputs, public, section.model)
    elif section.model is not None:
        raise InputError("scenario.problem.model", section.model.name, "needs problem.name neural_network")
    else:
        problem = kind(features, outputs, public)
    if section.smoothing is not None:
        problem = _smoothed(problem, section.name, section.smoothing.beta)
    if section.score_bound is not None:
        problem = _clipped(problem, section.name, section.score_bound)
    if section.fairness is not None:
        penalty = _fairness(section, problem, num_classes, num_groups)
        problem = replace(problem, composite=replace(public, fairness=penalty))
    check(problem, dtype)
    return problem


def _fairness(section: ProblemSection, problem: Problem, classes: int, groups: int) -> Fairness:
    chosen, field = section.fairness, "scenario.problem.fairness"
    assert chosen is not None
    if not groups:
        raise InputError(field, chosen.notion, "needs groups: name a category column as data.attribute")
    if type(head(problem)) not in OWN or not (classes and gives_probabilities(problem)):
        hint = f"needs probabilities of classes, which {section.name} does not give: use "
        hint += "logistic_regression, softmax_regression or a neural_network of classes"
        raise InputError(field, chosen.notion, hint)
    if chosen.population == "records" and section.silo_weights != "size":
        hint = "with another weighting than size, gaps are those of a population in which silo i has "
        hint += "the share p_i: set silo_weights: size, or say fairness.population: weights"
        raise InputError("scenario.problem.silo_weights", section.silo_weights, hint)
    shares = (1 / groups,) * groups if chosen.reference == "uniform" else chosen.reference
    if len(shares) != groups or abs(sum(shares) - 1) > 1e-6 or min(shares) < 1e-3:
        hint = f"{groups} shares, one for each group, of 0.001 or more, which sum to 1"
        raise InputError(f"{field}.reference", chosen.reference, hint)
    from fedsim.problems.fairness import Fairness

    return Fairness(chosen.notion, chosen.weight, shares, classes)


def _kind(name: str, classes: int) -> type[Problem]:
    kind = problem_class(name)
    if kind.suits(classes):
        return kind
    target = f"{classes} classes" if classes else "a number"
    right = [name for name, other in problems().items() if other.suits(classes)]
    hint = f"the target is {target}; use {' or '.join(right) or 'data with at least two classes'}"
    raise InputError("scenario.problem.name", name, hint)


def _smoothed(problem: Problem, name: str, beta: float) -> Problem:
    if isinstance(problem, KinkedLoss):
        return replace(problem, smoothing=beta)
    kinked = [name for name, kind in problems().items() if issubclass(kind, KinkedLoss)]
    hint = f"{name} is smooth already; leave smoothing out, or use {' or '.join(kinked)}"
    raise InputError("scenario.problem.smoothing", {"beta": beta}, hint)


def _clipped(problem: Problem, name: str, bound: float) -> Problem:
    if type(problem) is not LogisticRegression:
        hint = f"only with logistic_regression, and the problem is {name}"
        raise InputError("scenario.problem.score_bound", bound, hint)
    return ClippedLogisticRegression(
        problem.num_features, problem.num_outputs, problem.composite, score_bound=bound
    )


def _group_lasso(section: GroupLassoSection | None, features: int, outputs: int) -> GroupLasso | None:
    """A group of features holds their rows of W: the coefficients of all outputs."""
    if section is None:
        return None
    if isinstance(section.groups, ContiguousGroups):
        size = section.groups.size
        groups: Sequence[Sequence[int]] = [
            range(start, min(start + size, features)) for start in range(0, features, size)
        ]
    else:
        groups = section.groups
        _check_groups(groups, features)
    rows = [[j * outputs + k for j in group for k in range(outputs)] for group in groups]
    return GroupLasso(section.weight, tuple(map(tuple, rows)))


def _check_groups(groups: Sequence[Sequence[int]], features: int) -> None:
    home: dict[int, int] = {}
    for i, group in enumerate(groups):
        for j in group:
            field = f"scenario.problem.regulariser.group_lasso.groups.{i}"
            if j >= features:
                raise InputError(field, j, f"features are 0 to {features - 1}")
            if j in home:
                hint = f"groups must be disjoint, but feature {j} is in group {home[j]} already"
                raise InputError(field, list(group), hint)
            home[j] = i
