"""The thesis's vector sum: fixed-point numbers and fair bits, shuffled (Algorithms 16 and 17, corrected).

A silo encodes each coordinate of w_i S_i on g steps to the clip, rounded at random once, and adds b fair
bits. As messages that is 2 G_i + b bits a coordinate, with G_i = ceil(g w_i K_i), of which round(w_i S_i /
step) + G_i + Bin(b, 1/2) are ones. The multiset of all silos' bits is the number of ones; a contribution here
is a silo's ones less the public G_i + b / 2, so that nothing is left to re-centre. (The thesis re-centres by
L where a sum of N needs N L, and encodes [0, L] where shifted values are in [0, 2 L].)

**Guarantee.** What the server sees of silo i is (eps, delta)-DP under replacing one of its records, as long
as every sum holds at least gamma M_min silos (silo i among them) that add their bits and keep them to
themselves. In steps, a replaced record moves the rounded sum by at most D = 2 g r + sqrt(d) in norm and less
than 2 g r + 1 a coordinate, whichever way both were rounded. Over all coordinates and releases the
divergence of order alpha is at most alpha mu^2 / 2 + sum e sqrt(d) D with mu of `fedsim.privacy.cost`, by the
lemma of `excess`; what lies outside its windows is a hundredth of delta. Sampled batches are
priced as if they held the record (divergence is quasi-convex): no amplification.

If shuffler and server collude, silo i has its own b bits alone: z_i / sqrt(H), H = ceil(gamma M_min), next to
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedsim.common.errors import InputError, Refused
from fedsim.privacy import cost, gaussian, grid
from fedsim.privacy.calibrate import Budget, over_budget
from fedsim.privacy.mechanism import Noise
from fedsim.privacy.pairs import WithReplacementPair
from fedsim.privacy.sum_mechanism import SharedNoise, SumMechanism
from fedsim.protocol.plan import Census

if TYPE_CHECKING:
    from torch import Tensor

_OUTSIDE = 1e-2  # share of delta for what lies outside the windows
_CLOSE = 1e-4  # of a multiplier that is searched for
_MOST_BITS = 2.0**40  # of one silo and coordinate
_LARGEST_SUM = 2.0**51


def excess(bits: float, reach: float, tail: float) -> float:
    """e of the lemma below, where W leaves out at most `tail` in (0, 1); infinity if there are too few bits.

    Falls as bits, N > 0, rise; `reach` is T, the largest shift. Binomial noise is the centred sum of N fair
    bits, N even (docs/shuffled-noise.md has the proof).

    **Lemma.** Let p be the distribution of X = Bin(N, 1/2) - N/2, t an integer with |t| <= T, and
    W = {|x| <= w} with y = (2 (w + T) + 1) / (N + 1) < 1. For every alpha > 1

        sum over W of p(x)^alpha p(x - t)^(1 - alpha) <= exp((alpha - 1) (2 alpha t^2 / (N + 1) + e |t|)),
        e = (2/3) y^3 / (1 - y^2).

    That is a Gaussian of variance (N + 1) / 4 and a little more; outside W there is at most
    2 exp(-2 w^2 / N).
    """
    window = math.sqrt(bits * math.log(2 / tail) / 2)
    y = (2 * (window + reach) + 1) / (bits + 1)
    return 2 / 3 * y**3 / (1 - y * y) if y < 1 else math.inf


def advised_steps(dimension: int) -> int:
    """Steps to the clip at which rounding adds at most a sixteenth to the sensitivity.

    >>> advised_steps(50), advised_steps(1000)
    (128, 253)
    """
    return max(128, math.ceil(8 * math.sqrt(dimension)))


@dataclass(frozen=True)
class ShuffledBinomial(SharedNoise, SumMechanism):
    """Clip, round to steps at random, add fair bits; a shuffler hides whose bits they are (thesis's P_vec).

    Silos whose terms have a smaller share r of the clip than `least` are priced as if they had that one.
    """

    dimension: int  # d, of the answers
    pool_min: int  # M_min, how many silos a sum has at least
    honest_fraction: float  # gamma in (0, 1]: share of M_min that adds its bits and keeps them to itself
    steps: int  # g, to the clip; more cost bits, fewer cost accuracy (`advised_steps`)
    least: float = 2.0**-4
    name: ClassVar[str] = "shuffled_binomial"
    fields: ClassVar[dict[str, bool]] = {"min_silos": False, "honest_fraction": True, "steps": False}
    gradients_alone: ClassVar[bool] = True
    squares_add: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "for each {silo}, everything that the server sees of it, which are shuffled bits of all silos, is "
        "(epsilon_guaranteed, delta)-DP with respect to {change}, as long as shuffler "
        "and server do not collude and honest_fraction of min_silos silos in every sum add their bits"
    )
    guarantee_colluding: ClassVar[str] = (
        "if shuffler and server collude, each silo has its own few bits alone: (epsilon_colluding, "
        "delta)-DP, next to nothing"
    )
    notices: ClassVar[tuple[str, ...]] = (
        "Binomial noise reproduces the thesis: summed_gaussian gives the same guarantee with less noise",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.steps <= grid.STEPS:
            raise InputError("steps", self.steps, f"from 1 to {grid.STEPS}")

    def sensitivity(self, r: float = 1.0) -> float:
        """D = 2 g r + sqrt(d) of a silo whose terms have norm <= r clip, in steps; g r raised for float64."""
        return 2 * self.steps * r * (1 + grid.ROUNDING) + math.sqrt(self.dimension)

    def exactly(self, most: int) -> tuple[SumMechanism, tuple[str, ...]]:
        """See `SumMechanism`: integers, of fair bits."""
        return self, ()

    def surplus(self, step: float, silos: int) -> float:
        """See `SumMechanism`: a silo's bits are even."""
        halves = 2 / (step**2 * silos)
        return math.ceil(halves) / halves

    def step(self, clip: float) -> float:
        """The value of one unit of a contribution, in the unit of the sums."""
        return clip / self.steps

    def reach(self, r: float) -> float:
        """See `SumMechanism`."""
        return self.sensitivity(r) / self.steps

    def colluding_epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """`epsilons` where shuffler and server collude; cases as there."""
        return self.epsilons(census, [(n, self.colluding(z), delta) for n, z, delta in cases])

    def bits(self, noise_ratio: float, z: float) -> int:
        """b, even: how many fair bits a silo adds to a coordinate, at most 2^40 (Refused); ceil(gamma M_min)
        silos have 4 sigma^2.
        """
        wanted = 4 * (noise_ratio * z * self.sensitivity()) ** 2 / self.sharers
        if not wanted <= _MOST_BITS:
            raise Refused(f"{wanted:.6g} bits a silo and coordinate, more than {_MOST_BITS:g}: lower steps")
        return 2 * math.ceil(wanted / 2)

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Uniform numbers in [0, 1)."""
        for stream, row in zip(streams, rows, strict=True):
            stream.random(out=row)

    def perturb(
        self, total: Tensor, noise_ratio: float, z: Tensor, spread: float, clip: float | Tensor, noise: Noise
    ) -> None:
        """total = (total / step rounded at random) + bits - b / 2: integers, for `step`; z is common. Errors
        as `SummedGaussian.perturb`.
        """
        if total.shape[-1] != self.dimension:
            raise ValueError(f"sums of {total.shape[-1]} numbers, a mechanism for {self.dimension}")
        steps = (total / clip * self.steps).nan_to_num_(nan=0.0).clamp_(-_LARGEST_SUM, _LARGEST_SUM)
        uniform = noise().numpy()
        for row, own, multiplier in zip(steps.numpy(), uniform, z.flatten().tolist(), strict=True):
            drawn, left = _fair_bits(own, self.bits(noise_ratio, multiplier))
            np.floor(row + left, out=row)
            row += drawn
        total.copy_(steps)

    def epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """See the module's docstring; infinite where there are too few bits."""
        grid.check_sizes(n for n, _, _ in cases)
        priced = {case: self._epsilon(census, *case) for case in set(cases)}
        return [priced[case] for case in cases]

    def noise_multipliers(self, census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
        """See `fedsim.privacy.calibrate`; by halving, to 1e-4 of the multiplier."""
        found = {budget: self._smallest(census, budget, limit) for budget in set(budgets)}
        return [found[budget] for budget in budgets]

    def accountant(self, samplers: Iterable[str]) -> str:
        """The same for every sampler."""
        return "Renyi divergence of binomial noise in a window, the rest in delta; no gain from sampling"

    def _epsilon(self, census: Census, n: int, z: float, delta: float) -> float:
        composed = cost.compose(census, n)
        if composed.silent:
            return 0.0
        everything, _, left = composed.gaussian_bound((1 - _OUTSIDE) * delta)
        if z == 0 or left <= 0:
            return inf
        times = _times(composed, delta)
        return gaussian.renyi_epsilon(everything / z, left, self._excess(census, z, delta, times))

    def _excess(self, census: Census, z: float, delta: float, times: int) -> float:
        """Sum over releases of e sqrt(d) times D, by which a record that is drawn `times` moves a sum.

        A query of ratio c has sigma = c z D steps and the window whose outside is its share c^-2 of all;
        c^2 e falls with c, so that a release's queries have at most the e of one query with its weight.
        """
        released = grid.weights(census)
        squares = sum(count * weight**2 for weight, count in released)
        own = self.sensitivity(self.least)  # of all that silos can have, the worst
        total = 0.0
        for weight, count in released:
            tail = _OUTSIDE * delta * weight**2 / (squares * self.dimension)
            e = excess(4 * (z * own / weight) ** 2, times * own + 1, tail)
            total += count * e * math.sqrt(self.dimension) * times * own
        return total

    def _smallest(self, census: Census, budget: Budget, limit: float) -> float:
        def spent(z: float) -> float:
            return self._epsilon(census, budget.n, z, budget.delta)

        if budget.epsilon == inf or spent(0.0) == 0:
            return 0.0
        if spent(limit) > budget.epsilon:
            raise Refused(over_budget(spent(limit), limit, budget.epsilon))
        low, high = 0.0, limit
        while high - low > _CLOSE * high:
            middle = math.sqrt(low * high) if low else high / 16
            low, high = (middle, high) if spent(middle) > budget.epsilon else (low, middle)
        return high


def _times(composed: cost.Composition, delta: float) -> int:
    """The most often a record counts in one sum, except with a probability that delta has paid for."""
    drawn = [pair for pair, _ in composed.sampled if isinstance(pair, WithReplacementPair)]
    return max((pair.most(composed.rare((1 - _OUTSIDE) * delta))[0] for pair in drawn), default=1)


def _fair_bits(uniform: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Bin(b, 1/2) - b / 2 of each uniform number, and where in its cell it lies: uniform again, and apart."""
    if bits == 0:
        return np.zeros_like(uniform), uniform
    first, below = _cells(bits)
    cell = np.searchsorted(below, uniform, side="right") - 1
    width = np.diff(below, append=1.0)[cell]
    left = np.clip((uniform - below[cell]) / width, 0.0, np.nextafter(1.0, 0.0))
    return first + cell.astype(np.float64), left


@lru_cache(maxsize=256)
def _cells(bits: int) -> tuple[int, np.ndarray]:
    """The first value of weight, and P[less than value] of each from there."""
    from scipy import stats  # slow to import

    reach = min(bits // 2, math.ceil(5 * math.sqrt(bits)) + 1)  # ten deviations
    values = np.arange(-reach, reach + 1)
    below = stats.binom.cdf(values - 1 + bits // 2, bits, 0.5)
    below[0] = 0.0
    keep = np.append(np.diff(below) > 0, below[-1] < 1)
    return int(values[keep][0]), below[keep]


NAMED = ShuffledBinomial(1, 1, 1.0, advised_steps(1))
