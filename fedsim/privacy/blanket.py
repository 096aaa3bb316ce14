"""The privacy blanket of one Gaussian message that is shuffled among others.

N senders send y + N(0, s^2 I), |y| <= C, any dimension, in random order; c = C / s. One sender is replaced.

**Guarantee.** `BlanketPair` dominates the shuffled messages of one round up to a total variation that
`apart` states: they are (eps, profile(eps) + (1 + e^eps) apart)-DP for every eps >= 0, and rounds
compose adaptively (`fedsim.privacy.loss`), apart adding up. Proof (docs/shuffled-noise.md has it in full):

1. *Blanket* (Balle, Bell, Gascon and Nissim 2019, Section 5; Takagi and Liew 2026, arXiv 2601.19154). With
   omega = N(0, s^2 I), any other sender's message is within gamma h(ln 1/gamma; c) of one that is drawn from
   omega with probability gamma, whatever y is; h is the profile of `fedsim.privacy.gaussian`. The other
   messages are revealed. K ~ Bin(honest - 1, gamma) blanket messages and the target's remain, shuffled.
2. *Fewer hide less*: K below its quantile counts as infinite loss, above as that quantile; m = K + 1.
3. *The worst pair.* z -> T z + N(0, I - T T^t), |T| <= 1, keeps omega and moves N(a, I) to N(T a, I). Every
   pair of means |a|, |b| <= c comes in this way from an orthogonal one of norms sqrt(2) c, since the Gram
   matrix of the latter exceeds that of the former. Likelihoods of messages against omega are then
   V = exp(sqrt(2) c G - c^2), independent under the two, and with X, Y two independent sums of m such

       D(eps) = E (X - e^eps Y)_+ / m.

4. *Rounding.* (X - e^eps Y)_+ is convex in each V: what is moved to the two neighbouring points of a grid, in
   the mean where it was, can only add. Sums are taken by FFT modulo a window; what lies outside it is bounded
   by Chernoff and counted, and so is floating point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy import fft, special

from fedsim.privacy import gaussian
from fedsim.privacy.pair import Pair

Array = npt.NDArray[np.float64]

_CELLS = 20  # of the grid of V to its standard deviation
_ALL_CELLS = 2**18  # of sums, below which there is no window
_WINDOWS = (10.0, 15.0, 22.0, 33.0, 50.0)
_COARSE = 0.04  # standard deviations between the points of sums at which profiles are evaluated
_NEVER = 1e-16  # chance of a sum that is counted as infinite loss instead
_FLOAT = 1e-14  # of a transform, times the number of terms
_LOST = 1e-3  # share of rare rounds that truncation may cost
_AT_ONCE = 2**20  # products that are held in memory
_LARGEST_LOSS = 40.0
_LOSSES = 1000  # at which a profile is evaluated


def apart(distance: float, honest: int, share: float) -> float:
    """Total variation between all other senders' messages and those with blankets of this share, gamma."""
    return (honest - 1) * share * float(gaussian.profile(-math.log(share), distance))


def widest(distance: float, honest: int, most: float) -> float:
    """The largest share of a blanket that is at most `most` from the truth, to a thousandth."""
    low, high = 0.0, 1.0
    while high - low > 1e-3 * high and high > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if apart(distance, honest, middle) <= most else (low, middle)
    return max(low, 1e-12)


@dataclass(frozen=True)
class BlanketPair(Pair):
    """X / m against Y / m under omega^m (module docstring); symmetric, so that both orders are alike."""

    distance: float  # c > 0
    messages: int  # m >= 1
    rare: float  # infinite loss, beside what is counted for truncation and floating point

    @classmethod
    def of(cls, distance: float, honest: int, share: float, rare: float) -> BlanketPair:
        """Of `honest` senders, the target included, that keep their noise to themselves: with chance `share`,
        gamma, a message is drawn without regard to its sender. So many blanket messages there are but for
        `rare`, and the target's; c = C / s is the distance of any mean from 0.
        """
        from scipy import stats  # slow to import

        k = int(stats.binom.ppf(rare, honest - 1, share))
        while k > 0 and stats.binom.cdf(k - 1, honest - 1, share) > rare:
            k -= 1
        return cls(distance, k + 1, rare)

    def profile(self, epsilon: Array) -> Array:
        """An upper bound of D(eps) for eps >= 0, shape as epsilon: convex in e^eps, so interpolated there."""
        at, finite = self._table
        found = np.interp(np.exp(np.minimum(epsilon, at[-1])), np.exp(at), finite)
        capped: Array = np.minimum(1.0, found + self.infinite)
        return capped

    def reach(self, tail: float) -> float:
        """A loss beyond which the finite part is at most `tail`, as far as floating point can tell."""
        at, finite = self._table
        return float(at[np.argmax(finite <= max(tail, finite[-1]))]) or float(at[1])

    @property
    def infinite(self) -> float:
        """The probability that is counted as infinite loss."""
        return self.rare + self._sums.lost

    @cached_property
    def _sums(self) -> _Sums:
        return _sums(math.sqrt(2) * self.distance, self.messages, _LOST * self.rare)

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Privacy losses from 0 to the largest possible, and D at them."""
        last = 1e-3
        while self._finite(np.array([last]))[0] > _FLOAT * self.messages and last < _LARGEST_LOSS:
            last *= 1.2
        at = np.linspace(0.0, last, _LOSSES)
        return at, np.minimum.accumulate(self._finite(at))

    def _finite(self, epsilon: Array) -> Array:
        """sum_y P(Y = y) E (X - e^eps y)_+ / m."""
        sums, total, grown = self._sums, np.zeros_like(epsilon), np.exp(epsilon)
        possible = np.flatnonzero(sums.chance)
        for some in np.array_split(possible, math.ceil(len(possible) * grown.size / _AT_ONCE)):
            total += sums.chance[some] @ sums.call(np.outer(sums.points[some], grown))
        return total / self.messages


@dataclass(frozen=True)
class _Sums:
    """A sum of m likelihoods on a coarse grid that only adds: P(point), E (X - point)_+, and what is lost."""

    points: Array
    chance: Array
    above: Array
    mean: float
    lost: float

    def call(self, at: Array) -> Array:
        """E (X - at)_+, interpolated between points: it is convex."""
        inside = np.interp(at, self.points, self.above, right=0.0)
        return np.where(at < self.points[0], self.mean - at, inside)


@lru_cache(maxsize=64)
def _sums(spread: float, count: int, few: float) -> _Sums:
    """The sum of `count` V of log-deviation `spread`, with about `few` lost for truncation on either side."""
    step, mass, cut = _likelihood(spread, few)
    values = step * np.arange(len(mass), dtype=np.float64)
    mean = count * float(mass @ values)
    first, last, beyond = _window(values, mass, count, few)
    bottom = math.floor(first / step)
    size = fft.next_fast_len(math.ceil(last / step) - bottom + 1, real=True)
    # the sum's law on the cells bottom, ..., bottom + size - 1; others are added to theirs
    wrapped = np.bincount(np.arange(len(mass)) % size, weights=mass, minlength=size)
    power: Array = fft.irfft(fft.rfft(wrapped) ** count, size)
    cells = np.maximum(0.0, np.roll(power, -(bottom % size)))
    points = step * (bottom + np.arange(size, dtype=np.float64))
    return _coarse(points, cells, mean, cut + beyond + _FLOAT * count)


def _window(values: Array, mass: Array, count: int, few: float) -> tuple[float, float, float]:
    """A range of sums with at most `few` outside, if any has, and P(Y below it) + E(X; X above it) / m."""
    if count * len(values) <= _ALL_CELLS:
        return 0.0, count * float(values[-1]), 0.0
    mean = float(mass @ values)
    deviation = math.sqrt(count * float(mass @ (values - mean) ** 2))
    for half in _WINDOWS:
        below, above = max(0.0, count * mean - half * deviation), count * mean + half * deviation
        beyond = _beyond(values, mass, count, below, above)
        if beyond <= few:
            break
    return below, above, beyond


def _likelihood(spread: float, few: float) -> tuple[float, Array, float]:
    """V = exp(b G - b^2 / 2) spread in the mean over a grid from 0: (step, mass, E (V - last point)_+).

    The mass on a point is the second difference of E (V - t)_+, which is the linear interpolation of it.
    """
    step = math.sqrt(math.expm1(spread**2)) / _CELLS
    last = math.ceil(math.exp(spread * (spread / 2 - float(special.ndtri(few)))) / step)
    t = step * np.arange(last + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        at = -np.log(t) / spread
    call = special.ndtr(spread / 2 + at) - t * special.ndtr(at - spread / 2)
    cut = float(call[-1])
    call = np.append(call - cut, 0.0)
    mass = np.maximum(0.0, np.concatenate([[0.0], np.diff(call, n=2) / step]))
    mass[0] = max(0.0, 1.0 - mass.sum())
    return step, mass, cut


def _beyond(values: Array, mass: Array, count: int, bottom: float, top: float) -> float:
    """P(Y < bottom) + E(X; X > top) / m, by Chernoff, for sums of `count`."""
    mean = float(mass @ values)
    variance = float(mass @ (values - mean) ** 2)

    def log_moment(s: float) -> float:
        return math.log(float(mass @ np.exp(s * (values - mean))))

    orders = np.geomspace(0.03, 1.5, 14)
    low = (count * mean - bottom) / (count * variance)
    below = min(count * log_moment(-s) - s * (count * mean - bottom) for s in low * orders)
    high = (top - count * mean) / (count * variance)
    far = float(values[-1]) - mean
    above = min(
        (count - 1) * log_moment(s)
        + math.log(float((mass * values) @ np.exp(s * (values - mean))))
        - s * (top - count * mean)
        for s in np.minimum(high * orders, 600 / far)
    )
    return (math.exp(min(0.0, below)) if bottom > 0 else 0.0) + math.exp(min(0.0, above))


def _coarse(points: Array, cells: Array, mean: float, lost: float) -> _Sums:
    """The same on fewer points: E (X - t)_+ at those, and Y spread in the mean between them."""
    total = cells.sum()
    deviation = math.sqrt(float(cells @ (points - cells @ points / total) ** 2) / total)
    stride = max(1, math.floor(_COARSE * deviation / (points[1] - points[0])))
    upper = np.append(np.cumsum(cells[:0:-1])[::-1], 0.0)  # P(X > point)
    above = np.append(np.cumsum(upper[-2::-1])[::-1], 0.0) * (points[1] - points[0])
    chosen = np.unique(np.append(np.arange(0, len(points), stride), len(points) - 1))
    few = points[chosen]
    chance = np.zeros(len(few))
    left = np.minimum(np.searchsorted(few, points, side="right") - 1, len(few) - 2)
    share = (points - few[left]) / (few[left + 1] - few[left])
    np.add.at(chance, left, cells * (1 - share))
    np.add.at(chance, left + 1, cells * share)
    never = chance < _NEVER
    lost += float(chance[never].sum())
    return _Sums(few, np.where(never, 0.0, chance), above[chosen], mean, lost)
