"""A model for each silo, near a shared one: mean-regularised multi-task learning (MR-MTL) by two step sizes.
K. Liu, S. Hu, Z. S. Wu, V. Smith, On Privacy and Personalization in Cross-Silo Federated Learning (2022).

Two rounds with answers given by hand; f1 = 0 and no constraint:

>>> import torch
>>> from fedsim.problems.glm import LinearRegression
>>> algorithm = MeanRegularised(num_rounds=2, step_size=0.5, own_step_size=0.1, pull=10.0, clip_norm=1.0)
>>> memory = {"v": torch.zeros(1, 1), "own": torch.zeros(1, 1)}
>>> algorithm.silo(LinearRegression(1), {"w": torch.ones(1)}, lambda query: -query.points[0], memory)
{'g': tensor([[-1.]])}
>>> memory["v"]
tensor([[0.0500]])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Clip, RoundBatch, Rounds, StepSize
from fedsim.common.errors import InputError
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class MeanRegularised:
    """A shared part w and an own part v_i of each silo's model, from the same noisy gradient.

    It minimises sum_i p_i (F_i(w + v_i) + lambda |v_i|^2 / 2) + f1(w). Silo i: g_i is the noisy clipped mean
    gradient at w_r + v_i, which it sends; v_i <- (v_i - eta_v g_i) / (1 + eta_v lambda), which it keeps.
    Server: w_{r+1} = project(w_r - eta (sum_i p_i g_i + grad f1(w_r))). f1 and the constraint are on w alone.
    Returned is a <- rho a + (1 - rho) w_{r+1} from a = w_0, and silo i's own part is the like of its v_i
    from 0: with rho = 0 the last iterates, and with eta_v = 0 those of minibatch SGD.

    The textbook's form has models w_i near their mean and one step size eta: a proximal step
    w_i <- (w_i - eta g_i + eta lambda mean w) / (1 + eta lambda), by which the mean moves
    eta / (1 + eta lambda): less, the stronger the pull. Its own parts are measured from the mean before it.
    """

    linear: ClassVar[bool] = False
    own: ClassVar[str] = "own"
    num_rounds: Rounds
    step_size: StepSize
    clip_norm: Clip
    pull: Annotated[float, Field(ge=0, description="lambda: how strongly own parts are pulled to 0")]
    own_step_size: Annotated[float | None, Field(ge=0, description="eta_v; of two_steps alone")] = None
    form: Annotated[
        Literal["two_steps", "textbook"], Field(description="textbook: one step size, which the pull shrinks")
    ] = "two_steps"
    averaging: Annotated[float, Field(ge=0, lt=1, description="rho: older iterates' share of a mean")] = 0.0
    batch: RoundBatch = FULL

    def __post_init__(self) -> None:
        if (self.own_step_size is None) == (self.form == "two_steps"):
            hint = "left out: its one step size is step_size" if self.form == "textbook" else "is required"
            raise InputError("own_step_size", self.own_step_size, hint)

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """Steps along the mean of the silos' gradients; in the textbook's form silos get the last one."""
        step, textbook = self.step_size, self.form == "textbook"
        if textbook:
            step = step / (1 + step * self.pull)
        before = mean = w
        for _ in range(self.num_rounds):
            way = {"way": w - before} if textbook else {}
            g = (yield Round({"w": w, **way}, answer=mean))["g"]
            before, w = w, problem.project(w - step * (g + problem.public_gradient(w)))
            mean = mean.lerp(before if textbook else w, 1 - self.averaging)
        return mean

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"g": the noisy mean gradient at the silo's own model, (silos, d)}."""
        v = memory["v"]
        eta = self.step_size if self.own_step_size is None else self.own_step_size
        if "way" in broadcast:
            v = v - broadcast["way"]
        g = ask(Query("gradient", (broadcast["w"] + v,), self.clip_norm, self.batch))
        memory["v"] = v = (v - eta * g) / (1 + eta * self.pull)
        memory["own"] = memory["own"].lerp(v, 1 - self.averaging)
        return {"g": g}

    def beside(self) -> dict[str, MeanRegularised]:
        """By the same plan one model, and every silo's minibatch SGD by itself: w stays, v_i moves freely."""
        if self.form == "textbook":  # whose broadcasts are others
            return {}
        one = replace(self, own_step_size=0.0)
        return {"one": one, "alone": replace(self, step_size=0.0, pull=0.0)}
