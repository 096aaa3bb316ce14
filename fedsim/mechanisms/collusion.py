"""What is left of a silo's guarantee if the two parties that make a sum over silos collude."""

from __future__ import annotations

from math import inf

from fedsim.mechanisms.mechanism import SumMechanism
from fedsim.protocol.plan import Census


def epsilon_colluding(mechanism: SumMechanism, census: Census, n: int, z: float, delta: float) -> float:
    """The epsilon, at the same delta, of a silo of n records under its own share of the noise alone.

    Args:
        mechanism: of the sums.
        census: what the silo answers.
        n: its records.
        z: its multiplier under the noise of the whole sum (`Admitted.noise_multiplier`).
        delta: its delta.
    """
    own = mechanism.colluding(z)
    return mechanism.epsilons(census, [(n, own, delta)])[0] if own else inf
