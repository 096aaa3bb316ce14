"""What an attack on one shuffled round attains: a lower bound for `fedsim.privacy.blanket`."""

import math

import numpy as np
from scipy import fft, special

_HALF = 12.0  # half of the window, in standard deviations of a sum
_FINE_CELLS = 500  # of the grid of V to its standard deviation
_CUT = 8.0  # deviations at which V is cut


def attained(distance: float, silos: int, epsilon: float) -> float:
    """A delta below which no shuffled round is (epsilon, delta)-DP: all others at -C, the target at +C or -C.

    Against N(-C, s^2) the multiset has the likelihood sum_i V_i / N, V = exp(2 c G - 2 c^2), if the target is
    at +C, and 1 if not. V is moved down to a grid, which can only lower E (sum_i V_i / N - e^eps)_+.

    Args:
        distance: c = C / s.
        silos: N, the target included.
        epsilon: >= 0.
    """
    spread = 2 * distance
    deviation = math.sqrt(math.expm1(spread**2))
    step = deviation / _FINE_CELLS
    ends = step * np.arange(math.ceil(math.exp(_CUT * spread) / step) + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        below = special.ndtr(np.log(ends) / spread + spread / 2)
    mass = np.diff(below)
    half = math.ceil(_HALF * deviation * math.sqrt(silos) / step)
    size = fft.next_fast_len(2 * half + 1, real=True)
    bottom = math.floor(silos / step) - half
    wrapped = np.bincount(np.arange(len(mass)) % size, weights=mass, minlength=size)
    powered = fft.irfft(fft.rfft(wrapped) ** silos, size)
    cells = np.maximum(0.0, np.roll(powered, -(bottom % size)))
    sums = step * (bottom + np.arange(size)) / silos
    return float(cells @ np.maximum(0.0, sums - math.exp(epsilon)))
