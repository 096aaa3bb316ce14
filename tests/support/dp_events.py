"""dp-accounting's own accountants as an oracle for `cost`, with the convention fixed in a type.

dp-accounting 0.6.0 reads the noise multiplier of a Gaussian event under REPLACE_ONE in two ways: its RDP
accountant as sigma / sensitivity, its PLD accountant as sigma / C with sensitivity 2C. The same number
means a factor 2 in sigma (1 at delta = 1e-5: RDP 4.73, PLD 10.00). `GaussianRelease` holds sigma and the
clip bound, and writes each accountant the event that it will read rightly.

`fedsim.privacy.verify` has no use for it: it hands dp-accounting fedsim's own pairs, which know of no
event conventions, and so covers every sampler.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from fedsim.protocol.batch import FULL, Batch, Fresh, Full, Poisson, Subsample, WithReplacement


class Relation(Enum):
    """Which data sets are neighbours."""

    REPLACE_ONE = "replace_one"
    ADD_OR_REMOVE_ONE = "add_or_remove_one"


class UnsupportedSamplerError(ValueError):
    """The accountant has no analysis of this sampler under this relation."""


@dataclass(frozen=True, slots=True)
class GaussianRelease:
    """A clipped mean with Gaussian noise.

    Args:
        sigma: standard deviation of the noise on the mean, > 0, in the unit of `clip`.
        clip: C, L2 bound on one record's term, > 0.
        n: number of records.
        batch: sampler; the sum of terms is divided by batch.size(n).
        relation: neighbouring relation; under add-or-remove the divisor is public and fixed.
    """

    sigma: float
    clip: float
    n: int
    batch: Batch = FULL
    relation: Relation = Relation.REPLACE_ONE

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the mean to a record in the batch: 2C/K, or C/K for add-or-remove."""
        terms = 2 if self.relation is Relation.REPLACE_ONE else 1
        return terms * self.clip / self.batch.size(self.n)

    @property
    def noise_multiplier(self) -> float:
        """z = sigma / sensitivity, as everywhere in fedsim."""
        return self.sigma / self.sensitivity

    def rdp_event(self) -> Any:
        """Return the event for dp-accounting's RDP accountant, which reads sigma / sensitivity."""
        return self._sampled(self.noise_multiplier)

    def pld_event(self) -> Any:
        """Return the event for dp-accounting's PLD accountant, which reads sigma / (C/K) in both relations.

        Raises:
            UnsupportedSamplerError: sampling without replacement, which it has no PLD for.
        """
        if isinstance(self.batch, Subsample) and self.batch.size(self.n) < self.n:
            raise UnsupportedSamplerError("dp-accounting has no PLD for sampling without replacement")
        return self._sampled(self.sigma * self.batch.size(self.n) / self.clip)

    def rdp_epsilon(self, count: int, delta: float) -> float:
        """Return epsilon of `count` releases by Renyi DP: looser than `cost`, and independent of it.

        Raises:
            UnsupportedSamplerError: Poisson under replace-one, or without replacement under add-or-remove.
        """
        from dp_accounting.rdp import RdpAccountant

        return self._spent(
            RdpAccountant(neighboring_relation=self._neighbours()), self.rdp_event(), count, delta
        )

    def pld_epsilon(self, count: int, delta: float, interval: float = 1e-4) -> float:
        """Return epsilon of `count` releases by dp-accounting's privacy-loss distributions.

        Raises:
            UnsupportedSamplerError: sampling without replacement.
        """
        from dp_accounting.pld import PLDAccountant

        accountant = PLDAccountant(self._neighbours(), value_discretization_interval=interval)
        return self._spent(accountant, self.pld_event(), count, delta)

    def _spent(self, accountant: Any, event: Any, count: int, delta: float) -> float:
        if isinstance(self.batch, Fresh):
            count = min(count, 1)  # disjoint batches: a record meets one release
        if not accountant.supports(event):
            raise UnsupportedSamplerError(
                f"{type(accountant).__name__}: {self.batch.sampler} under {self.relation.value}"
            )
        return float(accountant.compose(event, count).get_epsilon(delta)) if count else 0.0

    def _sampled(self, noise_multiplier: float) -> Any:
        import dp_accounting as dp

        gaussian = dp.GaussianDpEvent(noise_multiplier)
        match self.batch:
            case Full() | Fresh():
                return gaussian
            case Poisson(fraction=q):
                return gaussian if q == 1 else dp.PoissonSampledDpEvent(q, gaussian)
            case Subsample() as batch:
                size = batch.size(self.n)
                if size == self.n:
                    return gaussian
                return dp.SampledWithoutReplacementDpEvent(self.n, size, gaussian)
            case WithReplacement() as batch:
                return dp.SampledWithReplacementDpEvent(self.n, batch.size(self.n), gaussian)

    def _neighbours(self) -> Any:
        import dp_accounting as dp

        return dp.NeighboringRelation[self.relation.name]
