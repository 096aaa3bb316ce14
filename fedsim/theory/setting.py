"""The numbers of a scenario in the theorems' symbols.

Theorems speak of equal silos. Where silos differ, n is the smallest n_i, and epsilon and delta are the
smallest of the silos' (with calibration `theorem`, of what they claim), which no bound is better for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsim.protocol.errors import InputError
from fedsim.scenario.model import BallConstraint
from fedsim.scenario.resolve import Resolved, per_silo


@dataclass(frozen=True)
class Setting:
    """Symbols as in the thesis; None where the scenario does not state a constant.

    Args:
        n: records per silo.
        N: silos.
        M: silos in a round.
        d: parameters.
        epsilon: privacy budget or claim; infinity if unlimited.
        delta: its delta.
        L: Lipschitz constant, or clip norm.
        beta: smoothness.
        mu: strong convexity, or the proximal-PL constant.
        D: diameter.
        Delta: F(w_0) - F*.
        phi: standard deviation of gradients within a silo, at most L.
        upsilon: standard deviation of gradients between silos, at most L.
    """

    n: int
    N: int
    M: float
    d: int
    epsilon: float
    delta: float
    L: float | None = None
    beta: float | None = None
    mu: float | None = None
    D: float | None = None
    Delta: float | None = None
    phi: float | None = None
    upsilon: float | None = None

    def missing(self, *symbols: str) -> list[str]:
        """Those of `symbols` that the scenario does not state."""
        return [symbol for symbol in symbols if getattr(self, symbol) is None]

    def need(self, what: str, *symbols: str) -> tuple[float, ...]:
        """Return the constants named.

        Raises:
            InputError: one is not stated, or epsilon is unlimited.
        """
        for symbol in self.missing(*symbols):
            raise InputError(f"scenario.assumptions.{symbol}", None, f"is required by {what}")
        if self.epsilon == math.inf:
            expected = f"{what} needs a number, or calibration theorem with claimed_epsilon"
            raise InputError("scenario.privacy.epsilon", "unlimited", expected)
        return tuple(float(getattr(self, symbol)) for symbol in symbols)

    @property
    def log(self) -> float:
        """ln(1 / delta)."""
        return math.log(1 / self.delta)

    @property
    def between(self) -> float:
        """(N - M) / (N - 1): the share of the silos' variance that a round's draw leaves; 0 for M = N."""
        return (self.N - self.M) / (self.N - 1) if self.N > 1 else 0.0


def active_silos(resolved: Resolved) -> float:
    """M of the theorems: how many silos a round has."""
    return resolved.effective_m


def setting_of(resolved: Resolved) -> Setting:
    """Return the scenario's numbers.

    Raises:
        InputError: there is no privacy to speak of.
    """
    scenario = resolved.scenario
    if scenario.privacy.mechanism == "none":
        raise InputError("scenario.privacy.mechanism", "none", "theorems and bounds need gaussian")
    stated, privacy = scenario.assumptions, scenario.privacy
    constraint = scenario.problem.constraint
    ball = 2 * constraint.radius if isinstance(constraint, BallConstraint) else None
    L = stated.L if stated.L is not None else getattr(scenario.algorithm, "clip_norm", None)
    epsilons, deltas = resolved.epsilons, resolved.deltas
    if privacy.calibration == "theorem" and privacy.mechanism == "gaussian":
        epsilons = per_silo("scenario.privacy.claimed_epsilon", privacy.claimed_epsilon, resolved.names)
        if privacy.claimed_delta is not None:
            deltas = per_silo("scenario.privacy.claimed_delta", privacy.claimed_delta, resolved.names)
    return Setting(
        n=min(resolved.sizes),
        N=len(resolved.names),
        M=active_silos(resolved),
        d=resolved.problem.dimension,
        epsilon=min(epsilons),
        delta=min(deltas),
        L=L,
        beta=stated.beta,
        mu=stated.mu,
        D=stated.D if stated.D is not None else ball,
        Delta=stated.Delta,
        phi=stated.phi if stated.phi is not None else L,
        upsilon=stated.upsilon if stated.upsilon is not None else L,
    )
