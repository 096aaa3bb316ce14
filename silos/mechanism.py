"""Which noise a deployed silo adds: exact where it can wait for it, floating-point above."""

from __future__ import annotations

from dataclasses import replace

from fedsim.mechanisms.grid_gaussian import GridGaussian
from fedsim.mechanisms.mechanism import Mechanism, SumMechanism
from fedsim.mechanisms.shuffled_binomial import ShuffledBinomial
from fedsim.mechanisms.silo_gaussian import SiloGaussian
from fedsim.mechanisms.summed_gaussian import SummedGaussian

FLOATING_POINT = (
    "Noise is Gaussian in floating point: the low-order bits of an answer are not covered by the guarantee"
)
"""The line of a report for noise that is not exact."""


def silo_mechanism(dimension: int, exact_noise_dimension: int) -> tuple[Mechanism, tuple[str, ...]]:
    """The mechanism for answers of `dimension` numbers, and what a reader must know of it.

    Args:
        dimension: d.
        exact_noise_dimension: the largest d with exact noise, about 20 microseconds a number; 0 for none.
    """
    if dimension <= exact_noise_dimension:
        return GridGaussian(dimension), ()
    return SiloGaussian(), (FLOATING_POINT,)


def exact_sums(mechanism: SumMechanism, exact_noise_dimension: int) -> tuple[SumMechanism, tuple[str, ...]]:
    """As `silo_mechanism`, of sums over silos; where aggregators add the noise, the silo draws none."""
    if isinstance(mechanism, ShuffledBinomial):
        return mechanism, ()  # integers, of fair bits
    if not isinstance(mechanism, SummedGaussian):
        return mechanism, (FLOATING_POINT,)
    exact = mechanism.noise_by == "aggregators" or mechanism.dimension <= exact_noise_dimension
    return replace(mechanism, exact=exact), () if exact else (FLOATING_POINT,)
