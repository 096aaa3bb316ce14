"""The mechanisms, by the word that a scenario has for them, and which algorithms each can serve."""

from __future__ import annotations

from fedsim.common.errors import InputError
from fedsim.privacy.attribute import AttributeGaussian
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.shuffled_binomial import ShuffledBinomial, advised_steps
from fedsim.privacy.shuffled_gaussian import ShuffledGaussian
from fedsim.privacy.silo_gaussian import ClipOnly, NoMechanism, SiloGaussian
from fedsim.privacy.sum_mechanism import SumMechanism
from fedsim.privacy.summed_gaussian import NoiseBy, SummedGaussian
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.pool import Pool
from fedsim.protocol.statistics import Extent

GAUSSIAN: Mechanism = SiloGaussian()
NONE: Mechanism = NoMechanism()  # the mechanism of a run's non-private baseline
CLIP_ONLY: Mechanism = ClipOnly()

MECHANISMS: dict[str, Mechanism] = {
    mechanism.name: mechanism
    for mechanism in (
        GAUSSIAN,
        NONE,
        SummedGaussian(Extent(1, 1), 1, 1.0),
        ShuffledBinomial(1, 1, 1.0, advised_steps(1)),
        ShuffledGaussian(1),
        AttributeGaussian(),
    )
}
"""{name: mechanism}. Those of secure aggregation describe their class; `sum_mechanism` makes usable ones."""


def sum_mechanism(
    name: str, extent: Extent, pool: Pool, noise_by: NoiseBy = "silos", steps: int | None = None
) -> SumMechanism:
    """The mechanism of secure aggregation by its name, for answers of this extent summed over this pool.

    `noise_by` is of summed_gaussian; `steps` of shuffled_binomial, of its grid to the clip, None for those
    that suit d.
    """
    if name == ShuffledGaussian.name:
        alike = set(pool.sizes) == {1} and len(set(pool.weights)) == 1
        return ShuffledGaussian(pool.min_silos, pool.honest_fraction, alike)
    if name == ShuffledBinomial.name:
        steps = advised_steps(extent.largest) if steps is None else steps
        return ShuffledBinomial(extent.largest, pool.min_silos, pool.honest_fraction, steps)
    return SummedGaussian(extent, pool.min_silos, pool.honest_fraction, noise_by)


def check_serves(mechanism: Mechanism, name: str, algorithm: type[Algorithm] | Algorithm) -> None:
    """InputError for an algorithm, of this name, that the mechanism cannot serve.

    Under secure aggregation only the sum of the answers is noisy and visible, so no silo can compute with its
    answer. A message must be the same affine function of the answers in every silo, applied to the sum: the
    algorithm's silo method is linear.
    """
    if mechanism.sums_only and not algorithm.linear:
        serves = ", ".join(other.name for other in MECHANISMS.values() if not other.sums_only)
        hint = f"{name} computes with each silo's own noisy answers, of which this one gives only sums"
        raise InputError("scenario.privacy.mechanism", mechanism.name, f"{hint}; use one of {serves}")
