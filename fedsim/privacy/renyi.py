"""From Renyi divergence to (eps, delta), for noise that is Gaussian in Renyi divergence but not in tails.

If sum_y P(y)^alpha Q(y)^(1 - alpha) <= e^((alpha - 1) R) then P(A) <= e^eps Q(A) + delta with

    eps = R + (ln(1 / delta) - ln(alpha) + (alpha - 1) ln(1 - 1 / alpha)) / (alpha - 1),

for P of any total mass up to 1, since at x = P / Q (Canonne, Kamath and Steinke 2020, Proposition 12)

    (1 - e^eps / x)_+ <= x^(alpha - 1) e^(-(alpha - 1) eps) (1 - 1 / alpha)^(alpha - 1) / alpha.

So outcomes may be left out of P and their probability added to delta. Every real alpha > 1 is
sound; the best of a fine grid is taken.
"""

from __future__ import annotations

import math

import numpy as np

_ORDERS = 400
_WIDEST = 1e4  # how far the orders tried are from the guess, as a factor


def gaussian_epsilon(mu: float, delta: float, extra: float = 0.0) -> float:
    """Return eps >= 0 where the divergence of every order alpha is at most alpha mu^2 / 2 + extra.

    Args:
        mu: sensitivity over noise of all releases together, >= 0.
        delta: in (0, 1).
        extra: what the noise adds to the divergence of a Gaussian, >= 0.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
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
