"""What theorems start from: a federation's public numbers, and constants of its objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedsim.common.section import Section
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.participants import Participants, effective_m
from fedsim.theory.theorem import Context

Constant = Annotated[float, Field(gt=0, le=1e12)]


class Constants(Section):
    """What is assumed of the objective; public, and as good as whoever states it."""

    L: Constant | None = Field(
        None, description="L: Lipschitz constant of a record's loss; default clip_norm"
    )
    beta: Constant | None = Field(
        None, description="beta: smoothness of a record's loss (logistic: max |x|^2 / 4)"
    )
    mu: Constant | None = Field(
        None, description="mu: strong convexity, or the proximal-PL constant, of the objective"
    )
    D: Constant | None = Field(
        None,
        description="D: diameter of the constraint set, or of where iterates stay; default that of a ball",
    )
    Delta: Constant | None = Field(None, description="Delta: F(w_0) - F*, a bound")
    phi: Constant | None = Field(
        None, description="phi: root mean square of a record's gradient about its silo's; default L"
    )
    upsilon: Constant | None = Field(
        None, description="upsilon: root mean square of silos' gradients about their mean; default L"
    )


@dataclass(frozen=True)
class Premises:
    """One federation; silos in canonical order.

    Args:
        names: the silos, for messages.
        claims: (n_i, eps_i, delta_i) of every silo: its budget, or what a theorem is asked for; empty without
            privacy, of which theorems say nothing.
        weights: p_i, summing to 1.
        participants: who takes part in a round.
        dimension: d, parameters.
        constants: of f.
    """

    names: tuple[str, ...]
    claims: tuple[Budget, ...]
    weights: tuple[float, ...]
    participants: Participants
    dimension: int
    constants: Constants

    @property
    def relative_weights(self) -> tuple[float, ...]:
        """N p_i; exactly 1 where they are equal but for rounding."""
        scaled = tuple(len(self.weights) * p for p in self.weights)
        return (1.0,) * len(scaled) if all(abs(each - 1) < 1e-9 for each in scaled) else scaled

    @property
    def context(self) -> Context:
        """M and kappa, which conditions refer to."""
        beta, mu = self.constants.beta, self.constants.mu
        kappa = None if beta is None or mu is None else beta / mu
        return Context(effective_m(self.participants, len(self.claims)), kappa)
