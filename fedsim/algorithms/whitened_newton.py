"""Newton steps on records that are whitened before the clip: few rounds, and noise alike in all directions.

One round releases the second moment of the features (Analyze Gauss: Dwork, Talwar, Thakurta and Zhang 2014,
Algorithm 1), one the shares of the classes, the others noisy gradients. Records pass through a public matrix
T, made of the moment, by which their covariance is about the identity, and are clipped after it. So the bound
on a term holds for any T, and no silo trusts the server's eigenvectors. Noise on gradients that are
preconditioned afterwards costs a loss of tr(H) tr(H^-1) times its variance, on these p^2.

The curvature of a step follows from the model itself: E[sigma'(b + |w| z)] of logistic regression, z standard
normal, b the intercept and w the other coefficients of whitened records. Steps are damped and their iterates
averaged, the ridge is the noise's own, and coefficients are shrunk at last (James and Stein 1961).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, MomentClip, Rounds, moment_of
from fedsim.common.errors import InputError
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf
from fedsim.protocol.unit import RECORD

if TYPE_CHECKING:  # a refused scenario does without
    from torch import Tensor

DISTANCE = 2.0  # D: length of the coefficients that the ridge assumes, of whitened records
MOST_STEP = 0.5
STEPS = 3.0, 15.0  # least and most, in all rounds together
_LEAST_EIGENVALUE, _LEAST_CURVATURE, _LEAST_SHARE, _LEAST_WEIGHT = 0.003, 0.03, 0.002, 0.02
_BINS, _OFF = 16, 0.15


@dataclass(frozen=True)
class WhitenedNewton:
    """A round for the second moment, one for the classes, then `num_rounds` of damped Newton steps.

    W <- W - rho / (h + lambda) (g + lambda (W - W_0)), with g the noisy mean gradient of whitened records, h
    the curvature and rho = `steps` / `num_rounds`. Returns T^T W of the mean W of the iterates, with weights
    1, 2, .., R. The last feature must be constant.

    Privacy: Gaussian releases whose noise has fixed ratios. T, clip, step, ridge and shrinkage are functions
    of released and of public numbers.
    """

    num_rounds: Rounds
    moment_clip: MomentClip
    steps: Annotated[
        float,
        Field(
            gt=0,
            description="Newton steps of all rounds; of two classes times (5 q (1 - q))^0.6, from 3 to 15",
        ),
    ] = 6.0
    clip_factor: Annotated[
        float | None,
        Field(gt=0, description="clip over a typical gradient; default 1.5 for classes, 1.2 for a number"),
    ] = None
    moment_share: Annotated[float, Field(gt=0, lt=1, description="share of mu^2 for the second moment")] = (
        0.15
    )
    class_share: Annotated[float, Field(gt=0, lt=1, description="share of mu^2 for the classes")] = 0.02
    diagonal: Annotated[bool, Field(description="divide by deviations alone, for noisy moments")] = False
    recalibration_share: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="share of mu^2 for a histogram of scores, that corrects their intercept and slope",
        ),
    ] = 0.0
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self._left <= 0:
            raise InputError(
                "moment_share", self.moment_share, "less: shares leave some of mu^2 for the steps"
            )

    @property
    def _left(self) -> float:
        return 1 - self.moment_share - self.class_share - self.recalibration_share

    def _ratio(self, share: float) -> float:
        """1 / ratio^2 is this share of the sum of all; a gradient's is 1."""
        return math.sqrt(self._left / (share * self.num_rounds))

    @property
    def _moment(self) -> Query:
        return Query("second_moment", (), self.moment_clip, FULL, self._ratio(self.moment_share), (0.0,))

    def factor(self, problem: GeneralisedLinear) -> float:
        """The clip over the typical norm of a whitened record."""
        return (self.clip_factor or usual_factor(problem)) * (problem.typical_slope or 1.0)

    def _classes(self, problem: PublicProblem) -> Query:
        """A histogram of the target, a cell for each class."""
        edges = [k - 0.5 for k in range(max(2, problem.num_outputs) + 1)]  # type: ignore[attr-defined]
        return Query("histogram", (), 1.0, FULL, self._ratio(self.class_share), (1.0, -1.0, *edges))

    def _scores(self, at: Tensor) -> Query:
        ratio = self._ratio(self.recalibration_share)
        return Query("score_histogram", (at,), 1.0, FULL, ratio, (float(_BINS),))

    def server(self, w: Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """The moment, the classes, and steps; at last the scores, if they are to be recalibrated."""
        self._check(problem)
        assert isinstance(problem, GeneralisedLinear)
        found = yield Round({"start": w}, answer=w)
        noise = public.noise(self._moment) / math.sqrt(found.share)
        moment = moment_of(found["h"]).double()
        kept, counted = moment[-1, -1].clamp(0.5, 1.0), 1.0  # the mean weight of a record in the moment; in g
        if public.unit != RECORD and public.unit.h is not None:  # records of one with fewer than h weigh less
            kept = moment[-1, -1].clamp(max(noise, _LEAST_WEIGHT), 1.0)
            counted = float(kept)  # about: the moment's clip has its part in it
        T, norm = whitening(moment / kept, noise / float(kept), self.diagonal)
        shares = None
        if not isinstance(problem, LinearRegression):
            counts = (
                (yield Round({"classes": w.new_zeros(1)}, answer=w))["q"].double().clamp_min(_LEAST_SHARE)
            )
            shares = (counts / counts.sum()).clamp(_LEAST_SHARE, 1 - _LEAST_SHARE)
        clip = w.new_tensor([self.factor(problem) * norm])
        sd = public.noise(Query("gradient", (w,), float(clip), FULL)) / math.sqrt(found.share)
        start = torch.linalg.solve(T.T, w.double().view(len(T), -1)) if w.any() else None
        bend = problem.composite.quadratic * T @ T.T
        course = Course(self, (len(T), problem.num_outputs), shares, sd / counted, start, bend)
        sent = {"T": T.to(w.dtype).flatten(), "clip": clip}

        def original(W: Tensor) -> Tensor:
            return (T.T @ W).reshape(-1).to(w.dtype)

        for _ in range(self.num_rounds):
            at = course.W.reshape(-1).to(w.dtype)
            g = (yield Round({"w": at, **sent}, answer=original(course.mean), clip=float(clip)))["g"].double()
            of_f1 = problem.public_gradient(original(course.W)).double().view_as(course.W)
            course.step(g.view_as(course.W) / counted + T @ of_f1)
        model = course.shrunk()
        if shares is not None and self.recalibration_share:
            centre = math.log(shares[1] / shares[0])  # so that scores are spread over the bins
            at = original(model) - centre * torch.eye(len(T))[-1].to(w.dtype)
            found = yield Round({"scores": at}, answer=original(model))
            told = found["s"].double().view(2, _BINS), centre, float(public.sizes.sum())
            intercept, slope = recalibrated(*told, public.noise(self._scores(at)) / math.sqrt(found.share))
            model = model * slope
            model[-1] += intercept
        return original(model)

    def _check(self, problem: PublicProblem) -> None:
        if not isinstance(problem, LogisticRegression | SoftmaxRegression | LinearRegression):
            hint = "logistic_regression, softmax_regression or linear_regression with it"
            raise InputError("algorithm.name", "whitened_newton", f"problem: {hint}")
        if not replace(problem.composite, l2=0.0, ridge=None).empty:
            hint = "of f1 l2 or a ridge alone: of those its steps know the curvature"
            raise InputError("algorithm.name", "whitened_newton", hint)
        if self.recalibration_share and not isinstance(problem, LogisticRegression):
            hint = "0: it is for logistic_regression, whose scores are of two classes"
            raise InputError("algorithm.recalibration_share", self.recalibration_share, hint)

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"h": the noisy second moment}, {"q": of the classes}, {"g": a mean gradient}, {"s": of scores}."""
        if (at := broadcast.get("w")) is not None:
            T = broadcast["T"].view(-1, problem.num_features)  # type: ignore[attr-defined]
            return {"g": ask(Query("gradient", (at,), float(broadcast["clip"]), FULL, transform=T))}
        if "start" in broadcast:
            return {"h": ask(self._moment)}
        if "classes" in broadcast:
            return {"q": ask(self._classes(problem))}
        return {"s": ask(self._scores(broadcast["scores"]))}


def usual_factor(problem: GeneralisedLinear) -> float:
    """The clip over a whitened record's typical gradient, where it is not given."""
    return 1.2 if isinstance(problem, LinearRegression) else 1.5


def whitening(moment: Tensor, noise: float, diagonal: bool) -> tuple[Tensor, float]:
    """T (p, p) by which the features have a covariance of about the identity and a mean of about 0, its last
    row and column of the constant feature; and the typical norm of a record T x.

    Eigenvalues of the covariance below the noise's own are raised to it, which lowers the typical norm.

    Args:
        moment: noisy second moment of the features, (p, p), its last entry about 1.
        noise: standard deviation of the number of an entry on its diagonal.
        diagonal: whether to divide by the features' deviations alone.
    """
    mean = moment[-1, :-1].clamp(-1.0, 1.0)
    covariance, p = moment[:-1, :-1] - mean.outer(mean), len(moment)
    if diagonal:
        values, vectors = covariance.diagonal(), torch.eye(p - 1, dtype=moment.dtype)
    else:
        values, vectors = torch.linalg.eigh(covariance)
    spectral = noise * math.sqrt(2.0 * (math.log(p) if diagonal else p - 1))
    raised, kept = values.clamp_min(max(0.7 * spectral, _LEAST_EIGENVALUE)), values.clamp_min(0.0)
    kept = kept * max(float(values.sum()), 0.02) / max(float(kept.sum()), 1e-9)  # the trace has little noise
    T = torch.zeros_like(moment)
    T[:-1, :-1] = (vectors / raised.sqrt()).T
    T[:-1, -1], T[-1, -1] = -(T[:-1, :-1] @ mean), 1.0
    return T, math.sqrt(1.0 + float((kept / raised).sum()))


class Course:
    """The iterates W (p, outputs), their mean, and the noise in it."""

    def __init__(
        self,
        numbers: WhitenedNewton,
        shape: tuple[int, int],
        shares: Tensor | None,
        noise: float,
        start: Tensor | None = None,
        bend: Tensor | float = 0.0,
    ) -> None:
        """A course that has not begun.

        Args:
            shape: of W, (p, outputs).
            shares: of the classes; None for a number.
            noise: standard deviation of a coordinate of g.
            start: W_0, (p, outputs); None: the intercepts that predict the shares.
            bend: the Hessian of f1 in an output's coordinates, (p, p), or 0.
        """
        R, (p, outputs) = numbers.num_rounds, shape
        self._noise, self._shares, self._done, steps, h = noise, shares, 0, numbers.steps, 1.0
        self._bend = torch.zeros(p, p, dtype=torch.float64) + bend
        self.W = torch.zeros(shape, dtype=torch.float64)
        if shares is not None:
            h = max(float((shares * (1 - shares)).max()), _LEAST_CURVATURE)
            self.W[-1] = (shares[1] / shares[0]).log() if outputs == 1 else shares.log() - shares.log().mean()
        self.W = self.W if start is None else start
        if shares is not None and len(shares) == 2:  # a rare class curves less: noise moves a step farther
            steps = min(max(steps * (h / 0.2) ** 0.6, STEPS[0]), STEPS[1])
        self._rho, self._start, self.mean = min(steps / R, MOST_STEP), self.W.clone(), self.W.clone()
        ridge = (noise / DISTANCE) ** 2 * p / (R * h)
        self._ridge = torch.full((p, 1), ridge, dtype=torch.float64)
        self._ridge[-1] = 0.0 if shares is None else ridge / 4
        # of each round's noise in the iterate and in the mean, over its standard deviation
        self._in_iterate, self._in_mean = np.zeros(R), np.zeros(R)

    @property
    def variance(self) -> float:
        """Of the noise in a coordinate of the mean."""
        return float(np.square(self._in_mean).sum()) * self._noise**2

    @property
    def curvature(self) -> float:
        """h at the mean: the second derivative of the loss in a score, over whitened records."""
        if self._shares is None:
            return 1.0
        if self.mean.shape[1] > 1:
            p = torch.softmax(self.mean[-1], 0)
            return max(float((p * (1 - p)).max()), _LEAST_CURVATURE)
        squared = float(self.mean[:-1].square().sum()) - self.variance * (len(self.mean) - 1)
        nodes, weights = np.polynomial.hermite_e.hermegauss(15)
        scores = float(self.mean[-1].clamp(-4.0, 4.0)) + math.sqrt(min(max(squared, 0.0), 9.0)) * nodes
        sigma = 1 / (1 + np.exp(-scores))
        return max(float(np.average(sigma * (1 - sigma), weights=weights)), _LEAST_CURVATURE)

    def step(self, g: Tensor) -> None:
        """One step, at a noisy mean gradient (p, outputs)."""
        inverse = torch.linalg.inv((self.curvature + self._ridge).squeeze(-1).diag() + self._bend)
        self.W = self.W - self._rho * inverse @ (g + self._ridge * (self.W - self._start))
        self._in_iterate *= 1 - self._rho
        self._in_iterate[self._done] = self._rho * float(inverse.diagonal().mean())
        self._done += 1
        weight = 2 / (self._done + 1)  # weights 1, 2, .., R
        self.mean = self.mean + (self.W - self.mean) * weight
        self._in_mean += (self._in_iterate - self._in_mean) * weight

    def shrunk(self) -> Tensor:
        """The mean, its coefficients shrunk by half of what James and Stein's factor takes off."""
        moved = self.mean - self._start
        taken = (
            0.5
            * max(moved[:-1].numel() - 2, 0)
            * self.variance
            / max(float(moved[:-1].square().sum()), 1e-12)
        )
        moved[:-1] *= max(1.0 - taken, 0.0)
        return self._start + moved


def recalibrated(cells: Tensor, centre: float, records: float, noise: float) -> tuple[float, float]:
    """Intercept and slope of true on predicted log odds, by logistic regression on a histogram.

    Both are pulled to 0 and 1, from which they are taken to be `_OFF` away, by as much as noise hides them.

    Args:
        cells: noisy shares of records by class and bin of the predicted probability, (2, bins).
        centre: what was taken off the log odds before.
        records: in all silos.
        noise: standard deviation of a cell.
    """
    shares = cells.numpy() + (1 - float(cells.sum())) / cells.numel()  # what they sum to is public
    middle = (np.arange(cells.shape[1]) + 0.5) / cells.shape[1]
    odds = np.log(middle / (1 - middle)) + centre
    x, every, yes = np.stack([np.ones_like(odds), odds], 1), shares.sum(0).clip(0.0), shares[1]
    p = 1 / (1 + np.exp(-odds))
    informed = records * (x.T @ (x * (every * p * (1 - p))[:, None])).diagonal()
    pull = (records * noise) ** 2 * np.square(x).sum(0) / np.maximum(informed, 1e-9) / _OFF**2 + 1e-9
    most = records * x.T @ (x * every[:, None]) / 4 + np.diag(pull)  # no curvature is larger (Boehning 1992)
    b = np.array([0.0, 1.0])
    for _ in range(300):
        p = 1 / (1 + np.exp(-(x @ b).clip(-30, 30)))
        b = b - np.linalg.solve(most, records * x.T @ (every * p - yes) + pull * (b - [0.0, 1.0]))
    return float(b[0]), float(b[1])
