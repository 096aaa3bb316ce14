"""What theorems start from: a federation's public numbers, and constants of its objective."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.protocol.participants import Participants, effective_m
from fedsim.theory.theorem import Claim, Context


@dataclass(frozen=True)
class Constants:
    """Constants of a silo's objective f; None where nobody states one.

    Args:
        L: Lipschitz constant of a record's loss, or what its gradient is clipped to.
        beta: smoothness.
        mu: strong convexity, or the proximal-PL constant.
        D: diameter of the constraint set.
        Delta: F(w_0) - F*.
        phi: root mean square of a record's gradient about its silo's.
        upsilon: root mean square of silos' gradients about their mean.
    """

    L: float | None = None
    beta: float | None = None
    mu: float | None = None
    D: float | None = None
    Delta: float | None = None
    phi: float | None = None
    upsilon: float | None = None


@dataclass(frozen=True)
class Premises:
    """One federation; silos in canonical order.

    Args:
        names: the silos, for messages.
        claims: (n_i, eps_i, delta_i) of every silo: its budget, or what a theorem is asked for.
        weights: p_i, summing to 1.
        participants: who takes part in a round.
        dimension: d, parameters.
        constants: of f.
    """

    names: tuple[str, ...]
    claims: tuple[Claim, ...]
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
