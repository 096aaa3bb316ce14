"""Compose dominating pairs: privacy-loss distributions on a grid, rounded so that delta only grows.

`epsilon` returns a number at which the composed pair is (eps, delta)-DP. Four roundings are made, each
towards more loss:

1. *Connect the dots.* Each profile is replaced by its piecewise linear interpolation in e^eps between
   the grid points i h. A profile is convex in e^eps, so the interpolation lies above it; it is the
   profile of a discrete pair (Doroshenko et al., arXiv 2207.04380), and a pair with a larger profile
   stays larger under composition. Losses beyond the grid count as infinite.
2. *The window.* The composed distribution is computed modulo N h. What wraps round is added to a cell,
   never taken from one.
3. *Above the window* lies at most exp(K(s) - s top) of mass for any s (Chernoff, K the cumulant
   generating function of the discrete losses, computed from them). It is counted as infinite loss.
4. *Floating point.* Cells below zero are raised to zero, and 1e-9 of delta is kept back.

The fast Fourier transform has absolute errors near 1e-16, which would drown a small delta. So the
distribution is tilted first, p_i e^(s l_i - K(s)), with the s at which Chernoff's bound for delta is
smallest: the cells that matter are then the large ones, and delta is relatively accurate however small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy import fft

from fedsim.common.errors import InputError
from fedsim.privacy.pair import Pair

Array = npt.NDArray[np.float64]

_SMALLEST_DELTA = 1e-150  # squares and shares of it are still numbers
_NEGLIGIBLE = 1e-6  # truncations may cost this share of delta
_ROUNDING = 1e-9
_DEGENERATE = 1e-20  # variance of losses that stand in one cell, which cannot be tilted
_ONE_CELL = 0.01  # least tilted variance, in squared steps
_WIDTH = 6.0  # of the first window, in tilted standard deviations to either side
_MAX_CELLS = 2**20
_HALVINGS = 60


P = TypeVar("P", bound=Pair)


@dataclass(frozen=True, slots=True)
class Losses:
    """`count` copies of a discrete loss: mass e^log_mass[i] at (i - reach) step, the rest at infinity."""

    log_mass: Array
    step: float
    infinite: float
    count: int

    @property
    def reach(self) -> int:
        """The largest loss, in steps."""
        return len(self.log_mass) // 2

    def values(self) -> Array:
        """The losses themselves, ascending; shape as log_mass."""
        return _grid(self.step, -self.reach, self.reach)


def _grid(step: float, first: int, last: int) -> Array:
    return np.arange(first, last + 1, dtype=np.float64) * step


def _discretise(pair: Pair, step: float, reach: int, count: int) -> Losses:
    """Connect the dots of `pair` at the losses -reach step, ..., reach step.

    With d_i the profile at i step, the mass at loss i step >= 0 is
    (e^step (d_{i-1} - d_i) - (d_i - d_{i+1})) / (e^step - 1), the last difference being 0 at the end.
    The mass at -l is e^(-l) of what the pair in the other order has at l, which is what the profile's
    continuation to eps < 0 gives, without its cancellation.
    """
    loss = _grid(step, 0, reach)
    up, infinite = _masses(pair, loss, step)
    down = up if pair.reverse is pair else _masses(pair.reverse, loss, step)[0]
    down = down * np.exp(-loss[1:])
    # All mass that is neither at a positive nor at a negative nor at infinite loss has loss 0.
    centre = max(0.0, 1.0 - float(infinite + up.sum() + down.sum()))
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.concatenate([down[::-1], [centre], up]))
    return Losses(log_mass, step, infinite, count)


def _masses(pair: Pair, loss: Array, step: float) -> tuple[Array, float]:
    """The masses at the positive ones of the losses 0, step, ..., and at infinity."""
    # A profile falls with eps; floating point must not make it rise, or masses would be negative.
    delta = np.minimum.accumulate(np.clip(pair.profile(loss), 0.0, 1.0))
    drop = np.append(delta[:-1] - delta[1:], 0.0)
    up = np.maximum(0.0, (math.exp(step) * drop[:-1] - drop[1:]) / math.expm1(step))
    return up, float(delta[-1])


def _cumulants(parts: Sequence[Losses], s: float) -> tuple[float, float, float]:
    """K(s) of the composed finite losses, with its first two derivatives: tilted mean and variance."""
    total = np.zeros(3)
    for part in parts:
        loss = part.values()
        exponent = part.log_mass + s * loss  # log-sum-exp: masses may be as small as e^-700
        shift = exponent.max()
        weight = np.exp(exponent - shift)
        norm = weight.sum()
        mean = weight @ loss / norm
        total += part.count * np.array([math.log(norm) + shift, mean, weight @ (loss - mean) ** 2 / norm])
    return float(total[0]), float(total[1]), float(total[2])


@dataclass(frozen=True, slots=True)
class _Tilt:
    """The order s with K(s), the tilted mean and variance, and the epsilon of Chernoff's bound at s."""

    s: float
    value: float
    mean: float
    variance: float
    epsilon: float


def _best_tilt(parts: Sequence[Losses], delta: float, start: float | None, ends: bool = False) -> _Tilt:
    """Minimise Chernoff's eps (K(s) + ln 1/delta) / s: solve s K' - K = ln 1/delta, which grows with s.

    Newton in a bracket. Any s > 0 is sound; this one is accurate. Losses that end (`ends`) need large s, and
    1 - e^(eps - l) is far below 1 there, at most e^(s (l - eps)) / (1 + s): ln(1 + s) less is solved for.
    Where more than delta lies in their last cell there is no such s: it ends with the variance of a cell.
    """
    least = _ONE_CELL * min(part.step for part in parts) ** 2
    # For a Gaussian of variance v, s K' - K = s^2 v / 2.
    s = start or math.sqrt(2 * max(1.0, -math.log(delta)) / _cumulants(parts, 0.0)[2])
    low, high = 0.0, math.inf
    for _ in range(40):
        value, mean, variance = _cumulants(parts, s)
        target = max(1.0, -math.log(delta) - ends * math.log1p(s))
        excess = s * mean - value - target
        low, high = (low, s) if excess > 0 else (s, high)
        step = excess / (s * max(variance, 1e-300))  # d/ds (s K' - K) = s K''
        if abs(excess) < 0.02 * target or (excess < 0 and variance < least):
            break
        # Newton's step, damped to a factor 4; where it leaves the bracket, bisection in ln s.
        proposal = min(max(s - step, s / 4), 4 * s)
        s = proposal if low < proposal < high else math.sqrt(max(low, s / 4) * min(high, 4 * s))
    else:
        value, mean, variance = _cumulants(parts, s)
    return _Tilt(s, value, mean, max(variance, least), (value + target) / s)


def _wanted_step(tilt: _Tilt, copies: int, widest: float) -> float:
    """Choose the grid so that connecting the dots adds about 1e-4 to epsilon (relative below 1, above 10).

    Splitting a loss between its two grid points multiplies E e^(s L) by 1 + (s^2 + s) x (h - x) / 2, on
    average 1 + (s^2 + s) h^2 / 12; the Chernoff eps K(s)/s grows by copies (s + 1) h^2 / 12.
    """
    tolerance = 1e-4 * min(1.0, tilt.epsilon) * max(1.0, tilt.epsilon / 10)
    affordable = max(widest, 12 * math.sqrt(tilt.variance)) / _MAX_CELLS
    return max(math.sqrt(12 * tolerance / (copies * (tilt.s + 1))), affordable)


def _refine(pairs: Sequence[tuple[Pair, int]], delta: float) -> tuple[list[Losses], _Tilt]:
    """Discretise all pairs on one grid, whose step suits the tilt."""
    copies = sum(count for _, count in pairs)
    reaches = [pair.reach(_NEGLIGIBLE * delta / copies) for pair, _ in pairs]
    steps, fine = [reach / 64 for reach in reaches], False
    start, ends = None, all(pair.largest < math.inf for pair, _ in pairs)
    while True:
        parts = [
            _discretise(pair, step, max(1, math.ceil(reach / step)), count)
            for (pair, count), reach, step in zip(pairs, reaches, steps, strict=True)
        ]
        tilt = _best_tilt(parts, delta, start, ends)
        wanted = _wanted_step(tilt, copies, max(reaches))
        if fine and steps[0] <= 1.25 * wanted:
            return parts, tilt
        start = tilt.s
        # The tilt of a coarse grid asks for too coarse a step: at least halve it each time.
        steps, fine = [min(wanted, 0.5 * min(steps)) if fine else wanted] * len(pairs), True


def _window(parts: Sequence[Losses], tilt: _Tilt, delta: float) -> tuple[range, float]:
    """Cells of the composed grid, and the logarithm of what mass lies above them at most: the tilted mean and
    as many tilted standard deviations as leave out nothing that matters.
    """
    step, furthest = parts[0].step, sum(part.count * part.reach for part in parts)
    half = min(_WIDTH * math.sqrt(tilt.variance), _MAX_CELLS * step) + step
    while True:
        bottom, top = math.floor((tilt.mean - half) / step), math.ceil((tilt.mean + half) / step)
        size = fft.next_fast_len(min(top - bottom, 2 * furthest) + 1, real=True)
        if size > 2 * furthest:
            return range(-furthest, size - furthest), -math.inf
        log_above = _log_beyond(parts, tilt, step * (bottom + size - 1))
        log_below = _log_beyond(parts, tilt, step * bottom) - tilt.value + tilt.s * step * bottom
        enough = max(log_above - math.log(delta), log_below) < math.log(_NEGLIGIBLE)
        if enough or size > _MAX_CELLS:
            return range(bottom, bottom + size), log_above
        half *= 1.5


def _log_beyond(parts: Sequence[Losses], tilt: _Tilt, bound: float) -> float:
    """ln of Chernoff's bound on the mass beyond `bound`, on the side away from the tilted mean.

    P(L > b) <= exp(K(r) - r b) for every r >= 0, and likewise below for r <= s in tilted mass; the orders
    tried are that of the tilt and two towards the bound, of which the last is best for a Gaussian.
    """
    orders = [tilt.s + share * (bound - tilt.mean) / tilt.variance for share in (0.0, 0.3, 1.0)]
    return min(_cumulants(parts, r)[0] - r * bound for r in orders)


def _compose(parts: Sequence[Losses], s: float, window: range) -> Array:
    """Tilted masses of the composed losses, cell by cell of the window; shape (len(window),)."""
    size = len(window)
    spectrum = np.ones(size // 2 + 1, complex)
    for part in parts:
        value = _cumulants([part], s)[0] / part.count  # K(s) of one copy: its tilted mass sums to 1
        tilted = np.exp(part.log_mass + s * part.values() - value)
        cell = np.arange(-part.reach, part.reach + 1) % size
        wrapped = np.bincount(cell, weights=tilted, minlength=size)
        # Losses of independent releases add: convolution, `count` times, is a power of the transform.
        spectrum *= fft.rfft(wrapped) ** part.count
    # Cell i holds the losses that are i modulo the window's size; the window begins at `bottom`.
    cells: Array = fft.irfft(spectrum, size)
    return np.maximum(0.0, np.roll(cells, -window.start))


def _invert(loss: Array, log_weight: Array, tilted: Array, infinite: float, reference: float) -> float:
    """Return the smallest eps with infinite + sum_{l > eps} w (1 - e^(eps - l)) <= 1, w in units of delta.

    Between two cells this is U - e^eps V, which is solved; U and V are sums from the top. `reference`
    keeps the exponentials in range: any value is right, one near the answer is accurate.
    """
    if infinite >= 1:
        return math.inf
    weight = tilted * np.exp(np.minimum(log_weight, 300.0))
    # upper[j] and lower[j] sum over the cells above j; lower may round down, which rounds eps up.
    upper = _sums_above(weight) + infinite
    lower = _sums_above(weight * np.exp(np.minimum(reference - loss, 300.0)))
    enough = upper - np.exp(np.minimum(loss - reference, 300.0)) * lower <= 1
    first = int(np.argmax(enough))
    if first == 0 or lower[first - 1] <= 0:
        return float(loss[first])
    return min(float(loss[first]), reference + math.log((upper[first - 1] - 1) / lower[first - 1]))


def _sums_above(values: Array) -> Array:
    return np.append(np.cumsum(values[:0:-1])[::-1], 0.0)


def epsilon(pairs: Sequence[tuple[Pair, int]], delta: float) -> float:
    """Return an eps >= 0 at which `pairs`, each composed its number of times, is (eps, delta)-DP.

    It is an upper bound of the composed pairs' epsilon (module docstring), by about 1e-4; exact for one pair.
    Where some pairs are not alike in either order, all are composed in one and in the other, and the larger
    one counts. There is at least one pair, equal ones in one entry. InputError: delta is not in (1e-150, 1).
    """
    check_delta(delta)
    delta *= 1 - _ROUNDING
    found, apart = 0.0, sum(count * float(pair.profile(np.zeros(1))[0]) for pair, count in pairs)
    if not math.isfinite(apart):
        raise ArithmeticError(f"the profiles of {pairs} add up to {apart}")
    for each in orders(pairs) if apart > delta else ():
        if found < sum(count * pair.largest for pair, count in each):
            found = max(found, _epsilon(each, delta))
    return found


def orders(pairs: Sequence[tuple[P, int]]) -> list[Sequence[tuple[P, int]]]:
    """The pairs, and all of them in the other order if any is another then."""
    other = [(pair.reverse, count) for pair, count in pairs]
    return [pairs] if other == list(pairs) else [pairs, other]


def _epsilon(pairs: Sequence[tuple[Pair, int]], delta: float) -> float:
    if len(pairs) == 1 and pairs[0][1] == 1:
        return _alone(pairs[0][0], delta)
    parts, tilt = _refine(pairs, delta)
    window, log_above = _window(parts, tilt, delta)
    infinite = sum(part.count * part.infinite for part in parts) / delta
    infinite += math.exp(min(600.0, log_above - math.log(delta)))
    return max(0.0, _spent(parts, tilt, window, delta, infinite))


def _alone(pair: Pair, delta: float) -> float:
    """The least epsilon with a profile of at most delta, by halving; infinity if there is none."""
    low, high = 0.0, pair.reach(delta / 2)
    if pair.profile(np.array([high]))[0] > delta:
        return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if pair.profile(np.array([middle]))[0] <= delta else (middle, high)
    return high


def epsilon_below(parts: Sequence[Losses], delta: float) -> float:
    """Return a lower bound (of either sign) of the eps at which composed losses have hockey-stick `delta`.

    The parts, losses of one of the two orders of each pair, stand on one grid and are rounded down by the
    caller; nothing is added for what lies beyond the window, and what the window and floating point may add
    (under 1e-4 of delta) is given back. InputError for a delta outside (1e-150, 1).
    """
    check_delta(delta)
    delta *= 1 + 100 * _NEGLIGIBLE
    if _cumulants(parts, 0.0)[2] < _DEGENERATE:
        return -math.inf
    tilt = _best_tilt(parts, delta, None)
    if tilt.variance <= _ONE_CELL * parts[0].step ** 2:
        return -math.inf
    return _spent(parts, tilt, _window(parts, tilt, delta)[0], delta, 0.0)


def check_delta(delta: float) -> None:
    """Raise an InputError unless losses can be composed to `delta` in floating point."""
    if not _SMALLEST_DELTA < delta < 1:
        raise InputError("delta", delta, f"in ({_SMALLEST_DELTA}, 1), where sampled releases can be composed")


def _spent(parts: Sequence[Losses], tilt: _Tilt, window: range, delta: float, infinite: float) -> float:
    tilted = _compose(parts, tilt.s, window)
    loss = _grid(parts[0].step, window.start, window.stop - 1)
    return _invert(loss, tilt.value - tilt.s * loss - math.log(delta), tilted, infinite, tilt.epsilon)
