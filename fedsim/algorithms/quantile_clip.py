"""A clip chosen as the run goes: `clip_norm: {quantile: q, rounds: r, share: s}`.

In each of the first r rounds silos also answer how many of their records have a gradient longer than the
clip C, at the round's first gradient's point and on its batch. Of the noisy share the server makes the next
C: one number for all silos, public, made of noisy answers, so that it costs nothing more. A bisection of
log C: it goes down where fewer than 1 - q are longer, and up where more are by two deviations of the noise,
since a clip that is too large costs noise in proportion, and one that is too small little; else it stays. The
factor is 2 until it turns, and the root of the last one after each turn. Only the sign of what is measured
counts, so that no answer moves C by more.

Counts of +-1 with steps in proportion: Andrew, Thakkar, McMahan and Ramaswamy, Differentially Private
Learning with Adaptive Clipping, NeurIPS 2021. With few rounds a bisection is there sooner.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from numpy.random import Generator
from pydantic import Field

from fedsim.common.errors import InputError, Refused
from fedsim.protocol.batch import FULL, Fresh
from fedsim.protocol.contract import Algorithm, Asker, Combined, Query, Wrapper, relayed, traits
from fedsim.protocol.plan import Ask, Plan
from fedsim.protocol.statistics import GRADIENT, LONGER

if TYPE_CHECKING:  # a refused scenario does without
    from torch import Tensor

    from fedsim.protocol.contract import Memory, Message, Public, PublicProblem, Round, ServerHalf

CLIP, COUNTED = "clip", "clip that is counted against"  # names of broadcasts' arrays
_LEAST, _MOST = 1e-6, 1e6  # silos' limits
_SURE = 2.0  # deviations of the noise
Number = Annotated[float, Field(ge=_LEAST, le=_MOST)]


@dataclass(frozen=True, kw_only=True)
class QuantileClip:
    """A private quantile of the lengths of gradients, found in the first rounds."""

    quantile: Annotated[float, Field(gt=0, lt=1, description="share of gradients that the clip leaves whole")]
    rounds: Annotated[int, Field(ge=1, description="the first so many look for it")]
    share: Annotated[float, Field(gt=0, le=0.5, description="of mu^2, for looking")]
    start: Annotated[Number, Field(description="clip of the first round")] = 1.0
    noise_ratio: Annotated[
        float | None, Field(gt=0, description="of a count; by share, and given to deployed silos")
    ] = None

    def around(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm, whose own clip is the first one, with this rule."""
        return QuantileClipped(self, algorithm)

    def priced(self, plan: Plan) -> QuantileClip:
        """With the noise ratio at which counts take the share of mu^2 in a plan that has them.

        Where batches are sampled that is of asks on such batches, whose mu^2 is taken to add up. A record is
        in one part, and in one of `fresh` batches: the share is of the one that costs most.
        """
        asks = [ask for asks in plan.rounds for ask in asks]
        counted = [ask for ask in asks if any(query.statistic == LONGER for query in ask.queries)]
        costs = [(1, _besides(ask)) for ask in counted]  # counts, and the rest, that one record meets
        if not isinstance(counted[0].batch, Fresh):
            times = Counter(ask.batch for ask in counted)
            costs = [(n, sum(_besides(ask) for ask in asks if ask.batch == own)) for own, n in times.items()]
        most = max(rest for _, rest in costs) / (1 - self.share)
        return replace(self, noise_ratio=math.sqrt(max(n / (most - rest) for n, rest in costs)))


def _besides(ask: Ask) -> float:
    """mu^2 of what is asked beside a count, over that of one query of noise ratio 1."""
    return sum(query.noise_ratio**-2 for query in ask.queries if query.statistic != LONGER)


@dataclass(frozen=True)
class QuantileClipped(Wrapper):
    """An algorithm whose clip is chosen in its first rounds."""

    rule: QuantileClip
    inner: Algorithm
    any_size: ClassVar[bool] = True

    def server(self, w: Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """The algorithm's rounds, each sent the clip too."""
        rule, clip = self.rule, w.new_tensor([self.rule.start])
        factor, last = clip.new_full((1,), 2.0), clip.new_zeros(1)
        r = 0

        def sent(step: Round) -> Round:
            broadcast = {**step.broadcast, COUNTED if r < rule.rounds else CLIP: clip}
            # of runs side by side there are several
            return replace(step, broadcast=broadcast, clip=float(clip) if clip.numel() == 1 else None)

        def heard(sums: Combined) -> Combined:
            nonlocal clip, factor, last, r
            if r < rule.rounds:
                above = sums[LONGER] - (1 - rule.quantile)
                noise = public.noise(self._count) / math.sqrt(sums.share)
                way = (above > _SURE * noise).to(w.dtype) - (above < 0).to(w.dtype)  # up 1, down -1, or 0
                factor = factor.where(way * last >= 0, factor.sqrt())
                last = last.where(way == 0, way)
                clip = (clip * factor**way).clamp(_LEAST, _MOST)
            r += 1
            return Combined({key: value for key, value in sums.items() if key != LONGER}, sums.share)

        model = yield from relayed(self.inner.server(w, problem, public, rng), sent, heard)
        if r < rule.rounds:
            hint = f"at most the algorithm's {r} rounds"
            raise InputError("scenario.algorithm.clip_norm.rounds", rule.rounds, hint)
        return model

    @property
    def _count(self) -> Query:
        ratio = self.rule.noise_ratio or 1.0  # before it is known
        return Query(LONGER, (), 1.0, traits(self.inner).batch or FULL, ratio)

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """The algorithm's message at this clip, and in the first rounds {"longer": a noisy share}."""
        rest, counts = dict(broadcast), cast("list[Tensor]", [])
        clip = counted = rest.pop(COUNTED, None)
        if clip is None:
            clip = rest.pop(CLIP)

        def asked(*queries: Query) -> Any:
            own = next((query for query in queries if query.statistic == GRADIENT.name), None)
            if counted is None or counts or own is None:
                return cast(Any, ask)(*queries)
            count = replace(self._count, points=(own.points[0], counted), batch=own.batch)
            first, *answers = ask(replace(count, transform=own.transform, h=own.h), *queries)
            counts.append(first)
            return tuple(answers) if len(answers) > 1 else answers[0]

        own_clip = float(clip) if clip.numel() == 1 else clip
        inner = cast(Algorithm, replace(cast(Any, self.inner), clip_norm=own_clip))
        message = inner.silo(problem, rest, cast(Asker, asked), memory)
        if counted is None:
            return message
        if not counts:
            hint = "a number: it counts gradients, and this round asks for none"
            raise Refused(f"clip_norm is {{quantile: {self.rule.quantile:g}, ...}}; give {hint}")
        return {**message, LONGER: counts[0]}
