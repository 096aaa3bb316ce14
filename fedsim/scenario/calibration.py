"""Who sets the noise: what a scenario must and must not say, and the outcome where it is fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsim.common.errors import InputError

if TYPE_CHECKING:
    from fedsim.scenario.model import PrivacySection

_BELONGS = {
    "claimed_epsilon": "theorem",
    "claimed_delta": "theorem",
    "theorem": "theorem",
    "allow_violations": "theorem",
    "sigma": "sigma",
    "noise_multiplier": "sigma",
}


@dataclass(frozen=True)
class Prescribed:
    """Noise that a scenario fixes, silo by silo in canonical order.

    Args:
        noise_multipliers: z_i, sigma / L2 sensitivity of a gradient.
        theorem: the theorem that states it, None where it is given.
        claimed_epsilons: what the theorem claims; None where it is given.
        claimed_deltas: the delta of that claim.
        violations: conditions of the theorem that do not hold, one line each.
    """

    noise_multipliers: tuple[float, ...]
    theorem: str | None = None
    claimed_epsilons: tuple[float, ...] | None = None
    claimed_deltas: tuple[float, ...] | None = None
    violations: tuple[str, ...] = ()


def check_calibration(privacy: PrivacySection) -> None:
    """Check that the section says what its calibration needs, and nothing that belongs to another.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    if privacy.mechanism == "none":
        return
    for field, calibration in _BELONGS.items():
        value = getattr(privacy, field)
        said = value != type(privacy).model_fields[field].default
        if said and privacy.calibration != calibration:
            expected = f"only with calibration {calibration}, this one is {privacy.calibration}"
            raise InputError(f"scenario.privacy.{field}", value, expected)
    if privacy.calibration == "theorem" and privacy.claimed_epsilon is None:
        raise InputError("scenario.privacy.claimed_epsilon", None, "is required with calibration theorem")
    if privacy.calibration == "sigma" and (privacy.sigma is None) == (privacy.noise_multiplier is None):
        expected = "calibration sigma needs either sigma or noise_multiplier"
        raise InputError("scenario.privacy.sigma", privacy.sigma, expected)
    if privacy.calibration == "accountant" and privacy.epsilon == "unlimited":
        expected = (
            "the accountant needs a number to calibrate to; unlimited goes with calibration theorem or sigma"
        )
        raise InputError("scenario.privacy.epsilon", privacy.epsilon, expected)
