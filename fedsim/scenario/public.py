"""The public records of a scenario: read, compared with the private ones, and made a part of f1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.data.dataset import Dataset, Elsewhere
from fedsim.data.fetch import content, obtain
from fedsim.data.recipe import declared_recipe, recipe_of
from fedsim.data.source import Design, Outline, Source
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem, accepts
from fedsim.problems.minimise import LIKE_SKLEARN, Fit, NoOptimumError, convex, hessian_of, smooth
from fedsim.problems.registry import is_shipped
from fedsim.problems.regularisers import WholeSpace
from fedsim.problems.section import PublicSection
from fedsim.protocol.contract import traits
from fedsim.scenario.model import Scenario

if TYPE_CHECKING:
    from fedsim.problems.public_records import PublicRecords

FIELD = "scenario.problem.public"
_SAME = "the public records are the private ones, so that these are published too"
_DAMPING = 0.05  # of the preconditioner: so much of H's mean eigenvalue is added to each
_PREPARATION = ("scaling", "intercept", "transform", "record_norm")


def with_public(
    scenario: Scenario, shape: Outline, problem: Problem, dtype: torch.dtype
) -> tuple[Scenario, Problem]:
    """The scenario with its public records' hash, and the problem with the records in f1; both as they were
    without a section `public`. InputError: the records are missing, not of the private ones' kind, or do not
    suit what is asked of them.
    """
    section, asked = scenario.problem, scenario.problem.public or PublicSection()
    if scenario.public is None:
        for field, value in (("public", section.public), ("start", section.start)):
            if value not in (None, "default"):
                raise InputError(f"scenario.problem.{field}", _told(value), "needs the section public")
        return scenario, problem
    if section.public is None and section.start == "default":
        raise InputError(FIELD, None, "a weight or precondition, or start: public; else no section public")
    from fedsim.data.public import read_public

    data = _prepared_alike(scenario.public, scenario.data)
    obtain(data.downloads)
    records, source, design = read_public(data, "scenario.public")
    _check_kind(scenario, data, records, (source, design), shape)
    _check_use(scenario, asked, problem)
    if asked.sha256 not in (None, records.digest):
        raise InputError(f"{FIELD}.sha256", asked.sha256, f"of scenario.public, which has {records.digest}")
    if not bool(accepts(problem, records.target).all()):
        raise InputError("scenario.public", data.name, f"targets that {section.name} is defined for")
    start = torch.zeros(problem.dimension).double()
    private = [content(path, "scenario.data", unpack=False) for path in scenario.data.files.values()]
    notes = [_SAME] * (data == scenario.data or records.digest in private)
    if section.start == "public":
        found_start, method = _minimiser(problem, records, data.intercept)
        start = cast(Tensor, found_start)
        records = replace(records, start=start.to(dtype))
        notes += [f"start: public records alone determine none; {LIKE_SKLEARN}"] * (LIKE_SKLEARN in method)
    start = problem.project(start)
    if asked.precondition:
        records = replace(records, inverse=_inverse(problem, records, start).to(dtype))
    if asked.weight == "optimal":
        records = replace(records, variance=_variance(scenario, problem, records, start))
    else:
        records = replace(records, weight=asked.weight)
    records = replace(records.to(dtype), notes=tuple(notes))
    hashed = section.model_copy(update={"public": asked.model_copy(update={"sha256": records.digest})})
    problem = replace(problem, composite=replace(problem.composite, records=records))
    return scenario.model_copy(update={"problem": hashed, "public": data}), problem


def _told(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else value


def _prepared_alike(public: Dataset, data: Dataset) -> Dataset:
    """Public records that are prepared as the private ones are; other settings than defaults are refused."""
    if isinstance(data, Elsewhere):
        return public
    own, values = ({field: dict(each)[field] for field in _PREPARATION} for each in (data, public))
    for field, right in own.items():
        if (given := values[field]) not in (right, type(public).model_fields[field].default):
            raise InputError(f"scenario.public.{field}", given, f"{right}, as of the private records")
    return public.model_copy(update=own)


def _check_kind(
    scenario: Scenario, data: Dataset, found: PublicRecords, raw: tuple[Source, Design], shape: Outline
) -> None:
    """Check columns and ranges where both declare them, and width and classes always."""
    mine: Mapping[str, object] = {"features": found.features.shape[1], "classes": raw[0].num_classes}
    right: Mapping[str, object] = {"features": shape.num_features, "classes": shape.num_classes}
    theirs = declared_recipe(scenario.data, shape.num_features, shape.num_classes)
    if theirs is not None:
        own = recipe_of(data, *raw)
        mine, right = ({**each.columns, f"target {each.target}": each.predicts} for each in (own, theirs))
    for what in {**right, **mine}:
        if mine.get(what) != right.get(what):
            hint = f"the schema of the private records: {what} must be {_told(right.get(what))}"
            raise InputError("scenario.public", _told(mine.get(what)), hint)


def _check_use(scenario: Scenario, asked: PublicSection, problem: Problem) -> None:
    section, isolated = scenario.problem, scenario.runtime.plug_ins == "isolated"
    bounded = asked.precondition and not isinstance(section.constraint, WholeSpace)
    unbounded = "false, or constraint none: a projection would differ"
    for field, value, wrong, right in (
        ("problem.name", section.name, not is_shipped(problem), "a problem that fedsim ships"),
        ("problem.fairness", "...", section.fairness, "left out: public records bear no costs"),
        ("prepare", len(scenario.prepare), scenario.prepare, "left out: public records are not mapped"),
        ("runtime.plug_ins", "isolated", isolated, "in_process: a confined process has no public records"),
        ("problem.public.precondition", True, bounded, unbounded),
    ):
        if wrong:
            raise InputError(f"scenario.{field}", value, right)


def _minimiser(problem: Problem, records: PublicRecords, intercept: bool) -> Fit:
    try:
        return convex(problem, [records.pair], [1.0], intercept)
    except NoOptimumError as reason:
        raise InputError("scenario.problem.start", "public", f"default: {reason}") from None


def _inverse(problem: Problem, records: PublicRecords, start: Tensor) -> Tensor:
    """(H + 0.05 tr(H) / d I)^-1, H the Hessian of the public loss and f1's quadratics at the start."""
    field, n, d = f"{FIELD}.precondition", len(records), problem.dimension
    quadratic = problem.composite.quadratic
    if n < problem.num_features and not quadratic:
        hint = f"false: {n} public records leave the Hessian of {problem.num_features} features singular"
        raise InputError(field, True, f"{hint}; or add a ridge (problem.regulariser.l2)")
    try:
        share = torch.full((n,), 1 / n, dtype=torch.float64)
        hessian = hessian_of(smooth(problem), records.features, share, start)
    except NoOptimumError as reason:
        raise InputError(field, True, f"false: {reason}") from None
    damping = _DAMPING * (hessian.trace() / d + quadratic)
    inverse: Tensor = torch.linalg.inv(hessian + (quadratic + damping) * torch.eye(d, dtype=torch.float64))
    return inverse


def _variance(scenario: Scenario, problem: Problem, records: PublicRecords, start: Tensor) -> float:
    """V^2 = E |g - E g|^2 of the public records' gradients at the start."""
    field = f"{FIELD}.weight"
    if not isinstance(problem, GeneralisedLinear):
        raise InputError(field, "optimal", "a number: gradients of records are measured for linear models")
    if None in (traits(scenario.algorithm).clip_norm, traits(scenario.algorithm).batch):
        raise InputError(field, "optimal", "a number: without a clip_norm the noise is not known")
    scores = problem.scores(records.features, start)
    slope = problem.coefficient(scores, records.target, records.inverse_norm).reshape(len(records), -1)
    second = records.features.square().sum(-1) @ slope.square().sum(-1) / len(records)
    variance = float(second - problem.mean_gradient(records, start).square().sum())
    if not variance > 0:
        raise InputError(field, "optimal", "a number: gradients of these public records do not differ")
    return variance
