"""The likelihood ratio of what a silo said: how much more probable it is in one world than in the other.

The worlds differ in one record. Given how often that record is in an ask's batch (j times, with a public
probability p_j), the ask's answers are Gaussian around L + j E, with E the record's clipped term over K and L
what the others add, so that

    ln P(answers | world) = ln sum_j p_j exp(j <answers - L, E> / s^2 - j^2 |E|^2 / (2 s^2)) + a constant,

summed over an ask's queries inside the exponential, since they share the draw. No other function of the
answers tells more where L is known (Neyman and Pearson). Where batches are full the score is Gaussian with
variance mu^2 = sum |E - E'|^2 / s^2. Any score gives a valid bound; this one gives the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim.attacks.wiretap import Heard
from fedsim.privacy.pairs import multiplicities
from fedsim.protocol.batch import Batch, Fresh, Full, Poisson, Subsample, WithReplacement

_RARE = 1e-12


@dataclass(frozen=True)
class Places:
    """Where a query's answer lies: around base + j first in one world, base + j second in the other.

    Each (runs, d), or (1, d) where it is the same in all runs.
    """

    base: Tensor
    first: Tensor
    second: Tensor


def draws(batch: Batch, n: int) -> tuple[Tensor, Tensor]:
    """j and ln p_j: how often one record is in the batch (of a Fresh one given that it is this one)."""
    match batch:
        case Full() | Fresh():
            chance = np.array([0.0, 1.0])
        case Subsample() as batch:
            chance = np.array([1 - batch.size(n) / n, batch.size(n) / n])
        case Poisson(fraction=q):
            chance = np.array([1 - q, q])
        case WithReplacement() as batch:
            chance = multiplicities(n, batch.size(n))[0] if n > 1 else np.array([0.0, 1.0])
    j = np.flatnonzero(chance > _RARE)
    return torch.as_tensor(j, dtype=torch.float64), torch.as_tensor(np.log(chance[j]))


class Scores:
    """Log-likelihood ratios (second world over first) of so many runs, ask by ask."""

    def __init__(self, runs: int, n: int, noise_multiplier: float) -> None:
        self._n, self._z = n, noise_multiplier
        self._total = torch.zeros(runs, dtype=torch.float64)
        self._fresh: list[tuple[float, Tensor]] = []

    def add(self, batch: Batch, heard: Heard, places: Sequence[Places]) -> None:
        """One more ask."""
        if heard.answers[0].dim() == 3:
            self._total = self._total + self._unlinked(batch, heard, places)
            return
        j, log_chance = draws(batch, self._n)
        worlds = []
        for world in ("first", "second"):
            exponent = log_chance
            for query, answer, place in zip(heard.queries, heard.answers, places, strict=True):
                term = getattr(place, world)
                sensitivity = 2 * torch.as_tensor(query.clip).double() / batch.size(self._n)
                variance = (query.noise_ratio * self._z * sensitivity).square().reshape(-1)
                inner = ((answer.double() - place.base) * term).sum(-1) / variance
                square = term.square().sum(-1) / variance
                exponent = exponent + j * inner[:, None] - j.square() * square[:, None] / 2
            worlds.append(torch.where(exponent.isnan(), log_chance, exponent).logsumexp(-1))
        ratio = worlds[1] - worlds[0]  # clip 0 releases zero without noise: 0 / 0, which tells nothing
        if isinstance(batch, Fresh):
            self._fresh.append((batch.size(self._n) / self._n, ratio))
        else:
            self._total = self._total + ratio

    def _unlinked(self, batch: Batch, heard: Heard, places: Sequence[Places]) -> Tensor:
        """Of full batches, where answers are (runs, messages, d), all others around the first world's."""
        exponent = torch.zeros((), dtype=torch.float64)
        for query, answer, place in zip(heard.queries, heard.answers, places, strict=True):
            variance = (query.noise_ratio * self._z * 2 * float(query.clip) / batch.size(self._n)) ** 2
            moved = (place.second - place.first)[:, None]
            left = answer.double() - (place.base + place.first)[:, None]
            exponent = exponent + ((left * moved).sum(-1) - moved.square().sum(-1) / 2) / variance
        mean: Tensor = exponent.logsumexp(-1) - np.log(exponent.shape[-1])
        return mean

    def ratios(self) -> np.ndarray:
        """ln P(second) / P(first) of each run, (runs,)."""
        total = self._total
        if self._fresh:  # the record is in one of these batches, or in none of them
            rest = max(0.0, 1 - sum(share for share, _ in self._fresh))
            terms = [np.log(share) + ratio for share, ratio in self._fresh]
            nowhere = torch.full_like(terms[0], np.log(max(rest, 1e-300)))
            total = total + torch.stack([*terms, nowhere]).logsumexp(0)
        return np.asarray(total)
