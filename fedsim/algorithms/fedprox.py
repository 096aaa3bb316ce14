"""FedProx: T. Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedsim.algorithms.local_sgd import LocalSGD
from fedsim.protocol.contract import Asker, Memory, Message, PublicProblem, Query


@dataclass(frozen=True, kw_only=True)
class FedProx(LocalSGD):
    """Local SGD whose steps are pulled back to the model that was broadcast.

    Silo i minimises F_i(w) + f1(w) + (mu / 2) |w - w_r|^2, inexactly, by K steps
    w <- project(w - eta (g_i(w) + grad f1(w) + mu (w - w_r))). The rest is `local_sgd`, which is mu = 0.
    The pull is public: neither clipped nor noised, it costs nothing.
    """

    proximal_weight: Annotated[float, Field(ge=0, description="mu: pull towards the model broadcast")]

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"way": the change of the model over K local steps with a proximal term, (silos, d)}."""
        start = w = broadcast["w"]
        for _ in range(self.local_steps):
            gradient = ask(Query("gradient", (w,), self.clip_norm, self.batch))
            w = problem.descend(w, gradient + self.proximal_weight * (w - start), self.step_size)
        return {"way": w - start}
