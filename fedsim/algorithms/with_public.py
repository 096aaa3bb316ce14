"""What the server does with public records beyond their gradient in f1: a weight, and a preconditioner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from numpy.random import Generator

from fedsim.problems.public_records import PublicRecords
from fedsim.protocol.contract import Algorithm, Asker, Combined, Memory, Message, Public, ServerHalf


@dataclass(frozen=True, eq=False)
class WithPublic:
    """An algorithm whose message is a noisy mean gradient "g", with a server that uses public records.

    It multiplies the aggregate by the preconditioner, as f1's gradient is (both: else the fixed point would
    move), and sets the weight of least variance. Both are post-processing, and free.
    """

    inner: Algorithm
    records: PublicRecords
    share: float  # M / N, of silos that take part in a round

    @property
    def linear(self) -> bool:
        """Whether the algorithm is."""
        return self.inner.linear

    def server(self, w: torch.Tensor, problem: Any, public: Public, rng: Generator) -> ServerHalf:
        """The algorithm's rounds."""
        own = replace(self.records, weight=self.weight(public, len(w)))
        problem = replace(problem, composite=replace(problem.composite, records=own))
        rounds, sent, inverse = self.inner.server(w, problem, public, rng), cast(Any, None), own.inverse
        while True:
            try:
                sums = yield rounds.send(sent)
            except StopIteration as stop:
                return cast(torch.Tensor, stop.value)
            sent = sums
            if inverse is not None and "g" in sums:
                sent = Combined({**sums, "g": sums["g"] @ inverse}, sums.share)

    def silo(self, problem: Any, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """The algorithm's."""
        return self.inner.silo(problem, broadcast, ask, memory)

    def weight(self, public: Public, d: int) -> float:
        """kappa = (1 - alpha) / alpha, alpha = v / (v + u) for u and v the variances of the private and of
        the public mean gradient: of least variance among weights that sum to 1.

            u = V^2 sum_i p_i^2 / K_i + d sigma^2,   v = V^2 / K_pub,

        of one silo alpha = 1 / (1 + K_pub / K + d sigma^2 K_pub / V^2) (thesis: Proposition 18, Algorithm
        11). V^2 is measured on public records, sigma of the plan: no private record is looked at.
        """
        variance = self.records.variance
        if variance is None:
            return self.records.weight
        inner = cast(Any, self.inner)
        drawn = torch.tensor([inner.batch.size(n) for n in public.sizes.tolist()])
        sigma = 2 * float(inner.clip_norm) * replace(public, sizes=drawn).mean_noise
        sampled = variance * float((public.weights.double().square() / drawn).sum())
        return (sampled + d * sigma**2) / self.share * len(self.records) / variance
