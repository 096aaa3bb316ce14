"""Restarted noisy proximal SVRG: A. Lowy, thesis (USC 2023), Algorithm 3, Theorems 42 and 148."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.prox_svrg import ProxSVRG
from fedsim.protocol.contract import Public, PublicProblem, ServerHalf


@dataclass(frozen=True, kw_only=True)
class ProxPLSVRG(ProxSVRG):
    """Prox-SVRG restarted S times from where it ended, for objectives of the proximal-PL kind.

    w_s = Prox-SVRG(w_{s-1}); returns w_S. The excess risk falls geometrically with s until the noise
    floor; R = 12 kappa steps and S of order log(excess / floor) in the theorem.
    """

    restarts: Annotated[int, Field(ge=1, description="S: runs of prox-SVRG")]

    @property
    def num_rounds(self) -> int:
        """S E (1 + Q)."""
        return self.restarts * super().num_rounds

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """S runs, each from the last one's random iterate."""
        for _ in range(self.restarts):
            w = yield from super().server(w, problem, public, rng)
        return w
