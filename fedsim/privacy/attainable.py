"""A lower bound of what a plan costs: the epsilon that one pair of neighbouring data sets attains.

`epsilon(census, n, z, delta)` returns eps such that the transcript is (eps', delta)-DP for no eps' < eps.
The data sets: every clipped term is -C u for a unit vector u, and the neighbour's differing record has +C u.
The privacy loss of a release of weight a is then that of

    P = sum_j p(j) N(j a / z, 1)    against    Q = N(0, 1),

where j is how often the record is in the batch: Binom(K, 1/n) with replacement, once with probability K/n
without, always once in a full batch. Releases compose, in both orders (P against Q, Q against P); the
bound is the larger epsilon. Poisson and Fresh releases are left out, and leaving out is post-processing.

The bound is computed independently of the proven one and rounded the other way. The real line is cut into
cells; to see only the cell is post-processing too. A cell's loss ln P(cell)/Q(cell) is moved down to a
grid of step h (lowered by one common amount, of order h^2, cells being chosen around the grid's points),
improbable cells are dropped, and delta is raised by 1e-4 of itself against what the window of `loss` adds.
Multiplicities rarer than 1e-40 are left out. Where there is so little noise that probabilities would not be
numbers, the bound is that of more noise: adding some is post-processing. Other data sets may need more: it
is a lower bound of the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.privacy import gaussian, loss
from fedsim.privacy.pairs import multiplicities
from fedsim.protocol.batch import Full, Subsample, WithReplacement
from fedsim.protocol.plan import Census, Release

Array = npt.NDArray[np.float64]

_DROPPED = 1e-6  # share of delta in dropped cells
_CELLS = 50  # per standard deviation of a loss
_MOST_CELLS = 2**16  # of one release
_POINTS = 2001  # where the loss is evaluated, to be interpolated
_SMALLEST_MU = 1e-9  # below it the Full part alone is priced
_LARGEST_MU, _LARGEST_OF_ONE = 200.0, 30.0  # of the most draws and of one: e^-700 is no number


@dataclass(frozen=True, slots=True)
class _Mixture:
    """sum_j chance[j] N(mean[j], 1) against N(0, 1); means ascend from 0."""

    chance: Array
    mean: Array

    def loss(self, x: Array) -> Array:
        """ln dP/dQ at x, which grows with x."""
        return np.asarray(
            special.logsumexp(x[:, None] * self.mean - self.mean**2 / 2, b=self.chance, axis=1), dtype=float
        )

    def line(self, rare: float) -> Array:
        """Points that cover all but `rare` of both distributions."""
        most = int(np.argmax(np.cumsum(self.chance[::-1])[::-1] <= rare)) or len(self.mean)
        edge = -float(special.ndtri(rare / 2))
        return np.linspace(-edge, float(self.mean[:most][-1]) + edge, _POINTS)


def epsilon(census: Census, n: int, noise_multiplier: float, delta: float) -> float:
    """Return the lower bound above; arguments as `cost.epsilon`, delta > 1e-150."""
    loss.check_delta(delta)
    mixtures, full = _mixtures(census, n)
    if not mixtures and full == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    heaviest = max([full, *(float(mean.max()) for _, mean, _ in mixtures)])
    alone = float(gaussian.epsilon(full / noise_multiplier, delta))
    if not mixtures or heaviest <= _SMALLEST_MU * noise_multiplier:
        return alone
    once = max([full, *(float(mean[1]) for _, mean, _ in mixtures)])
    z = max(noise_multiplier, heaviest / _LARGEST_MU, once / _LARGEST_OF_ONE)
    parts = [(_Mixture(chance, mean / z), count) for chance, mean, count in mixtures]
    if full > 0:
        parts.append((_Mixture(np.array([0.0, 1.0]), np.array([0.0, full / z])), 1))
    return max(alone, _both_orders(parts, delta))


def _mixtures(census: Census, n: int) -> tuple[list[tuple[Array, Array, int]], float]:
    """(chance, j weight, count) of each sampled release, and the weight of all full ones together."""
    mixtures, full = [], 0.0
    for release, count in census:
        chance = _chances(release, n)
        if count == 0 or release.weight == 0 or chance is None:
            continue
        if len(chance) == 2 and chance[1] == 1:
            full += count * release.weight**2
        else:
            mixtures.append((chance, release.weight * np.arange(len(chance), dtype=np.float64), count))
    return mixtures, math.sqrt(full)


def _chances(release: Release, n: int) -> Array | None:
    """P(the record is j times in the batch), j = 0, 1, ...; None for a batch that the bound leaves out."""
    if release.drawn:
        return None
    match release.batch:
        case Full():
            return np.array([0.0, 1.0])
        case Subsample() as batch:
            q = min(1.0, batch.size(n) / n)
            return np.array([1 - q, q])
        case WithReplacement() as batch:
            chance = multiplicities(n, batch.size(n))[0] if n > 1 else np.array([0.0, 1.0])
            return chance[chance > 1e-40]
        case _:
            return None


def _both_orders(parts: Sequence[tuple[_Mixture, int]], delta: float) -> float:
    """Epsilon of P against Q or of Q against P, whichever is larger."""
    rare = _DROPPED * delta / sum(count for _, count in parts)
    lines = [part.line(rare) for part, _ in parts]
    losses = [part.loss(line) for (part, _), line in zip(parts, lines, strict=True)]
    step = min(_spread(line, at) for line, at in zip(lines, losses, strict=True)) / _CELLS
    step = max(step, max(float(at[-1] - at[0]) for at in losses) / _MOST_CELLS)
    cells = [_cells(part, line, at, step) for (part, _), line, at in zip(parts, lines, losses, strict=True)]
    found = []
    for sign in (1, -1):
        rounded = [_rounded_down(n, own, step, rare, sign) for (_, n), own in zip(parts, cells, strict=True)]
        shift = sum(part.count * down for part, down in rounded)
        found.append(loss.epsilon_below([part for part, _ in rounded], delta) - shift)
    return max(found)


def _spread(line: Array, at: Array) -> float:
    """The standard deviation of the loss under P, roughly."""
    weight = np.exp(at - line**2 / 2)
    weight /= weight.sum()
    return max(math.sqrt(float(weight @ (at - weight @ at) ** 2)), 1e-12)


def _cells(part: _Mixture, line: Array, at: Array, step: float) -> tuple[Array, Array, Array]:
    """Cells of the real line with losses near grid points: (grid point, P, Q) of each."""
    grid = np.arange(math.floor(at[0] / step), math.ceil(at[-1] / step) + 1)
    ends = np.concatenate([[-math.inf], np.interp((grid[1:] - 0.5) * step, at, line), [math.inf]])
    return grid, _masses(ends, part.mean, part.chance), _masses(ends, np.zeros(1), np.ones(1))


def _rounded_down(
    count: int, cells: tuple[Array, Array, Array], step: float, rare: float, sign: int
) -> tuple[loss.Losses, float]:
    """One release's losses on the grid, and the amount by which they must all be lowered still."""
    grid, p, q = cells
    mass = p if sign > 0 else q
    keep = (mass > rare / len(grid)) & (p > 0) & (q > 0)
    mass, true = mass[keep], sign * np.log(p[keep] / q[keep]) / step
    down = _common_shift(sign * grid[keep] - true, mass)
    index = np.floor(true + down).astype(int)
    reach = int(np.abs(index).max())
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.bincount(index + reach, weights=mass, minlength=2 * reach + 1))
    return loss.Losses(log_mass, step, 0.0, count), down * step


def _common_shift(excess: Array, mass: Array) -> float:
    """The common shift of all cells, in steps; the few that need a larger one are lowered a whole step."""
    order = np.argsort(excess)
    shift = np.maximum(excess[order], 0.0)
    return float(shift[np.argmin(shift + (1 - np.cumsum(mass[order])))])


def _masses(ends: Array, mean: Array, chance: Array) -> Array:
    """Probability of each cell under sum_j chance[j] N(mean[j], 1), from tails, which cancel less."""
    total = np.zeros(len(ends) - 1)
    for m, c in zip(mean, chance, strict=True):
        at = ends - m
        tail = special.ndtr(-np.abs(at))
        across = (at[:-1] < 0) & (at[1:] > 0)
        total += c * np.where(across, 1 - tail[:-1] - tail[1:], np.abs(np.diff(tail)))
    return total
