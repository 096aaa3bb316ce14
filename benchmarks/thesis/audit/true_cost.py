"""What the noise that a theorem states truly costs, under replace-one adjacency, by fedsim's accountant."""

from __future__ import annotations

import math
from typing import Protocol

from fedsim.privacy import attainable, cost
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import Fresh, Full
from fedsim.protocol.plan import Census, Release
from fedsim.theory.theorem import Check, NoisyMean


class Stated(Protocol):
    """`fedsim.theory.theorem.Theorem`, or a class with the same attributes."""

    @property
    def title(self) -> str:
        """Name and number."""

    @property
    def claim(self) -> Budget:
        """n, epsilon and delta."""

    @property
    def releases(self) -> tuple[NoisyMean, ...]:
        """Gradients first; then differences, where there are any."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """Every side condition that can be checked."""


def census(theorem: Stated) -> Census:
    """The theorem's releases as the accountant sees them, weights relative to the first one's multiplier."""
    base = theorem.releases[0].multiplier
    return tuple(
        (Release(kind.batch, base / kind.multiplier), kind.count)
        for kind in theorem.releases
        if kind.count > 0
    )


def true_epsilon(theorem: Stated) -> float:
    """Epsilon of the theorem's plan under replace-one at its delta, by `fedsim.privacy.cost`.

    Raises:
        Refused: disjoint batches that need more records than there are.
    """
    claim = theorem.claim
    return cost.epsilon(census(theorem), claim.n, theorem.releases[0].multiplier, claim.delta)


def least_epsilon(theorem: Stated) -> float:
    """A lower bound of `true_epsilon`, attained by a pair of data sets (`fedsim.privacy.attainable`)."""
    claim = theorem.claim
    return attainable.epsilon(census(theorem), claim.n, theorem.releases[0].multiplier, claim.delta)


def zcdp_epsilon(theorem: Stated) -> float | None:
    """Epsilon by the thesis's own conversion rho + 2 sqrt(rho ln(1/delta)) (Proposition 5).

    rho = mu^2 / 2 adds over full batches and is the largest one over disjoint batches; None for a plan
    with sampled batches, to which it does not apply.
    """
    squares = [(kind.batch, kind.count, kind.multiplier**-2) for kind in theorem.releases if kind.count]
    if any(not isinstance(batch, Full | Fresh) for batch, _, _ in squares):
        return None
    full = sum(count * square for batch, count, square in squares if isinstance(batch, Full))
    fresh = max((square for batch, _, square in squares if isinstance(batch, Fresh)), default=0.0)
    rho = (full + fresh) / 2
    return rho + 2 * math.sqrt(rho * math.log(1 / theorem.claim.delta))
