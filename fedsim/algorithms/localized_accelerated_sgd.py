"""Localized acceleration: Gao, Lowy, Zhou and Wright, "Private Heterogeneous Federated Learning Without a
Trusted Server Revisited", ICML 2024 (arXiv 2407.09690); localization is as in A. Lowy, thesis (USC 2023),
Algorithm 7.

Phases have parts of the records, each half as many as the one before, so that a record is in one phase:

>>> [part.bounds(1024) for part in LocalizedAcceleratedSGD(3, 10, 1.0, 0.01, 2.0, 1.0).parts]
[(0, 512), (512, 768), (768, 896)]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.algorithms.base import Clip, Rounds, Scalar, StepSize
from fedsim.common.errors import InputError
from fedsim.protocol.batch import Part
from fedsim.protocol.contract import PublicProblem, Query, relayed

if TYPE_CHECKING:
    from fedsim.protocol.contract import Asker, Memory, Message, Public, Round, ServerHalf

_LEAST = 16  # units in a part: fewer are noise alone


@dataclass(frozen=True)
class LocalizedAcceleratedSGD:
    """Phase i = 1, 2, .. minimises the loss of part i plus lambda_i / 2 |w - w_{i-1}|^2, by AC-SA.

    Part i has n / 2^i units; lambda_i = lambda 2^((i - 1) p); w stays within 2 C / lambda_i of w_{i-1}, where
    the phase begins and where the regulariser's centre is. A step is 1 / (1/eta + 2 lambda_i), since the
    regulariser adds lambda_i to the smoothness. lambda and p are the caller's: the paper's choices of them
    are for its rates. A record pays for the rounds of its own phase alone.
    """

    phases: Annotated[int, Field(ge=1, le=20, description="parts, each half as large as the one before")]
    phase_rounds: Rounds
    step_size: StepSize
    regularisation: Annotated[float, Field(gt=0, description="lambda: of the first phase")]
    growth: Annotated[float, Field(ge=0, le=10, description="p: lambda grows by 2^p a phase")]
    clip_norm: Clip
    linear: ClassVar[bool] = True

    @property
    def parts(self) -> list[Part]:
        """The part of the records that each phase uses, in the order of the phases."""
        return [Part(1 - 2.0 ** (1 - i), 1 - 2.0**-i) for i in range(1, self.phases + 1)]

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """The phases, each from where the last one ended. InputError if a silo is too small for the last."""
        least = int(public.sizes.min())
        start, stop = self.parts[-1].bounds(least)
        if (size := stop - start) < _LEAST:
            name = public.names[int(public.sizes.argmin())]
            most = math.floor(math.log2(max(1, least / _LEAST)))
            hint = f"at most {most}: the last part of silo {name!r}, of {least} units, would hold {size}; "
            raise InputError("scenario.algorithm.phases", self.phases, f"{hint}it needs {_LEAST}")
        for i in range(self.phases):
            weight = self.regularisation * 2 ** (i * self.growth)
            step = self.step_size / (1 + 2 * self.step_size * weight)
            phase = AcceleratedMinibatchSGD(self.phase_rounds, step, self.clip_norm, weight)
            near = _Near(problem, w, weight, 2 * self.clip_norm / weight)
            rounds = phase.server(w, cast(PublicProblem, near), public, rng)
            w = yield from relayed(rounds, partial(_named, f"phase {i + 1}"))
        return w

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"g": the noisy mean gradient on the phase's part, (silos, d)}."""
        ((name, w),) = broadcast.items()
        return {"g": ask(Query("gradient", (w,), self.clip_norm, self.parts[int(name.split()[1]) - 1]))}


@dataclass(frozen=True)
class _Near:
    """A problem with weight / 2 |w - centre|^2 added, for w within `radius` of the centre."""

    problem: PublicProblem
    centre: torch.Tensor
    weight: float
    radius: Scalar

    def public_gradient(self, w: torch.Tensor) -> torch.Tensor:
        """Of f1 and what is added; (..., d) to (..., d)."""
        return self.problem.public_gradient(w) + self.weight * (w - self.centre)

    def project(self, w: torch.Tensor) -> torch.Tensor:
        """On the ball, then on the constraint set W. As the centre is in W, the latter moves no point away
        from it, so that the result is in both; it is the Euclidean projection where W is the whole space.
        """
        away = w - self.centre
        norm = away.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
        return self.problem.project(self.centre + away * (self.radius / norm).clamp_max(1.0))


def _named(phase: str, step: Round) -> Round:
    """The round, whose broadcast w has the phase's name: by it a silo knows the part."""
    return replace(step, broadcast={phase: step.broadcast["w"]})
