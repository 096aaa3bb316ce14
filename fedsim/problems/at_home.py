"""A silo's model that stays there: made of the federation's model and of the silo's records, without noise.

It costs no privacy while it, and what is known of it, stays at home. Scores of three models are mixed: the
silo's own (`alone`), the federation's as it is, and one that the silo's records pull away from the
federation's, recalibrated (`adapted`). All choices are made on records that a model has not seen, in folds.

The federation's model has seen the silo's records, though. Without those of a fold it is, by one step of
influence (F. Hampel, JASA 69, 1974), w + H^-1 sum over the fold of slopes / n, H the mean Hessian at w of the
silo's records, standing for all, less the fold's part of it; both with f1. Without this a silo that is a
large part of the federation would trust its model too much. Weights minimise the loss out of fold and a pull
to weights that follow from public numbers: the error that p parameters of n records have, p / 2 n, and that
of the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.problems.composite import Composite
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem, head
from fedsim.problems.minimise import gradient, hessian_of
from fedsim.problems.registry import FITTED_AT_HOME, NETWORKS_AT_HOME

LEAST = 15
"""Records, or persons, that a fit needs."""
MOST_NOISE = 0.7
"""Loss that noise is taken to cost at most, in nats: a coin's is .69."""
Kind = Literal["alone", "federation", "adapted"]
_ALONE = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_ADAPTED = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_FREE, _INTERCEPT = 1e-3, 0.1  # pulls on an intercept alone and adapted; a class without a record needs one
_CALIBRATION = (8.0, 20.0)  # records that the intercept 0 and the slope 1 are worth
_STEPS, _SMALL = 50, 1e-11


class Federation(NamedTuple):
    """What is public of a run's model, and whether it was made of the silo's records too."""

    w: Tensor  # (d,)
    records: float  # n_i / p_i: of as many records a record of the silo is one
    noise: float  # expected loss from the model's noise
    took_part: bool


class Part(NamedTuple):
    """One of the three models: its mean loss on records that it has not seen, with standard error."""

    kind: Kind
    loss: float
    error: float
    weight: float  # in the mixture


class AtHome(NamedTuple):
    """A model that is not private and stays in the silo, (d,), and what it is made of."""

    w: Tensor
    parts: tuple[Part, ...]


def unfit(problem: Problem, target: Tensor, owners: Tensor | None = None) -> str | None:
    """Why records with these targets (n,) have no fit at home; None where they have one."""
    units = len(target) if owners is None else len(torch.unique(owners))
    if units < LEAST:
        return f"{units} {'records' if owners is None else 'persons'}, and {LEAST} are needed"
    numbers = isinstance(head(problem), LinearRegression)
    return None if numbers or len(torch.unique(target)) > 1 else "records of one class alone"


def at_home(
    problem: Problem, features: Tensor, target: Tensor, public: Federation, owners: Tensor | None = None
) -> AtHome:
    """The mixture as one model of the problem; of a network its last layer alone is another.

    Args:
        features: the silo's training records, (n, features); a last one that is 1 has the intercepts.
        target: (n,).
        public: the federation's model.
        owners: whose each record is, (n,); a person's are in one fold.

    InputError as `linear`. Records must not be `unfit`.
    """
    own, x, w, back = linear(problem, features.double(), public.w.double())
    units = torch.arange(len(target)) if owners is None else torch.unique(owners, return_inverse=True)[1]
    w, parts = _Fit(own, x, target.double(), units).mixture(public._replace(w=w))
    return AtHome(back(w).to(public.w.dtype), parts)


def linear(
    problem: Problem, features: Tensor, w: Tensor
) -> tuple[GeneralisedLinear, Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """A linear problem, its features and parameters, and the way back to parameters of `problem`: its own, or
    the last layer on a network's own features. InputError for another loss, and for a network of others.
    """
    if type(problem) in (LogisticRegression, SoftmaxRegression, LinearRegression):
        return cast("GeneralisedLinear", problem), features, w, lambda home: home
    model = None if isinstance(problem, GeneralisedLinear) else getattr(problem.model, "name", None)
    if model not in NETWORKS_AT_HOME:  # code of others is called with no record
        hint = f"{', '.join(FITTED_AT_HOME)}, or a network {', '.join(NETWORKS_AT_HOME)}"
        raise InputError("scenario.problem", model or type(problem).__name__, f"a fit at home is for {hint}")
    assert not isinstance(problem, GeneralisedLinear)
    module = cast(torch.nn.Sequential, problem.module)
    last = cast(torch.nn.Linear, module[-1])
    values, count = problem.parameters(w), sum(each.numel() for each in last.parameters())
    body, bias = module[:-1], last.bias is not None
    with torch.no_grad():
        own = {name: values[name] for name, _ in body.named_parameters()}
        made = torch.func.functional_call(body, own, features).flatten(1)
    made = torch.cat([made, made.new_ones(len(made), int(bias))], 1)
    weight, rest = torch.split(w[-count:], [last.weight.numel(), count - last.weight.numel()])
    rows = torch.cat([weight.view(last.weight.shape).T, rest.view(-1, last.out_features)])

    def back(home: Tensor) -> Tensor:
        found = home.view(rows.shape)
        return torch.cat(
            [w[:-count], found[: len(rows) - bias].T.flatten(), found[len(rows) - bias :].flatten()]
        )

    f1 = Composite(problem.composite.l1, problem.composite.l2, ridge=problem.composite.ridge)
    return replace(problem.head, num_features=len(rows), composite=f1), made, rows.flatten(), back


class _Fit:
    """The three models of a silo's records, fitted to all and in folds."""

    def __init__(self, problem: GeneralisedLinear, x: Tensor, y: Tensor, units: Tensor) -> None:
        spread = x.var(0, unbiased=False).clamp_min(0.0025)  # pulls are those on standardised features
        self.spread = spread.repeat_interleave(problem.num_outputs).view(-1, problem.num_outputs)
        self.problem, self.x, self.y, self.units = problem, x, y, units
        self.intercept = bool((x[:, -1] == 1).all())
        self.numbers = isinstance(problem, LinearRegression)
        self.curvature = 1.0 if self.numbers else 0.2 if problem.num_outputs == 1 else 1 / problem.num_outputs
        fold = _folds(y, units)
        self.folds = [(fold != k, fold == k) for k in range(int(fold.max()) + 1)]

    def mixture(self, public: Federation) -> tuple[Tensor, tuple[Part, ...]]:
        """The model, (d,), and its parts."""
        without = [self.without(public, out) for _, out in self.folds]
        centres = [self.recalibrated(w, kept) for w, (kept, _) in zip(without, self.folds, strict=True)]
        centres.append(self.recalibrated(public.w, torch.ones_like(self.y, dtype=torch.bool)))
        alone, own = self._averaged(_ALONE, _FREE, [torch.zeros_like(public.w)] * len(centres))
        adapted, between = self._averaged(_ADAPTED, _INTERCEPT, centres)
        scores = torch.stack([alone, self.unseen(without), adapted])
        losses = torch.stack([self.problem.losses(each, self.y) for each in scores])
        weights = self._weights(scores, losses.mean(1), public)
        found = zip(get_args(Kind), losses, weights.tolist(), strict=True)
        parts = tuple(Part(kind, float(own.mean()), self._error(own), weight) for kind, own, weight in found)
        return weights @ torch.stack([own, public.w, between]), parts

    def without(self, public: Federation, out: Tensor) -> Tensor:
        """The federation's model without the records of a mask, (d,), by one step of influence."""
        if not public.took_part:
            return public.w
        seen = torch.full_like(self.y[out], 1 / public.records)
        hessian = hessian_of(self.problem, self.x, torch.full_like(self.y, 1 / len(self.y)), public.w)
        hessian -= hessian_of(self.problem, self.x[out], seen, public.w)
        hessian += torch.diag(0.02 * hessian.diagonal() + 1e-6 + self.problem.composite.quadratic)
        slope = gradient(self.problem, self.x[out], self.y[out], seen, public.w)
        slope += seen.sum() * self.problem.composite.public_gradient(public.w)  # each record has its share
        moved: Tensor = torch.linalg.solve(hessian, slope)
        return public.w + moved

    def recalibrated(self, w: Tensor, kept: Tensor) -> Tensor:
        """w with the slope and intercept of its scores that the records of a mask make likely, (d,)."""
        scores, y = self.problem.scores(self.x[kept], w), self.y[kept]
        shift, stretch = (count * self.curvature / 2 for count in _CALIBRATION)
        stretch *= float(y.var()) if self.numbers else 1.0

        def value(theta: Tensor) -> Tensor:
            shifts = theta[1:] if self.problem.num_outputs > 1 else theta[1]
            prior = stretch * (theta[0] - 1).square() + shift * theta[1:].square().sum()
            losses = self.problem.losses(theta[0] * scores + shifts * self.intercept, y)
            return (losses.sum() + prior) / len(y)

        theta = _least(value, torch.eye(1, 1 + self.problem.num_outputs, dtype=w.dtype)[0])
        made = theta[0] * w.reshape(self.problem.num_features, -1)
        if self.intercept:
            made[-1] += theta[1:]
        return made.flatten()

    def pulled(
        self, centre: Tensor, strength: float, intercept: float, kept: Tensor, start: Tensor | None = None
    ) -> Tensor:
        """argmin of the losses of a mask's records and strength / 2 |w - centre|^2, (d,)."""
        pull = strength * self.spread
        if self.intercept:
            pull[-1] = min(intercept, strength)
        x, y, pull, each = self.x[kept], self.y[kept], pull.flatten(), torch.ones_like(self.y[kept])
        w = centre if start is None else start

        def value(w: Tensor) -> Tensor:
            return self.problem.losses(self.problem.scores(x, w), y).sum() + pull @ (w - centre).square() / 2

        for _ in range(_STEPS):  # Newton's, of a strictly convex function
            slope = gradient(self.problem, x, y, each, w) + pull * (w - centre)
            hessian = hessian_of(self.problem, x, each, w) + torch.diag(pull)
            step: Tensor = -torch.linalg.solve(hessian, slope)
            gain, before, t = float(slope @ step), value(w), 1.0
            if -gain <= _SMALL * (1 + float(before)):
                return w + step
            while t > _SMALL and value(w + t * step) > before + 1e-4 * t * gain:
                t /= 2
            w = w + t * step
        return w

    def _averaged(
        self, strengths: tuple[float, ...], intercept: float, centres: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The mean over strengths of models pulled to centres, each fold's and at last that of all records,
        weighed by how likely records out of fold are: scores there, and the model of all, (d,).
        """
        masks = [*(kept for kept, _ in self.folds), torch.ones_like(self.y, dtype=torch.bool)]
        models, scores, whole = centres, [], []
        for strength in strengths[::-1]:  # each from the one before, which is near
            models = [
                self.pulled(centre, strength, intercept, kept, start)
                for centre, start, kept in zip(centres, models, masks, strict=True)
            ]
            scores.append(self.unseen(models[:-1]))
            whole.append(models[-1])
        losses = torch.stack([self.problem.losses(each, self.y) for each in scores])
        losses /= self._unit(losses.mean(1))
        found, every = torch.empty_like(scores[0]), torch.stack(scores)
        for kept, out in self.folds:  # whose records choose no strength for themselves
            found[out] = torch.tensordot((-losses[:, kept].sum(1)).softmax(0), every[:, out], 1)
        return found, (-losses.sum(1)).softmax(0) @ torch.stack(whole)

    def _unit(self, losses: Tensor) -> float:
        """The loss that stands for a nat: of numbers twice the least, their mean square out of fold."""
        return max(2 * float(losses.min()), 1e-12) if self.numbers else 1.0

    def unseen(self, models: list[Tensor]) -> Tensor:
        """Each record's score by the model of its fold, which has not seen it: (n,) or (n, outputs)."""
        scores = torch.empty_like(self.problem.scores(self.x, models[0]))
        for w, (_, out) in zip(models, self.folds, strict=True):
            scores[out] = self.problem.scores(self.x[out], w)
        return scores

    def _weights(self, scores: Tensor, losses: Tensor, public: Federation) -> Tensor:
        """Of the three models, (3,): least loss out of fold, pulled to those that public numbers give."""
        n, unit = int(self.units.max()) + 1, self._unit(losses)
        parameters = self.problem.num_features * max(1, self.problem.num_outputs - 1)
        own = min(parameters / (2 * n), max(float(losses[0]) / unit, 1e-9))
        of_all = public.records * n / len(self.y)  # persons, where n are
        theirs = min(public.noise / unit, MOST_NOISE) + parameters / (2 * of_all) + 0.02
        before = torch.tensor([1 / own, 1 / theirs, (1 / own + 1 / theirs) / 2], dtype=scores.dtype)
        prior, pull = (before / before.sum()).log(), (3 + 150 / n) / n

        def value(theta: Tensor) -> Tensor:
            log = (prior + theta).log_softmax(0)
            mixed = torch.tensordot(log.exp(), scores, 1)
            return self.problem.losses(mixed, self.y).mean() / unit + pull * (log.exp() @ (log - prior))

        return (prior + _least(value, torch.zeros_like(prior))).softmax(0)

    def _error(self, losses: Tensor) -> float:
        """Standard error of the mean loss; records of one person count as one."""
        units = int(self.units.max()) + 1
        off = losses.new_zeros(units).index_add(0, self.units, losses - losses.mean())
        return float(off.norm()) / len(losses) * sqrt(units / (units - 1))


def _folds(target: Tensor, units: Tensor) -> Tensor:
    """The fold of every record, (n,): those of like targets are dealt out one after another; n / 5 folds
    below 25 units, else 5.
    """
    count = int(units.max()) + 1
    total = target.new_zeros(count).index_add(0, units, target)
    order = (total / units.bincount()).argsort(stable=True)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(count) % min(5, count // 5)
    return fold[units]


def _least(value: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """The minimiser of a smooth function of a few numbers, near `theta`."""
    with torch.enable_grad():
        theta = theta.clone().requires_grad_()
        solver = torch.optim.LBFGS(
            [theta], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            solver.zero_grad()
            loss = value(theta)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        solver.step(closure)  # type: ignore[no-untyped-call]
    return theta.detach()
