"""dp-accounting as an oracle for `cost` under replace-one, in fedsim's noise multiplier z = sigma / (2C/K).

dp-accounting 0.6.0 reads the noise multiplier of a Gaussian event under REPLACE_ONE in two ways: its RDP
accountant as sigma / sensitivity, which is z; its PLD accountant as sigma / (C/K), which is 2z. The same
number means a factor 2 in sigma. `fedsim.privacy.verify` hands it fedsim's own pairs instead, which know of
no such convention.
"""

from typing import Any

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedsim.protocol.batch import Batch, Fresh, Poisson, Subsample

REPLACE_ONE = dp.NeighboringRelation.REPLACE_ONE


def pld_epsilon(batch: Batch, n: int, z: float, count: int, delta: float) -> float:
    """Epsilon of `count` releases by privacy-loss distributions; the library has none for `Subsample`."""
    accountant = PLDAccountant(REPLACE_ONE, value_discretization_interval=1e-4)
    return _epsilon(accountant, pld_event(batch, n, z), 1 if isinstance(batch, Fresh) else count, delta)


def pld_event(batch: Batch, n: int, z: float) -> Any:
    return _event(batch, n, 2 * z)


def rdp_epsilon(batch: Batch, n: int, z: float, count: int, delta: float) -> float:
    """Epsilon of `count` releases by Renyi DP: looser than `cost`, and independent of it."""
    accountant = RdpAccountant(neighboring_relation=REPLACE_ONE)
    return _epsilon(accountant, _event(batch, n, z), count, delta)


def _epsilon(accountant: Any, event: Any, count: int, delta: float) -> float:
    assert accountant.supports(event)
    return float(accountant.compose(event, count).get_epsilon(delta))


def _event(batch: Batch, n: int, noise_multiplier: float) -> Any:
    """Of disjoint (`Fresh`) batches a record meets one release."""
    gaussian = dp.GaussianDpEvent(noise_multiplier)
    if isinstance(batch, Poisson):
        return dp.PoissonSampledDpEvent(batch.fraction, gaussian)
    if isinstance(batch, Subsample):
        return dp.SampledWithoutReplacementDpEvent(n, batch.size(n), gaussian)
    return gaussian
