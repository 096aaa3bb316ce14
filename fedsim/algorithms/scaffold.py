"""SCAFFOLD: S. P. Karimireddy et al., Stochastic Controlled Averaging, ICML 2020, Algorithm 1, option II."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from numpy.random import Generator

from fedsim.algorithms.local_sgd import LocalSGD
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class Scaffold(LocalSGD):
    """Local SGD with control variates: each step is corrected for the drift of the silo's gradient.

    Silo i: w <- project(w - eta (g_i(w) - c_i + c + grad f1(w))), K times; c_i <- the mean of these K noisy
    gradients, without f1 and constraint the paper's c_i - c + (w_r - w_i) / (K eta). It sends w_i - w_r and
    the change of c_i, and keeps c_i. Server: w_{r+1} = project(w_r + sum_i p_i (w_i - w_r));
    c = sum_i p_i c_i over all silos, updated by those that answer. Returns w_R. A step has the noise of g_i,
    of c_i and of c.
    """

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """Add the silos' mean change to the model, R times, and keep the mean of their control variates."""
        c = torch.zeros_like(w)
        for _ in range(self.num_rounds):
            mean = yield Round({"w": w, "c": c}, answer=w)
            w = problem.project(w + mean["way"])
            c = c + mean.share * mean["change"]
        return w

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"way": the change of the model, "change": that of the control variate}, each (silos, d)."""
        start = w = broadcast["w"]
        correction, total = broadcast["c"] - memory["c"], torch.zeros_like(w)
        for _ in range(self.local_steps):
            gradient = ask(Query("gradient", (w,), self.clip_norm, self.batch))
            w = problem.descend(w, gradient + correction, self.step_size)
            total = total + gradient
        old, memory["c"] = memory["c"], total / self.local_steps
        return {"way": w - start, "change": memory["c"] - old}
