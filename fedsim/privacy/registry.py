"""The mechanisms, by the word that a scenario has for them, and which algorithms each can serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsim.common.errors import InputError
from fedsim.common.registry import Registry
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.silo_gaussian import ClipOnly, NoMechanism, SiloGaussian

if TYPE_CHECKING:  # secure aggregation, where it is asked for
    from fedsim.privacy.sum_mechanism import SumMechanism
    from fedsim.privacy.summed_gaussian import NoiseBy
    from fedsim.protocol.contract import Algorithm
    from fedsim.protocol.pool import Pool
    from fedsim.protocol.statistics import Extent

GAUSSIAN: Mechanism = SiloGaussian()
NONE: Mechanism = NoMechanism()  # the mechanism of a run's non-private baseline
CLIP_ONLY: Mechanism = ClipOnly()

MECHANISMS: Registry[Mechanism] = Registry.of(
    "fedsim.privacy",
    {
        "gaussian": "registry:GAUSSIAN",
        "none": "registry:NONE",
        "summed_gaussian": "summed_gaussian:NAMED",
        "shuffled_binomial": "shuffled_binomial:NAMED",
        "shuffled_gaussian": "shuffled_gaussian:NAMED",
        "attribute_gaussian": "attribute:NAMED",
    },
)
"""{name: mechanism}. Those of secure aggregation describe their class; `sum_mechanism` makes usable ones."""


def sum_mechanism(
    name: str, extent: Extent, pool: Pool, noise_by: NoiseBy = "silos", steps: int | None = None
) -> SumMechanism:
    """The mechanism of secure aggregation by its name, for answers of this extent summed over this pool.

    `noise_by` is of summed_gaussian; `steps` of shuffled_binomial, of its grid to the clip, None for those
    that suit d.
    """
    if name == "shuffled_gaussian":
        from fedsim.privacy.shuffled_gaussian import ShuffledGaussian

        alike = set(pool.sizes) == {1} and len(set(pool.weights)) == 1
        return ShuffledGaussian(pool.min_silos, pool.honest_fraction, alike)
    if name == "shuffled_binomial":
        from fedsim.privacy.shuffled_binomial import ShuffledBinomial, advised_steps

        steps = advised_steps(extent.largest) if steps is None else steps
        return ShuffledBinomial(extent.largest, pool.min_silos, pool.honest_fraction, steps)
    from fedsim.privacy.summed_gaussian import SummedGaussian

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
