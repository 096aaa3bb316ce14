"""The releases of a run: clipped sums of records with the mechanism's noise, as the gate asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.privacy.mechanism import About, Mechanism
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem
from fedsim.protocol.batch import Batch
from fedsim.protocol.groups import Cells
from fedsim.protocol.plan import Admitted, Ask, Plan
from fedsim.protocol.query import Query
from fedsim.protocol.statistics import COSTED_GRADIENT, size_of, statistic
from silos.vault.batches import Batches
from silos.vault.entropy import Entropy, Noise
from silos.vault.records import Records
from silos.vault.sums import Block, Clip

if TYPE_CHECKING:  # loaded where a query asks for them
    from silos.vault.terms import Transformed

ClippedSum = Callable[[Problem, Block, Sequence[Tensor], Clip], Tensor]


class Releases:
    """Everything that the answers of one admitted run are computed with."""

    def __init__(
        self,
        records: Records,
        problem: Problem,
        mechanism: Mechanism,
        entropy: Entropy,
        plan: Plan,
        admitted: Sequence[Admitted],
        dtype: torch.dtype,
    ) -> None:
        self.records, self.problem, self.mechanism = records, problem, mechanism
        self.dimension, self.dtype = problem.dimension, dtype
        self._transformed: Transformed | None = None
        silos = [own.terms for own in admitted]
        names, rounds = [own.name for own in silos], [own.rounds for own in silos]
        self.spread, self.unit = plan.spread, plan.unit
        self.batches = Batches(records, plan, rounds, names, entropy, [own.n for own in silos])
        multipliers = [_base(own, mechanism) for own in admitted]
        self.multipliers = torch.tensor(multipliers, dtype=torch.float64).unsqueeze(-1)
        public = torch.tensor([[own.public] for own in silos])
        self.public = public if bool(public.any()) else None
        self.shares = [own.share for own in silos if own.share is not None]
        drawing = records.drawing(range(len(silos)))
        self.size = partial(size_of, dimension=self.dimension, features=problem.num_features)
        self.noise = Noise(mechanism, entropy, plan, len(drawing), self.size, dtype)

    def other(self, query: Query, blocks: Sequence[Block]) -> tuple[Problem, Sequence[Block], ClippedSum]:
        """Problem, records and the sum of terms for a query that is no gradient of records as they are."""
        from silos.vault.terms import Transformed, narrowed, summed  # loaded where one is asked for

        problem, clipped_sum = self.problem, self.records.clipped_sum
        if query.transform is not None:
            self._transformed = self._transformed or Transformed()
            problem = narrowed(problem, query.shape.transform)
            blocks = self._transformed.blocks(problem, blocks, query.transform)
        if statistic(query.statistic).gradient:
            return problem, blocks, clipped_sum
        return problem, blocks, partial(summed, clipped_sum, query.shape)

    def about(self, query: Query) -> About:
        """What is published where a mechanism protects less than a record: a simulation's alone."""
        longest = inf if not isinstance(self.problem, GeneralisedLinear) else self.records.longest
        costed = query.statistic == COSTED_GRADIENT.name
        reach = Cells.of(query.options).reach(query.points[1]) if costed else inf
        return About(longest, reach, self.problem.num_outputs)

    def round(self, members: list[int], round_index: int) -> RoundReleases:
        """The releases of one round."""
        return RoundReleases(self, members, round_index)


def _base(admitted: Admitted, mechanism: Mechanism) -> float:
    """Base noise multiplier of the mechanism; in secure aggregation it is common to all silos."""
    common = admitted.terms.noise_multiplier
    return common if mechanism.sums_only and common is not None else admitted.noise_multiplier


class RoundReleases:
    """The releases of one round, in the order of its asks."""

    def __init__(self, run: Releases, members: list[int], round_index: int) -> None:
        self._run, self._members = run, members
        everyone = len(members) == len(run.multipliers)
        self._multipliers = run.multipliers if everyone else run.multipliers[members]
        self._batches = run.batches.round(members, round_index)
        self._noise = run.noise.round(run.records.drawing(members), round_index)
        self._contributions: list[Tensor] = []

    def contributions(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The members' contributions by the query's number: all that they send in secure aggregation.

        The silo method has seen zeros for answers; of the sum of the real ones the server makes the message
        (`server.aggregate`).
        """
        if memory:
            hint = "and in sums it has no answers to keep"
            raise Refused(f"the silo method keeps memory between rounds, {hint}")
        return {str(number): value for number, value in enumerate(self._contributions)}

    def answers(self, planned: Ask, queries: Sequence[Query]) -> tuple[Tensor, ...]:
        """The releases of one ask, of the plan's own batch and noise ratios, without a graph."""
        blocks, divisors = self._batches.next(planned.batch)
        shapes = planned.queries
        if self._run.mechanism.sums_only:
            weights = self._weights(planned.batch)
            for query, shape in zip(queries, shapes, strict=True):
                self._contributions.append(self._contribution(query, shape.noise_ratio, blocks, weights))
            members, dtype, size = len(self._members), self._run.dtype, self._run.size
            return tuple(torch.zeros(members, size(shape), dtype=dtype) for shape in shapes)
        return tuple(
            self._release(query, shape.noise_ratio, blocks, divisors).detach()
            for query, shape in zip(queries, shapes, strict=True)
        )

    def _release(
        self, query: Query, noise_ratio: float, blocks: Sequence[Block], divisors: Tensor | None
    ) -> Tensor:
        """The clipped sum over K units and the mechanism's noise, divided by K; (members, d).

        The mechanism's noise is scaled to spread x clip, the sum's L2 sensitivity (`Plan.spread`). Division
        by the public K is post-processing.
        """
        total = self._sum(query, blocks)
        if statistic(query.statistic).drawn:
            from silos.vault.selections import drawn  # loaded where one is asked for

            half = self._run.unit.half_range(query.statistic, query.options)
            return drawn(total, noise_ratio * self._multipliers, half, self._run.mechanism, self._noise.next)
        self._perturb(total, query, noise_ratio, query.clip)
        return (total if divisors is None else total.div_(divisors)).to(self._run.dtype)

    def _contribution(
        self, query: Query, noise_ratio: float, blocks: Sequence[Block], weights: Tensor
    ) -> Tensor:
        """The members' contributions to a secure aggregation, (members, d), float64.

        w_i in (0, 1] times a sum of terms of norm <= kappa_i clip, with the silo's share of the noise: at the
        query's one clip its sensitivity is spread w_i kappa_i clip, which the silo has priced (`Share`).
        Terms that no clip bounds are multiplied by kappa_i.
        """
        if isinstance(query.clip, Tensor) and query.clip.dim() == 2:
            raise Refused("secure aggregation has one clip for all silos, this is one a silo")
        shares = [self._run.shares[member].clip for member in self._members]
        kappa = torch.tensor(shares, dtype=torch.float64).unsqueeze(-1)
        if not statistic(query.statistic).clipped:
            own, weights = query, weights * kappa
        elif set(shares) != {1.0}:
            own = replace(query, clip=(query.clip * kappa).to(self._run.dtype))
        else:
            own = query
        total = self._sum(own, blocks).mul_(weights)
        self._perturb(total, query, noise_ratio, float(query.clip))
        return total.detach()

    def _clip(self, clip: float | Tensor) -> float | Tensor:
        """The query's clip, (members, 1) where a silo is public: its own is infinite."""
        run = self._run
        if run.public is None:
            return clip
        own = torch.as_tensor(clip, dtype=run.dtype)
        return torch.where(run.public[self._members], inf, own)

    def _perturb(self, total: Tensor, query: Query, noise_ratio: float, clip: float | Tensor) -> None:
        spread, mechanism = self._run.spread(query.shape), self._run.mechanism
        moved = mechanism.moved(query.shape, spread, clip, partial(self._run.about, query))
        mechanism.perturb(total, noise_ratio, self._multipliers, spread, moved, self._noise.next)

    def _weights(self, batch: Batch) -> Tensor:
        """w_i of the members, (members, 1)."""
        weights = [self._run.shares[member].weight(batch) for member in self._members]
        return torch.tensor(weights, dtype=torch.float64).unsqueeze(-1)

    def _sum(self, query: Query, blocks: Sequence[Block]) -> Tensor:
        """The sums of the blocks' terms in the order of the members, (members, size)."""
        run, known = self._run, statistic(query.statistic)
        problem, clip = run.problem, run.mechanism.applied(self._clip(query.clip))
        clipped_sum: ClippedSum = run.records.clipped_sum
        gradients = known.gradient
        if query.transform is not None or not gradients:
            problem, blocks, clipped_sum = run.other(query, blocks)
        if query.h is not None:
            blocks = [run.records.units.weighted(block, query.h) for block in blocks]
        size = run.size(query.shape)
        if known.clipped and not known.drawn and run.records.units.summed:
            clipped_sum = partial(run.records.unit_sum, None if gradients else clipped_sum, size=size)
        if known.name == COSTED_GRADIENT.name:  # of records or units
            from silos.vault.terms import summed

            clipped_sum = partial(summed, clipped_sum, query.shape)
        if len(blocks) == 1:  # its silos are in the members' order
            return clipped_sum(problem, blocks[0], query.points, clip)
        total: Tensor | None = None
        place = {member: row for row, member in enumerate(self._members)}
        for block in blocks:
            rows = torch.tensor([place[member] for member in block.members])
            points = [point if point.dim() == 1 else point[rows] for point in query.points]
            own = clip[rows] if isinstance(clip, Tensor) and clip.dim() == 2 else clip
            found = clipped_sum(problem, block, points, own)
            if total is None:
                total = torch.empty(len(self._members), found.shape[1], dtype=found.dtype)
            total[rows] = found
        assert total is not None
        return total
