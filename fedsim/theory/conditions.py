"""What the thesis's bounds ask of a setting beyond its constants, each as a check that is met or not.

A condition on epsilon is asked of every silo; the one nearest to breaking it is shown. What is asked
asymptotically, delta = o(1/(n N)), is read as delta < 1/(n N). What is asked of an algorithm and cannot
be read off a setting (its C, its epsilon a round) is in `fedsim.theory.bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fedsim.privacy.calibrate import Budget
from fedsim.theory.symbols import Symbols
from fedsim.theory.theorem import Check, at_least, at_most

Conditions = Callable[[Symbols], tuple[Check, ...]]


def advanced_composition(s: Symbols) -> tuple[Check, ...]:
    """Theorems 34, 37 and 140."""
    return (_range(s, "eps <= 2 ln(2/delta)", lambda silo: 2 * math.log(2 / silo.delta)),)


def one_gaussian(s: Symbols) -> tuple[Check, ...]:
    """Theorem 36."""
    return (_range(s, "eps <= 8 ln(1/delta)", lambda silo: 8 * math.log(1 / silo.delta)),)


def one_sum(s: Symbols) -> tuple[Check, ...]:
    """Theorem 39: the range of P_vec."""
    return (_range(s, "eps <= 15", lambda _: 15.0), _below("delta < 1/2", s.delta, 0.5))


def sums_of_silos(s: Symbols) -> tuple[Check, ...]:
    """Theorem 40, SDP."""
    least = s.N * min(s.epsilon / 2, 1.0)
    return (*proximal_pl(s), at_least("M >= N min(eps/2, 1)", "participation", s.M, least))


def sums_of_restarts(s: Symbols) -> tuple[Check, ...]:
    """Theorem 42, SDP; its least M where Delta is stated."""
    if s.Delta is None:
        return restarts(s)
    L, beta, Delta = s.need("Theorem 42", "L", "beta", "Delta")
    private = (s.d * math.log(s.d / s.delta) ** 3 / (beta * Delta)) ** (3 / 8)
    least = min((s.epsilon * s.n * L) ** 0.75 / s.n**0.25 * private, s.N)
    condition = "M >= min((eps n L)^(3/4) (d ln(d/delta)^3/(beta Delta))^(3/8)/n^(1/4), N)"
    return (*restarts(s), at_least(condition, "participation", s.M, least))


def sums_of_differences(s: Symbols) -> tuple[Check, ...]:
    """Theorem 45; its least M is garbled in print."""
    return (_range(s, "eps <= ln(1/delta)", lambda silo: math.log(1 / silo.delta)),)


def proximal_pl(s: Symbols) -> tuple[Check, ...]:
    """Theorem 40."""
    beta, mu = s.need("Theorem 40", "beta", "mu")
    most = max(silo.delta for silo in s.silos)
    return (
        _range(s, "eps <= min(8 ln(1/delta), 15)", lambda silo: min(8 * math.log(1 / silo.delta), 15.0)),
        _below("delta < 1/2", most, 0.5),
        at_least("n >= kappa", "partition", s.n, beta / mu),
    )


def restarts(s: Symbols) -> tuple[Check, ...]:
    """Theorem 42."""
    return (_range(s, "eps <= min(2 ln(2/delta), 15)", lambda silo: min(2 * math.log(2 / silo.delta), 15.0)),)


def zcdp(s: Symbols) -> tuple[Check, ...]:
    """Theorem 44; q >= 1 says that the noise leaves a step worth taking, else the theorem returns w_0."""
    L, beta, Delta = s.need("Theorem 44", "L", "beta", "Delta")
    period = (L / (8 * math.sqrt(s.d * s.xi * Delta * beta))) ** (2 / 3)
    return (
        _range(s, "eps <= 2 ln(1/delta)", lambda silo: 2 * math.log(1 / silo.delta)),
        at_least("q >= 1", "privacy.epsilon", period, 1),
    )


def shuffled(s: Symbols) -> tuple[Check, ...]:
    """Theorem 38, with the least R that it can have: max(n^2 N^2 eps^2 / M, N / M, ...)."""
    least = max((s.n * s.N * s.epsilon) ** 2 / s.M, s.N / s.M, 1.0)
    bound = 16 * math.log(18 * least * s.M**2 / (s.N * s.delta))
    return (
        _range(s, "eps <= ln(2/delta)", lambda silo: math.log(2 / silo.delta)),
        at_least("M >= 16 ln(18 R M^2/(N delta))", "participation", s.M, bound),
    )


def central(s: Symbols) -> tuple[Check, ...]:
    """Theorems 123, 134 and 46 (central)."""
    return (_small_delta(s),)


def reduction(s: Symbols) -> tuple[Check, ...]:
    """Theorems 35, 133 and 46: from ISRL to central through amplification by shuffling.

    The theorem asks N >= 16 ln(2/(delta_r n)) with a round's delta_r <= delta; with delta it is necessary.
    """
    needed = 16 * math.log(2 / (s.delta * s.n))
    return (
        _range(s, "eps <= sqrt N", lambda _: math.sqrt(s.N)),
        _small_delta(s),
        at_least("N >= 16 ln(2/(delta n))", "partition", s.N, needed),
    )


def _small_delta(s: Symbols) -> Check:
    largest = max(silo.delta for silo in s.silos)
    return _below("delta = o(1/(n N))", largest, 1 / (s.n * s.N))


def _below(condition: str, delta: float, bound: float) -> Check:
    return Check(condition, "privacy.delta", delta, f"below {bound:.6g}", delta < bound)


def _range(s: Symbols, condition: str, bound: Callable[[Budget], float]) -> Check:
    tightest = max(s.silos, key=lambda silo: silo.epsilon / bound(silo))
    return at_most(condition, "privacy.epsilon", tightest.epsilon, bound(tightest))
