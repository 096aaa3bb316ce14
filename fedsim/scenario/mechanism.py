"""Mechanisms, and which algorithms each can serve."""

from __future__ import annotations

from typing import NamedTuple

from fedsim.common.errors import InputError
from fedsim.protocol.contract import Algorithm


class Mechanism(NamedTuple):
    """One line for people, and whether the server only ever learns sums over silos."""

    line: str
    sums_only: bool = False


MECHANISMS = {
    "gaussian": Mechanism("Clip every record's term and add Gaussian noise in the silo (ISRL-DP)."),
    "none": Mechanism("Neither clip nor add noise: the non-private twin, and with local_sgd FedAvg."),
}


def check_mechanism(mechanism: str, name: str, algorithm: type[Algorithm] | Algorithm) -> None:
    """Refuse an algorithm that the mechanism cannot serve.

    Where noise is only on a sum over silos, no silo has a noisy answer of its own to compute with:
    its message must be the same affine function of the answers in every silo, to be applied to the sum.

    Raises:
        InputError: the mechanism gives sums only and the algorithm's silo half is not linear.
    """
    if MECHANISMS[mechanism].sums_only and not algorithm.linear:
        serves = ", ".join(key for key, value in MECHANISMS.items() if not value.sums_only)
        expected = f"{name} computes with each silo's own noisy answers, of which this one gives only sums"
        raise InputError("scenario.privacy.mechanism", mechanism, f"{expected}; use one of {serves}")
