"""Private preparation: statistics released before training make one public linear map of the features.

Of a stage's noisy answer the server makes a map, which records pass through in later stages and in training:
a public matrix T (k, features) whose last row and column are of the constant feature, so that it has offsets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import numpy as np
import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, moment_of
from fedsim.common.choice import Choice
from fedsim.protocol.contract import Algorithm, Asker, Query, Round, Wrapper, relayed
from fedsim.protocol.contributions import tradeoff

if TYPE_CHECKING:  # a refused scenario does without
    from torch import Tensor

    from fedsim.protocol.contract import Memory, Message, Public, ServerHalf

Share = Annotated[float, Field(gt=0, lt=1, description="share of mu^2; training has what stages leave")]
Bound = Field(ge=0, le=1e6, description="bound on a record's squared norm, with its 1; 0: the declared one")
_LEAST = 0.25  # of a histogram's sum, 1 without noise
_LEAST_WEIGHT = 1e-9  # of the constant feature's moment, where it has no noise
_H = "records of a person"
_LEAST_VARIANCE = 1e-4  # over the clip, where noise is less: what is divided by it stays small


@dataclass(frozen=True, kw_only=True)
class Standardise:
    """Features less their mean, over their deviation; a variance is at least the noise's deviation."""

    name: ClassVar[str] = "standardise"
    share: Share
    clip: Annotated[float, Bound] = 0.0

    def queries(self, features: int, ratio: float) -> list[Query]:
        """What is asked at once; together the queries cost as much as one of this noise ratio."""
        return [Query("second_moment", (), self.clip, FULL, ratio, (0.0,))]

    def map(self, answer: Tensor, features: int, noise: float) -> Tensor:
        """T from the answers side by side; `noise` is the first one's deviation."""
        second, mean, weight = self._moments(answer, noise)
        least = max(noise / min(weight, 1.0), _LEAST_VARIANCE * self.clip)
        return _affine((second.diagonal() - mean.square()).clamp_min(least).rsqrt().diag(), mean)

    def _moments(self, answer: Tensor, noise: float) -> tuple[Tensor, Tensor, float]:
        """Second moment (f, f) and mean (f,) over the constant feature's moment, and that moment.

        Clip and bound give a record's whole v v^T one weight, and the constant's moment is the mean weight:
        so these are moments of weighed records. No entry of a term is above the clip, no mean above `bound`.
        """
        moment = moment_of(answer)
        weight = max(float(moment[-1, -1]), noise, _LEAST_WEIGHT)
        moment, bound = moment / weight, math.sqrt(self.clip / weight)
        return moment[:-1, :-1], moment[:-1, -1].clamp(-bound, bound), weight


@dataclass(frozen=True, kw_only=True)
class PrincipalComponents(Standardise):
    """Coordinates, less their mean, along the main directions of the second moment about zero (Analyze Gauss:
    Dwork, Talwar, Thakurta and Zhang 2014, Algorithm 1). About the mean it would have the mean's noise too.
    """

    name: ClassVar[str] = "pca"
    components: Annotated[int, Field(ge=1, description="how many are kept, beside the constant feature")]

    def map(self, answer: Tensor, features: int, noise: float) -> Tensor:
        """As `Standardise.map`."""
        second, mean, _ = self._moments(answer, noise)
        return _affine(torch.linalg.eigh(second).eigenvectors.flip(1)[:, : self.components].T, mean)


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Maps features in [-1, 1], each from the range between two quantiles of its histogram, to [-1, 1]."""

    name: ClassVar[str] = "ranges"
    share: Share
    quantiles: Annotated[tuple[float, float], Field(description="ends, as shares of records")] = (0.01, 0.99)
    bins: Annotated[int, Field(ge=8, le=4096, description="of a feature's histogram")] = 64

    def queries(self, features: int, ratio: float) -> list[Query]:
        """As `Standardise.queries`: a histogram of each feature but the constant one."""
        edges, each = np.linspace(-1, 1, self.bins + 1).tolist(), ratio * math.sqrt(features - 1)
        return [Query("histogram", (), 1.0, FULL, each, (1.0, j, *edges)) for j in range(features - 1)]

    def map(self, answer: Tensor, features: int, noise: float) -> Tensor:
        """As `Standardise.map`. A range has at least four bins, so that rare values do not become large."""
        counts, right = answer.view(-1, self.bins), np.linspace(-1, 1, self.bins + 1)[1:]
        rising = _rising(counts / counts.sum(1, keepdim=True).clamp_min(_LEAST))
        ends = np.array([np.interp(self.quantiles, row, right) for row in rising.numpy()])
        low, high = answer.new_tensor(ends).T
        return _affine((2 / (high - low).clamp_min(8 / self.bins)).diag(), (low + high) / 2)


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """h, at most `largest`, by a noisy histogram; it makes no map.

    So large that a share q of persons keep all records; or, with the `noise` of training known, the one of
    least variance (`fedsim.protocol.contributions`), in a silo of so many persons.
    """

    name: ClassVar[str] = "contributions"
    share: float
    q: float
    largest: int
    noise: float = 0.0
    persons: int = 0
    bound: str = ""

    @property
    def ends(self) -> tuple[float, ...]:
        """The most records of each cell, about sqrt(2) apart; the last has all who have more."""
        steps = range(1 + 2 * self.largest.bit_length())
        return tuple(sorted({float(min(self.largest, round(2 ** (k / 2)))) for k in steps}))

    def h(self, shares: Tensor) -> float:
        """From noisy shares of persons, one of `ends`; of the variance's, any; as `_rising` has them."""
        below = _rising(shares / shares.sum().clamp_min(_LEAST))
        if self.noise:
            steps = below.diff(prepend=below.new_zeros(1)).clamp_min(1e-9).tolist()
            profile = {int(end): step for end, step in zip(self.ends, steps, strict=True)}
            return float(tradeoff(profile, self.persons, self.noise, self.bound))
        return self.ends[min(int((below < self.q).sum()), len(self.ends) - 1)]


StageKind = Standardise | Ranges | PrincipalComponents
Stage = Annotated[StageKind, Choice()]


def _rising(shares: Tensor) -> Tensor:
    """Shares below. With noise they fall too: half way between the rising curves just above and below."""
    below = shares.cumsum(-1)
    return (below.cummax(-1).values + below.flip(-1).cummin(-1).values.flip(-1)) / 2


def _affine(matrix: Tensor, centre: Tensor) -> Tensor:
    """x to matrix (x - centre), as a matrix on (x, 1) that keeps the 1."""
    transform = matrix.new_zeros(len(matrix) + 1, len(centre) + 1)
    transform[:-1, :-1], transform[:-1, -1], transform[-1, -1] = matrix, -(matrix @ centre), 1.0
    return transform


@dataclass(frozen=True)
class Prepared(Wrapper):
    """An algorithm for linear models, after a round for each stage, whose message is its answers.

    Privacy: a stage's release is in the plan, at its share of mu^2, and composed with all that follows. An h
    made of it is public, as a map is, and named by every later query: a person's term has norm <= clip at any
    h (`fedsim.protocol.unit`), so that no price depends on it.

    On features T x it makes W, regularised and constrained as such; T^T W, the same model of the features as
    they were, is what is evaluated and returned.
    """

    stages: tuple[StageKind | Contributions, ...]
    noise_ratios: tuple[float, ...]  # of the stages
    inner: Algorithm
    any_size: ClassVar[bool] = True

    def server(self, w: Tensor, problem: Any, public: Public, rng: Generator) -> ServerHalf:
        """Rounds of the stages, each sent the map so far, then the algorithm's, sent the whole map too."""
        asked: dict[str, Tensor] = {}
        transform = w.new_ones(problem.num_features).diag()
        for r, (stage, ratio) in enumerate(zip(self.stages, self.noise_ratios, strict=True)):
            so_far = transform.flatten() if r else w.new_zeros(1)
            sums = yield Round({f"stage {r}": so_far, **asked}, answer=w)
            if isinstance(stage, Contributions):
                asked = {_H: w.new_tensor([stage.h(sums["h"])])}
                continue
            noise = public.noise(stage.queries(len(transform), ratio)[0]) / math.sqrt(sums.share)
            transform = stage.map(sums["h"], len(transform), noise) @ transform
        inner = replace(problem, num_features=len(transform))
        rounds = self.inner.server(inner.project(w.new_zeros(inner.dimension)), inner, public, rng)

        def sent(step: Round) -> Round:
            broadcast = {**step.broadcast, **asked, "prepared by": transform.flatten()}
            return replace(step, broadcast=broadcast, answer=_original(step.answer, transform))

        return _original((yield from relayed(rounds, sent)), transform)

    def silo(self, problem: Any, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"h": answers of a stage's queries, side by side}, or the algorithm's message on features T x."""
        from fedsim.protocol.copies import CohortMemory

        h = float(broadcast[_H]) if _H in broadcast else None
        for r, (stage, ratio) in enumerate(zip(self.stages, self.noise_ratios, strict=True)):
            if (sent := broadcast.get(f"stage {r}")) is not None:
                if isinstance(stage, Contributions):
                    return {"h": ask(Query("contributions", (), 1.0, FULL, ratio, stage.ends))}
                by = sent.view(-1, problem.num_features) if r else None
                queries = stage.queries(problem.num_features if by is None else len(by), ratio)
                answers: Any = ask(*(replace(query, transform=by, h=h) for query in queries))
                return {"h": answers if len(queries) == 1 else torch.cat(answers, -1)}
        rest = {name: value for name, value in broadcast.items() if name != _H}
        transform = rest.pop("prepared by").view(-1, problem.num_features)

        def prepared(*queries: Query) -> Any:
            by = [transform if q.transform is None else q.transform @ transform for q in queries]
            return ask(*(replace(q, transform=own, h=h) for q, own in zip(queries, by, strict=True)))

        inner, unwritten = replace(problem, num_features=len(transform)), memory["unwritten"]
        kept = CohortMemory(len(unwritten), inner.dimension, unwritten.dtype)
        kept.update(memory)
        message = self.inner.silo(inner, rest, cast(Asker, prepared), kept)
        memory.update(kept)
        return message


def _original(w: Tensor, transform: Tensor) -> Tensor:
    """T^T W, flat."""
    return (transform.T @ w.view(len(transform), -1)).reshape(-1)
