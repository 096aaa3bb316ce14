"""A federation's numbers in the theorems' symbols.

Most theorems speak of equal silos. Where silos differ, Theorem 140 says what takes the place of their
common numbers: with xi_i = ln(1/delta_i) / (n_i eps_i)^2 (its other logarithms are set to one where a bound's
are, and kept where noise is computed),

    Xi = sqrt(E[((1/M_1) sum of the M_1 largest xi_i)^2]),   1/M' = sqrt(E[1/M_r^2]),
    ln(1/delta) / ((eps n)^2 M)  becomes  min(Xi / M', xi_max / M),   n  becomes  min n_i,

and weights p_i replace f by N p_i f: L by max N p_i L, beta by max N p_i beta, mu by min N p_i mu. It is
proven for noisy MB-SGD; in the other upper bounds noise enters as the same variance, and the argument is
the same. For equal silos the numbers are those of the balanced theorem, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.unit import RECORD, Unit
from fedsim.theory.participants import Law, Participants, drawn_evenly, effective_m, law

Constant = Annotated[float, Field(gt=0, le=1e12)]
Moment = Annotated[float, Field(ge=2, le=1e12)]


class Constants(Section):
    """Constants that are assumed of the objective. They are public and are not verified."""

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
    moment: Moment | None = Field(
        None, description="k: a record's gradient has a k-th moment, at least the second (Assumption 9)"
    )
    moment_bound: Constant | None = Field(
        None, description="r: E|gradient|^k <= r^k, the k-th root of the moment, in the unit of clip_norm"
    )


@dataclass(frozen=True)
class Premises:
    """One federation; silos in canonical order."""

    names: tuple[str, ...]  # the silos, for messages
    # (n_i, eps_i, delta_i) of every silo: its budget, or the claim of a theorem; empty without privacy,
    # which no theorem covers
    claims: tuple[Budget, ...]
    weights: tuple[float, ...]  # p_i, summing to 1
    participants: Participants  # who takes part in a round
    dimension: int  # d, parameters
    constants: Constants  # of f
    unit: Unit = RECORD

    @property
    def relative_weights(self) -> tuple[float, ...]:
        """N p_i; exactly 1 where they are equal but for rounding."""
        scaled = tuple(len(self.weights) * p for p in self.weights)
        return (1.0,) * len(scaled) if all(abs(each - 1) < 1e-9 for each in scaled) else scaled

    @property
    def active(self) -> float:
        """M = 1 / E[1 / M_r] (thesis Assumption 1.4)."""
        return effective_m(self.participants, len(self.names))

    @property
    def kappa(self) -> float | None:
        """The condition number beta / mu; None where one of them is not stated."""
        beta, mu = self.constants.beta, self.constants.mu
        return None if beta is None or mu is None else beta / mu


@dataclass(frozen=True)
class Symbols:
    """Symbols as in the thesis; None for a constant that the scenario does not state."""

    n: int  # records per silo, the smallest n_i
    N: int  # silos
    M: float  # silos in a round, 1 / E[1 / M_r]
    d: int  # parameters
    epsilon: float  # privacy budget or claim, the smallest of the silos'; infinity if unlimited
    delta: float  # its delta, the smallest
    L: float | None = None  # Lipschitz constant, or clip norm, of N p_i f
    beta: float | None = None  # smoothness of N p_i f
    mu: float | None = None  # strong convexity, or the proximal-PL constant, of N p_i f
    D: float | None = None  # diameter
    Delta: float | None = None  # F(w_0) - F*
    phi: float | None = None  # standard deviation of gradients within a silo, at most L; of N p_i f
    upsilon: float | None = None  # standard deviation of gradients between silos, at most L; of N p_i f
    moment: float | None = None  # k of chapter 4
    moment_bound: float | None = None  # r, the k-th root of a bound on the k-th moment of N p_i f's gradients
    heaviest: float = 1.0  # max N p_i, which L and beta hold as a factor; 1 for equal weights
    claims: tuple[Budget, ...] = ()  # (n_i, eps_i, delta_i) of every silo; empty where silos are alike
    law: Law = ()  # the law of M_r; empty where silos are alike
    differ: tuple[str, ...] = ()  # what the silos differ in, of n_i, eps_i, delta_i and p_i
    even: bool = True  # whether S_r is uniformly random given its size

    def missing(self, *symbols: str) -> list[str]:
        """Return the constants among `symbols` that the scenario does not state."""
        return [symbol for symbol in symbols if getattr(self, symbol) is None]

    def need(self, what: str, *symbols: str) -> tuple[float, ...]:
        """Return the constants named; InputError if one is not stated, or epsilon is unlimited."""
        for symbol in self.missing(*symbols):
            raise InputError(f"scenario.assumptions.{symbol}", None, f"is required by {what}")
        if self.epsilon == math.inf:
            hint = f"{what} needs a number, or calibration theorem with claimed_epsilon"
            raise InputError("scenario.privacy.epsilon", "unlimited", hint)
        return tuple(float(getattr(self, symbol)) for symbol in symbols)

    @property
    def log(self) -> float:
        """ln(1 / delta)."""
        return math.log(1 / self.delta)

    @property
    def between(self) -> float:
        """(N - M) / (N - 1): the share of the silos' variance that a round's draw leaves; 0 for M = N."""
        return (self.N - self.M) / (self.N - 1) if self.N > 1 else 0.0

    @property
    def silos(self) -> tuple[Budget, ...]:
        """Every silo's (n_i, eps_i, delta_i), or the one that stands for all."""
        return self.claims or (Budget(self.n, self.epsilon, self.delta),)

    def spread(self, variance: Callable[[Budget], float]) -> float:
        """min(Xi / M', xi_max / M) of a silo's variance xi_i (Theorem 140); xi / M where silos are alike."""
        xis = sorted(map(variance, self.silos), reverse=True)
        if xis[0] == xis[-1]:
            return xis[0] / self.M  # 1 / M' is no smaller than 1 / M
        Xi = math.sqrt(sum(p * (math.fsum(xis[:m]) / m) ** 2 for m, p in self.law))
        return min(Xi * math.sqrt(sum(p / m**2 for m, p in self.law)), xis[0] / self.M)

    @property
    def xi(self) -> float:
        """ln(1/delta) / ((eps n)^2 M), or what Theorem 140 puts in its place."""
        return self.spread(lambda silo: math.log(1 / silo.delta) / (silo.epsilon * silo.n) ** 2)

    @property
    def signal(self) -> float:
        """(eps n)^2 M; with silos that differ, ln(1/delta) over what Theorem 140 has for its inverse."""
        return self.log / self.xi if self.claims else (self.epsilon * self.n) ** 2 * self.M

    @property
    def reach(self) -> float:
        """Eps n, alike: the root of `signal` / M."""
        return math.sqrt(self.signal / self.M) if self.claims else self.epsilon * self.n

    @property
    def clip(self) -> float | None:
        """L of f itself, which a silo clips a record's gradient to before the server weighs it."""
        return None if self.L is None else self.L / self.heaviest

    @property
    def record_beta(self) -> float | None:
        """Smoothness of f itself: that of a record's loss in its silo."""
        return None if self.beta is None else self.beta / self.heaviest


def symbols(premises: Premises) -> Symbols:
    """The theorems' symbols."""
    claims, weights = premises.claims, premises.relative_weights
    alike = len(set(claims)) == 1
    values: dict[str, set[float]] = {
        "n_i": {claim.n for claim in claims},
        "eps_i": {claim.epsilon for claim in claims},
        "delta_i": {claim.delta for claim in claims},
        "p_i": set(weights),
    }
    return Symbols(
        n=min(claim.n for claim in claims),
        N=len(claims),
        M=premises.active,
        d=premises.dimension,
        epsilon=min(claim.epsilon for claim in claims),
        delta=min(claim.delta for claim in claims),
        **_weighted(premises.constants, weights),
        heaviest=max(weights),
        claims=() if alike else claims,
        law=() if alike else law(premises.participants, len(claims)),
        differ=tuple(symbol for symbol, found in values.items() if len(found) > 1),
        even=drawn_evenly(premises.participants),
    )


def _weighted(f: Constants, weights: tuple[float, ...]) -> dict[str, float | None]:
    """The constants of N p_i f from those of f.

    upsilon: N p_i grad F_i - grad F = N p_i (grad F_i - grad F) + (N p_i - 1) grad F, and root mean squares
    add at most.
    """
    heaviest, lightest = max(weights), min(weights)
    L, upsilon = _times(f.L, heaviest), _times(f.upsilon, heaviest)
    if upsilon is not None and L is not None and f.L is not None:
        uneven = math.sqrt(sum((each - 1) ** 2 for each in weights) / len(weights))
        upsilon = min(L, upsilon + uneven * f.L) if uneven else upsilon
    return {
        "L": L,
        "beta": _times(f.beta, heaviest),
        "mu": _times(f.mu, lightest),
        "D": f.D,
        "Delta": f.Delta,
        "phi": _times(f.phi, heaviest) if f.phi is not None else L,
        "upsilon": upsilon if upsilon is not None else L,
        "moment": f.moment,
        "moment_bound": _times(f.moment_bound, heaviest),
    }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
