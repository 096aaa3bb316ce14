"""Baselines without the federation, or without noise, on the same test records. Simulation only, not private.

- `majority` or `mean`: no features at all. Of classes their shares among all training records are predicted,
  so that the majority class is; of a number its mean.
- `silo_alone`: each silo's own training records, at their own optimum; of more than `MOST_SILOS` silos so
  many, evenly in order of size, but all with `report.own_models`. A silo's model is tested on its own test
  records; a row without a silo has them all together, each predicted by its own silo's model.
  `silo_alone_on_all` are the same models on everybody's test records.
- `at_home`: on a silo's own test records, what it makes of the run's model and its own records, at home.
- `pooled`: all training records in one place, each with equal weight.
- `converged`: the run's own objective, in which silo i's mean loss has weight p_i, at its optimum: what
  infinitely many rounds without noise and clipping would give. Where p_i n_j = p_j n_i it is `pooled`, and
  left out. Public records of weight kappa in f1 are a silo more, of that weight.
- `throw_away`: the public records alone (thesis, chapter 2).

Each minimises the scenario's own problem, its public part included, until it has converged: Newton's method
or accelerated proximal gradients where the loss is convex and smooth, else L-BFGS, which of a network is a
local search from the run's own start (a loss with a kink is Moreau-smoothed for it, by at most `_KINK` a
record). Where the records do not determine an optimum (separable classes, or no more records than features),
scikit-learn's default decides: the sum of losses plus |w|^2 / 2, without the constant feature's weights; with
them where a silo lacks a class, of which they would go to infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.data.federation import SiloSplit
from fedsim.measure.evaluator import Evaluator, Final, Measured
from fedsim.measure.objective import pair, with_public
from fedsim.problems.glm import GeneralisedLinear, KinkedLoss
from fedsim.problems.kinds import Problem, gives_probabilities
from fedsim.problems.minimise import (
    LIKE_SKLEARN,
    Fit,
    NoOptimumError,
    Pairs,
    convex,
    is_smooth,
    pooled,
    slight,
    without_public,
)
from fedsim.report.record import BaselineMeasurement as Row
from fedsim.report.sections.worth import Paired
from fedsim.scenario.metric import BaselineName
from fedsim.scenario.resolve import Resolved

MOST_SILOS = 20
_STEPS, _ROWS, _SLOPE = 300, 4096, 1e-7
_WORK = 1e8  # records times parameters, above which a network is not fitted: what one of `_STEPS` steps costs
_KINK = 1e-3
_NOTHING: Measured = (None, None, {})

Shared = tuple[Tensor, Tensor, Tensor]  # records: features, target and each one's share of the objective


def baselines(
    resolved: Resolved, silos: Sequence[SiloSplit], evaluate: Evaluator, final: Final | None = None
) -> list[Any]:
    """Every baseline of one trial without the federation, on the records that `evaluate` tests on; of a
    single trial also how well a difference to the `final` model is known.
    """
    total = sum(len(silo.train.target) for silo in silos)
    by_record = [len(silo.train.target) / total for silo in silos]
    return [
        constant(resolved, np.concatenate([silo.train.target for silo in silos]), evaluate),
        *_alone(resolved, silos if resolved.scenario.report.own_models else _some(silos), evaluate, final),
        _fitted(resolved, "pooled", list(map(pair, silos)), by_record, evaluate)[0],
        *_throw_away(resolved, evaluate),
    ]


def converged(
    resolved: Resolved, silos: Sequence[SiloSplit], evaluate: Evaluator, _final: Final | None = None
) -> list[Any]:
    """The optimum of the run's own objective, where it is not that of all records pooled, and known."""
    sizes, records = np.array([len(silo.train.target) for silo in silos]), resolved.problem.composite.records
    if records is None or not records.in_f1:
        if np.allclose(resolved.weights, sizes / sizes.sum()):
            return []
    elif records.variance is not None:
        return []
    return [_fitted(resolved, "converged", *with_public(resolved, silos), evaluate)[0]]


def _throw_away(resolved: Resolved, evaluate: Evaluator) -> list[Row]:
    """The model of public records alone, with its loss on them: far below that on silos' records where they
    are few, or of another law.
    """
    problem, records = resolved.problem, resolved.problem.composite.records
    if records is None:
        return []
    row, w = _fitted(resolved, "throw_away", [records.pair], [1.0], evaluate)
    if w is None:
        return [row]
    loss = float(problem.losses(problem.scores(records.pair[0], w), records.pair[1]).mean())
    return [row._replace(method=f"{row.method}; mean loss {loss:.4g} on the public records")]


def _some(silos: Sequence[SiloSplit]) -> list[SiloSplit]:
    """At most `MOST_SILOS`, evenly in order of training records."""
    ordered = [silo for silo in silos if len(silo.train.target)]
    ordered.sort(key=lambda silo: len(silo.train.target))
    places = np.unique(np.linspace(0, len(ordered) - 1, min(MOST_SILOS, len(ordered))).round().astype(int))
    return [ordered[place] for place in places]


def constant(
    resolved: Resolved, target: np.ndarray, evaluate: Evaluator, records: str = "all training records"
) -> Row:
    """`majority` or `mean` of the targets of some `records`."""
    classes = resolved.outline.num_classes
    tested = evaluate.of_scores(_constant_scores(resolved, target, len(evaluate.features)))
    name: BaselineName = "majority" if classes else "mean"
    method = f"shares of the classes in {records}" if classes else f"mean of {records}"
    return Row(evaluate.trial, name, None, len(target), method, *tested)


def _constant_scores(resolved: Resolved, target: np.ndarray, count: int) -> Tensor:
    """The same for each of `count` records: of classes the logarithms of their shares, where scores stand for
    probabilities, else 1 for the majority class and -1.
    """
    problem, classes, dtype = resolved.problem, resolved.outline.num_classes, resolved.dtype
    if not classes:
        return torch.full((count,), float(target.mean()), dtype=dtype)
    counts = np.bincount(target.astype(int), minlength=classes)
    if gives_probabilities(problem):
        score = np.log(np.maximum(counts, 0.5) / len(target))  # a class without a record keeps a finite score
    else:
        score = np.where(np.arange(classes) == counts.argmax(), 0.5, -0.5)
    one = score if problem.num_outputs > 1 else score[-1:] - score[:1]
    scores = torch.tensor(one, dtype=dtype).expand(count, -1)
    return scores if problem.num_outputs > 1 else scores[:, 0]


def _fitted(
    resolved: Resolved, name: BaselineName, pairs: Pairs, weights: Sequence[float], evaluate: Evaluator
) -> tuple[Row, Tensor | None]:
    """The optimum's row, and the optimum where there is one, (d,)."""
    solution = _fit(resolved, pairs, weights)
    tested = _NOTHING if solution.w is None else evaluate(solution.w.to(resolved.dtype), last=True)
    count = sum(len(target) for _, target in pairs)
    return Row(evaluate.trial, name, None, count, solution.method, *tested), solution.w


def _alone(
    resolved: Resolved, silos: Sequence[SiloSplit], evaluate: Evaluator, final: Final | None
) -> list[Any]:
    """Each silo's model, on everybody's test records and on the silo's own; then all silos' own together; and
    so at home, where that is asked for.
    """
    fits = {silo.name: _fit(resolved, [pair(silo)], [1.0]) for silo in silos}
    models = {name: one.w.to(resolved.dtype) for name, one in fits.items() if one.w is not None}
    kinds: dict[BaselineName, tuple[Mapping[str, Tensor], Mapping[str, str]]]
    kinds = {"silo_alone": (models, {name: one.method for name, one in fits.items()})}
    if final is not None and resolved.scenario.report.at_home:
        kinds["at_home"] = _at_home(resolved, silos, final)
    tested = {kind: evaluate.on_own(own) for kind, (own, _) in kinds.items()}
    rows: list[Any] = []
    for silo in silos:
        name, count = silo.name, len(silo.train.target)
        on_all = evaluate(models[name], last=True) if name in models else _NOTHING
        rows.append(Row(evaluate.trial, "silo_alone_on_all", name, count, fits[name].method, *on_all))
        for kind, (_, methods) in kinds.items():
            on_own = tested[kind].get(name, _NOTHING)
            rows.append(Row(evaluate.trial, kind, name, count, methods[name], *on_own))
    total, method = (
        sum(len(silo.train.target) for silo in silos),
        "each test record by the model of its own silo",
    )
    rows += [Row(evaluate.trial, k, None, total, method, *tested[k].get(None, _NOTHING)) for k in kinds]
    if final is not None and resolved.scenario.trials == 1:
        homes = [kinds["at_home"][0]] if "at_home" in kinds else []
        for name, w in models.items():
            others = [final.w, *(own[name] for own in homes)]
            rows.append(
                Paired(evaluate.trial, name, *(evaluate.paired_error(name, w, each) for each in others))
            )
    return rows


def _at_home(
    resolved: Resolved, silos: Sequence[SiloSplit], final: Final
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each silo's model at home, where there is one, and how it was made or why not."""
    from fedsim.problems.at_home import Federation, at_home, unfit  # report.at_home

    weights = dict(zip(resolved.names, resolved.weights, strict=True))
    models, methods = dict[str, Tensor](), dict[str, str]()
    for silo in silos:
        (x, y), owners, name = pair(silo), silo.train.owners, silo.name
        whose = None if owners is None else torch.as_tensor(owners)
        if why := unfit(resolved.problem, y, whose):
            models[name], methods[name] = final.w, f"the run's model as it is: {why}"
            continue
        public = Federation(final.w, len(y) / weights[name], final.noise, name in final.silos)
        models[name] = at_home(resolved.problem, x, y, public, whose).w
        methods[name] = "the silo's own model, the run's and one between them, mixed; not private"
    return models, methods


def _fit(resolved: Resolved, pairs: Pairs, weights: Sequence[float]) -> Fit:
    scenario = resolved.scenario
    return fit(without_public(resolved.problem), pairs, weights, scenario.data.intercept, scenario.seed)


def fit(problem: Problem, pairs: Pairs, weights: Sequence[float], intercept: bool, seed: int = 0) -> Fit:
    """The optimum of the silos' mean losses, weighted, plus the public part.

    Args:
        problem: what is minimised.
        pairs: each silo's features, (n, features), and target, (n,), float64.
        weights: of the silos.
        intercept: whether the last feature is constant.
        seed: where a network starts.
    """
    try:
        return convex(problem, pairs, weights, intercept)
    except NoOptimumError:
        return _descended(problem, pooled(pairs, weights), intercept, seed)


def _descended(problem: Problem, records: Shared, intercept: bool, seed: int) -> Fit:
    """Fit by L-BFGS with strong Wolfe steps (Liu and Nocedal, 1989)."""
    if not (is_smooth(problem) and problem.composite.constraint is None):
        return Fit(None, "not fitted: no solver for this loss with a norm or a constraint")
    if not isinstance(problem, GeneralisedLinear) and problem.dimension * len(records[1]) > _WORK:
        size = f"{len(records[1]):,} records times {problem.dimension:,} parameters"
        return Fit(None, f"not fitted: a network with {size} takes too long")
    loss, note = _loss(problem, records, intercept)
    w = problem.start(seed).double().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [w], max_iter=_STEPS, tolerance_grad=_SLOPE, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        return loss(w)

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    steps = optimiser.state[w]["n_iter"]
    ended = f"after {steps} steps" if steps < _STEPS else f"stopped after {steps} steps"
    return Fit(w.detach(), f"L-BFGS {ended}{note}")


def _loss(problem: Problem, records: Shared, intercept: bool) -> tuple[Callable[[Tensor], Tensor], str]:
    """The objective, which adds its gradient to its argument's, and a note for its method."""
    n = len(records[1])
    if not isinstance(problem, GeneralisedLinear):
        scores_of, tiny, note = problem.slope_scores, torch.zeros(1), ", a local search"
    else:
        scores_of, tiny, note = problem.scores, slight(problem, n, intercept), f" {LIKE_SKLEARN}"

    def loss(w: Tensor) -> Tensor:
        total = problem.composite.value(w) + (tiny * w.square()).sum() / 2
        total.backward()  # type: ignore[no-untyped-call]
        value = total.detach()
        for x, y, share in zip(*(torch.split(each, _ROWS) for each in records), strict=True):
            part = share @ _smoothed(problem, scores_of(x, w), y)
            part.backward()
            value = value + part.detach()
        return value

    return loss, note


def _smoothed(problem: Problem, scores: Tensor, target: Tensor) -> Tensor:
    """The losses, (n,); of a kink the envelope m s - s^2 / (2 b), with s the slope b m cut to its range."""
    if not isinstance(problem, KinkedLoss):
        return problem.losses(scores, target)
    distance, b = problem.from_kink(scores, target), 1 / (2 * _KINK)
    slope = (b * distance).clamp(*problem.range)
    return distance * slope - slope.square() / (2 * b)
