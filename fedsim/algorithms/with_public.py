"""What the server does with public records beyond their gradient in f1: a weight, and a preconditioner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from numpy.random import Generator

from fedsim.problems.public_records import PublicRecords
from fedsim.protocol.contract import Algorithm, Combined, Query, Wrapper, relayed

if TYPE_CHECKING:
    from fedsim.protocol.contract import Public, ServerHalf


@dataclass(frozen=True, eq=False)
class WithPublic(Wrapper):
    """An algorithm whose message is a noisy mean gradient "g", with a server that uses public records.

    It multiplies the aggregate by the preconditioner, as f1's gradient is (both: else the fixed point would
    move), and sets the weight of least variance. Both are post-processing, and free.
    """

    inner: Algorithm
    records: PublicRecords
    share: float  # M / N, of silos that take part in a round

    def server(self, w: torch.Tensor, problem: Any, public: Public, rng: Generator) -> ServerHalf:
        """The algorithm's rounds."""
        problem, inverse = self.weighed(problem, public), self.records.inverse

        def heard(sums: Combined) -> Combined:
            if inverse is None or "g" not in sums:
                return sums
            return Combined({**sums, "g": sums["g"] @ inverse}, sums.share)

        return (yield from relayed(self.inner.server(w, problem, public, rng), heard=heard))

    def weighed(self, problem: Any, public: Public) -> Any:
        """The problem with the weight that follows from the noise, which a note tells."""
        own, kappa = self.records, self.weight(public, problem.dimension)
        why = f"weight optimal: kappa is {kappa:.4g}; steps must be up to {1 + kappa:.4g} times smaller"
        own = replace(own, weight=kappa, notes=own.notes + (why,) * (own.variance is not None))
        return replace(problem, composite=replace(problem.composite, records=own))

    def weight(self, public: Public, d: int) -> float:
        """kappa = (1 - alpha) / alpha, alpha = v / (v + u) for u and v the variances of the private and of
        the public mean gradient: of least variance among weights that sum to 1.

            u = V^2 sum_i p_i^2 / K_i + d sigma^2,   v = V^2 / K_pub,

        of one silo alpha = 1 / (1 + K_pub / K + d sigma^2 K_pub / V^2) (thesis: Proposition 18, Algorithm
        11). V^2 is measured on public records, sigma of the plan (where noise falls, that of equal
        noise at its cost): no private record is looked at.
        """
        variance = self.records.variance
        if variance is None:
            return self.records.weight
        sigma = public.noise(Query("gradient", (), self.clip_norm, self.batch))
        sampled = variance * float((public.weights.double().square() / public.drawn(self.batch)).sum())
        return (sampled + d * sigma**2) / self.share * len(self.records) / variance
