"""What a silo says in public about a run: before it, and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsim.protocol.pool import Share


@dataclass(frozen=True)
class Terms:
    """What one silo brings to an admission.

    Args:
        name: the silo.
        n: its number of records.
        epsilon: its budget; infinity with mechanism `none`, where nothing is guaranteed.
        delta: its delta.
        rounds: the rounds it takes part in, ascending; others are refused.
        noise_multiplier: noise that is given; by default the silo takes the smallest within its budget.
            Either way it refuses a plan whose true cost exceeds epsilon. Of a sum over silos it is the sum's:
            common to all of them, relative to the largest sensitivity that a silo may have.
        share: the silo's part in secure aggregation; None where it answers for itself.
    """

    name: str
    n: int
    epsilon: float
    delta: float
    rounds: Sequence[int]
    noise_multiplier: float | None = None
    share: Share | None = None


@dataclass(frozen=True)
class Admitted:
    """A silo's answer to a plan that it accepts.

    Its whole transcript is (epsilon_guaranteed, delta)-DP with respect to replacing one of its n
    records (thesis Definition 139), whatever the server and the other silos do; see
    `fedsim.privacy.cost` for the arithmetic. `noise_multiplier` is sigma over the silo's own sensitivity. In
    secure aggregation the guarantee is the mechanism's: of what the server sees.
    """

    terms: Terms
    noise_multiplier: float
    epsilon_guaranteed: float
    releases: int


@dataclass(frozen=True)
class Statement:
    """One silo's account of a run.

    `epsilon_spent` prices the rounds paid for; it is a guarantee only if participation did not depend
    on answers. `digests` are the broadcasts that `rounds` were paid for, as hexadecimal SHA-256.
    """

    admitted: Admitted
    epsilon_spent: float
    rounds: list[int]
    digests: list[str]
