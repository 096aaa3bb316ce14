"""The Gaussian mechanism, exactly: no composition, no grid over privacy losses.

One release with sensitivity over noise mu has the hockey-stick profile

    h(eps; mu) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu),

and it is (eps, delta)-DP if and only if h(eps; mu) <= delta. Releases with mu_1, mu_2, ... compose to
mu^2 = sum mu_i^2, adaptively chosen or not. Everything here takes and returns NumPy arrays of any
broadcastable shapes, so that a thousand silos cost one call.

Noise that is Gaussian in Renyi divergence but not in its tails is priced by that (`renyi_epsilon`): if
sum_y P(y)^alpha Q(y)^(1 - alpha) <= e^((alpha - 1) R) then P(A) <= e^eps Q(A) + delta with

    eps = R + (ln(1 / delta) - ln(alpha) + (alpha - 1) ln(1 - 1 / alpha)) / (alpha - 1),

for P of any total mass up to 1, since at x = P / Q (Canonne, Kamath and Steinke 2020, Proposition 12)

    (1 - e^eps / x)_+ <= x^(alpha - 1) e^(-(alpha - 1) eps) (1 - 1 / alpha)^(alpha - 1) / alpha.

So outcomes may be left out of P and their probability added to delta. Every real alpha > 1 is
sound; the best of a fine grid is taken.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]

_HALVINGS = 64  # a float64 has 53 bits: the last halvings move nothing
_TINY, _HUGE = 1e-100, 1e100  # squares of what lies between are finite


def profile(epsilon: npt.ArrayLike, mu: npt.ArrayLike) -> Array:
    """h(eps; mu), the smallest delta at which one Gaussian release of `mu` is (eps, delta)-DP.

    Both tails are taken in logarithms and the difference by `expm1`, which keeps relative accuracy
    where Phi itself underflows. Valid for either sign of eps, and mu = sensitivity / noise standard
    deviation >= 0; 0 gives max(0, 1 - e^eps).

    >>> round(float(profile(epsilon=1.0, mu=1.0)), 6)
    0.126937
    """
    eps, mu = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(mu, float))
    silent = mu <= 0
    safe = np.maximum(mu, _TINY)  # the profile grows with mu, so this rounds up
    upper = special.log_ndtr(safe / 2 - eps / safe)
    lower = eps + special.log_ndtr(-safe / 2 - eps / safe)
    gap = np.minimum(lower - upper, 0.0)
    delta = np.exp(upper) * -np.expm1(gap)
    result: Array = np.where(silent, -np.expm1(np.minimum(eps, 0.0)), delta)
    return result


def epsilon(mu: npt.ArrayLike, delta: npt.ArrayLike) -> Array:
    """Return the smallest eps >= 0 with h(eps; mu) <= delta, rounded up to where the inequality holds.

    For mu = sensitivity / noise standard deviation >= 0 and delta in (0, 1); infinite mu costs infinity.

    >>> epsilon([0.1, 1.0, 10.0], delta=1e-5).round(4).tolist()
    [0.3407, 4.3772, 91.8173]
    """
    mu, delta = np.broadcast_arrays(np.asarray(mu, float), _checked(delta))
    unbounded = mu > _HUGE
    mu = np.where(unbounded, 1.0, mu)
    # h <= Phi(mu/2 - eps/mu), so that this eps is always enough.
    high = np.maximum(0.0, mu * (mu / 2 - special.ndtri(delta)))
    low = np.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = profile(middle, mu) <= delta
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(unbounded, np.inf, np.where(profile(0.0, mu) <= delta, 0.0, high))


def mu(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Array:
    """Return the largest mu with h(eps; mu) <= delta, rounded down to where the inequality holds.

    For eps >= 0, where infinity affords any mu, and delta in (0, 1).

    >>> most = mu(epsilon=1.0, delta=1e-5)
    >>> bool(profile(1.0, most) <= 1e-5 < profile(1.0, most * (1 + 1e-9)))
    True
    """
    eps, delta = np.broadcast_arrays(np.asarray(epsilon, float), _checked(delta))
    unbounded = np.isinf(eps)
    eps = np.where(unbounded, 1.0, eps)
    low = np.zeros_like(eps)
    high = np.sqrt(2 * eps) + np.abs(special.ndtri(delta)) + 1.0
    while np.any(spent := profile(eps, high) <= delta):
        high = np.where(spent, 2 * high, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        affordable = profile(eps, middle) <= delta
        low, high = np.where(affordable, middle, low), np.where(affordable, high, middle)
    return np.where(unbounded, np.inf, low)


def _checked(delta: npt.ArrayLike) -> Array:
    values = np.asarray(delta, float)
    if not np.all((values > 0) & (values < 1)):
        raise ValueError(f"delta: {values} is not in (0, 1)")
    return values


_ORDERS = 400
_WIDEST = 1e4  # how far the orders tried are from the guess, as a factor


def renyi_epsilon(mu: float, delta: float, extra: float = 0.0) -> float:
    """Return eps >= 0 where the divergence of every order alpha is at most alpha mu^2 / 2 + extra.

    Here mu >= 0 is sensitivity over noise of all releases together, delta is in (0, 1), and extra >= 0 is
    what the noise adds to the divergence of a Gaussian.

    >>> round(renyi_epsilon(1.0, 1e-5), 3)
    4.729
    """
    if not mu < math.inf or not extra < math.inf:
        return math.inf
    if mu == extra == 0:
        return 0.0
    guess = math.sqrt(2 * math.log(1 / delta)) / max(mu, 1e-9)
    less = guess * np.geomspace(1 / _WIDEST, _WIDEST, _ORDERS)  # alpha - 1
    order = 1 + less
    converted = -math.log(delta) - np.log(order) + less * np.log(less / order)
    return max(0.0, float(np.min(order * mu**2 / 2 + extra + converted / less)))
