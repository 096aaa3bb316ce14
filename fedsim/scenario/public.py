"""The public records of a scenario: read, compared with the private ones, and made a part of f1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.data.dataset import Dataset, Elsewhere
from fedsim.data.fetch import obtain
from fedsim.data.public import Published, read_public
from fedsim.data.recipe import declared_recipe, recipe_of
from fedsim.data.source import Outline
from fedsim.problems.composite import WholeSpace
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem, accepts, is_shipped
from fedsim.problems.minimise import NoOptimumError, convex, hessian_of, smooth
from fedsim.problems.public_records import PublicRecords
from fedsim.problems.section import PublicSection
from fedsim.scenario.model import Scenario

FIELD = "scenario.problem.public"
_DAMPING = 0.05  # of the preconditioner: so much of H's mean eigenvalue is added to each
_PREPARATION = ("scaling", "intercept", "transform", "record_norm")


def with_public(
    scenario: Scenario, shape: Outline, problem: Problem, dtype: torch.dtype
) -> tuple[Scenario, Problem]:
    """The scenario with its public records' hash, and the problem with the records in f1; both as they were
    without a section `public`. InputError: the records are missing, not of the private ones' kind, or do not
    suit what is asked of them.
    """
    section, given = scenario.problem, scenario.public
    if given is None:
        for field, value in (("public", section.public), ("start", section.start)):
            if value not in (None, "default"):
                hint = "needs public records: a section public, as data"
                raise InputError(f"scenario.problem.{field}", _shown(value), hint)
        return scenario, problem
    data = _prepared_alike(given, scenario.data)
    obtain(data.downloads)
    found, asked = read_public(data, "scenario.public"), section.public or PublicSection()
    _check_kind(scenario, data, found, shape)
    _check_use(scenario, asked, problem)
    if asked.sha256 not in (None, found.digest):
        raise InputError(f"{FIELD}.sha256", asked.sha256, f"of scenario.public, which has {found.digest}")
    features, target = (torch.as_tensor(each).double() for each in found.records[:2])
    if not bool(accepts(problem, target).all()):
        raise InputError("scenario.public", data.name, f"targets that {section.name} is defined for")
    records = PublicRecords.of(features, target, found.digest, found.numbers)
    start = torch.zeros(problem.dimension, dtype=torch.float64)
    if section.start == "public":
        start = _start(problem, records, data.intercept)
        records = replace(records, start=start.to(dtype))
    start = problem.project(start)
    if asked.precondition:
        records = replace(records, inverse=_inverse(problem, records, start).to(dtype))
    if asked.weight == "optimal":
        records = replace(records, variance=_variance(scenario, problem, records, start))
    else:
        records = replace(records, weight=asked.weight)
    kept = {name: getattr(records, name).to(dtype) for name in ("features", "target", "inverse_norm")}
    composite = replace(problem.composite, records=replace(records, **kept))
    hashed = section.model_copy(update={"public": asked.model_copy(update={"sha256": found.digest})})
    return scenario.model_copy(update={"problem": hashed}), replace(problem, composite=composite)


def _shown(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if isinstance(value, PublicSection) else value


def _prepared_alike(public: Dataset, data: Dataset) -> Dataset:
    """Public records that are prepared as the private ones are, unless they say so themselves."""
    if isinstance(data, Elsewhere):
        return public
    own = {field: getattr(data, field) for field in _PREPARATION}
    for field, value in own.items():
        if field in public.model_fields_set and getattr(public, field) != value:
            hint = f"{value}, as of the private records in data"
            raise InputError(f"scenario.public.{field}", getattr(public, field), hint)
    return public.model_copy(update=own)


def _check_kind(scenario: Scenario, data: Dataset, found: Published, shape: Outline) -> None:
    """Check columns and ranges where both declare them, and width and classes always."""
    theirs = declared_recipe(scenario.data, shape.num_features, shape.num_classes)
    features, classes = found.records.features.shape[1], found.source.num_classes
    pairs: dict[str, tuple[object, object]] = {}
    if theirs is not None:
        mine = recipe_of(data, found.source, found.design)
        names = dict.fromkeys([*theirs.columns, *mine.columns])
        pairs |= {name: (mine.columns.get(name), theirs.columns.get(name)) for name in names}
        pairs[f"{theirs.target} (the target)"] = (mine.predicts, theirs.predicts)
    pairs |= {"features": (features, shape.num_features), "classes": (classes, shape.num_classes)}
    for what, (own, right) in pairs.items():
        if own != right:
            hint = f"the schema of the private records: {what} must be {_told(right)}"
            raise InputError("scenario.public", _told(own), hint)


def _told(kind: Any) -> Any:
    return kind.model_dump(exclude_none=True) if hasattr(kind, "model_dump") else kind


def _check_use(scenario: Scenario, asked: PublicSection, problem: Problem) -> None:
    section = scenario.problem
    for field, value, wrong, right in (
        ("problem.name", section.name, not is_shipped(problem), "a problem that fedsim ships"),
        ("problem.fairness", section.fairness, section.fairness, "left out: public records bear no costs"),
        ("prepare", len(scenario.prepare), scenario.prepare, "left out: public records are not mapped"),
        (
            "runtime.plug_ins",
            "isolated",
            scenario.runtime.plug_ins == "isolated",
            "in_process: a confined process has no public records",
        ),
        (
            "problem.public.precondition",
            True,
            asked.precondition and not isinstance(section.constraint, WholeSpace),
            f"false, or constraint none: a projection on {section.constraint.name} needs another metric",
        ),
    ):
        if wrong:
            raise InputError(f"scenario.{field}", value, right)


def _start(problem: Problem, records: PublicRecords, intercept: bool) -> Tensor:
    """The minimiser of the public records' mean loss and f1, (d,)."""
    try:
        found = convex(problem, [(records.features, records.target)], [1.0], intercept).w
    except NoOptimumError as reason:
        raise InputError("scenario.problem.start", "public", f"default: {reason}") from None
    assert found is not None
    return found


def _inverse(problem: Problem, records: PublicRecords, start: Tensor) -> Tensor:
    """(H + 0.05 tr(H) / d I)^-1, H the Hessian of the public loss and f1's quadratics at the start."""
    field, n, d = f"{FIELD}.precondition", len(records), problem.dimension
    quadratic = problem.composite.l2 + problem.composite.ridge.weight
    if n < problem.num_features and not quadratic:
        hint = f"false: {n} public records leave the Hessian of {problem.num_features} features singular"
        raise InputError(field, True, f"{hint}; or add a ridge (problem.regulariser.l2)")
    try:
        linear = smooth(problem)
    except NoOptimumError as reason:
        raise InputError(field, True, f"false: {reason}") from None
    hessian = hessian_of(linear, records.features, torch.full((n,), 1 / n, dtype=torch.float64), start)
    identity = torch.eye(d, dtype=torch.float64)
    hessian = hessian + quadratic * identity
    inverse: Tensor = torch.linalg.inv(hessian + _DAMPING * hessian.trace() / d * identity)
    return inverse


def _variance(scenario: Scenario, problem: Problem, records: PublicRecords, start: Tensor) -> float:
    """V^2 = E |g - E g|^2 of the public records' gradients at the start."""
    field = f"{FIELD}.weight"
    if not isinstance(problem, GeneralisedLinear):
        raise InputError(field, "optimal", "a number: gradients of records are measured for linear models")
    if None in (getattr(scenario.algorithm, name, None) for name in ("clip_norm", "batch")):
        raise InputError(field, "optimal", "a number: without a clip_norm the noise is not known")
    scores = problem.scores(records.features, start)
    slope = problem.coefficient(scores, records.target, records.inverse_norm).reshape(len(records), -1)
    second = records.features.square().sum(-1) @ slope.square().sum(-1) / len(records)
    variance = float(second - problem.mean_gradient(records, start).square().sum())
    if not variance > 0:
        raise InputError(field, "optimal", "a number: gradients of these public records do not differ")
    return variance
