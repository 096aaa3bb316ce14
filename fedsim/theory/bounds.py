"""Excess-risk bounds of the thesis, with every constant and logarithmic factor in n, R, N set to one.

A. Lowy, thesis (USC 2023), chapter 3 and appendix B. They are orders of magnitude: measured excess risk
can be plotted beside them to compare slopes and gaps, never heights. ln(1/delta) is kept where the thesis
prints it. ISRL: every silo protects its own transcript and trusts nobody. Central: a trusted server, or a
shuffler. For the proximal-PL and the non-convex class see each function's measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedsim.theory.setting import Setting


def convex_isrl(s: Setting) -> float:
    """Theorem 34 (noisy MB-SGD): (L D / sqrt M)(1 / sqrt n + sqrt(d ln(1/delta)) / (eps n))."""
    L, D = s.need("Theorem 34", "L", "D")
    return L * D / math.sqrt(s.M) * (1 / math.sqrt(s.n) + math.sqrt(s.d * s.log) / (s.epsilon * s.n))


def strongly_convex_isrl(s: Setting) -> float:
    """Theorem 34 (noisy MB-SGD): (L^2 / (mu M))(1 / n + d ln(1/delta) / (eps n)^2)."""
    L, mu = s.need("Theorem 34", "L", "mu")
    return L**2 / (mu * s.M) * (1 / s.n + s.d * s.log / (s.epsilon * s.n) ** 2)


def convex_one_pass(s: Setting) -> float:
    """Theorem 36 (accelerated, one pass), heterogeneous silos; with p = sqrt(d ln(1/delta)) / (eps n):

    phi D / sqrt(n M) + (beta^(1/4) L D^(3/2) p / sqrt M)^(4/5)
    + sqrt((N - M)/(N - 1)) upsilon L^(1/5) D^(4/5) beta^(-1/5) (p / M^(3/2))^(1/5).
    """
    L, beta, D, phi, upsilon = s.need("Theorem 36", "L", "beta", "D", "phi", "upsilon")
    p = math.sqrt(s.d * s.log) / (s.epsilon * s.n)
    silos = upsilon * L**0.2 * D**0.8 * beta**-0.2 * (p / s.M**1.5) ** 0.2
    private = (beta**0.25 * L * D**1.5 * p / math.sqrt(s.M)) ** 0.8
    return float(phi * D / math.sqrt(s.n * s.M) + private + math.sqrt(s.between) * silos)


def strongly_convex_one_pass(s: Setting) -> float:
    """Theorem 36: phi^2/(mu n M) + (L^2/mu) sqrt(kappa) d ln(1/delta)/((eps n)^2 M) + drawn silos' variance.

    The first term's mu is missing in (B.20) and present in (3.7); the last is
    upsilon^2 (N - M) / ((N - 1) mu sqrt(kappa) M).
    """
    L, beta, mu, phi, upsilon = s.need("Theorem 36", "L", "beta", "mu", "phi", "upsilon")
    kappa = beta / mu
    private = L**2 / mu * math.sqrt(kappa) * s.d * s.log / ((s.epsilon * s.n) ** 2 * s.M)
    return phi**2 / (mu * s.n * s.M) + private + upsilon**2 * s.between / (mu * math.sqrt(kappa) * s.M)


def convex_erm(s: Setting) -> float:
    """Theorem 37 (accelerated, empirical risk): L D sqrt(d ln(1/delta)) / (eps n sqrt M)."""
    L, D = s.need("Theorem 37", "L", "D")
    return L * D * math.sqrt(s.d * s.log) / (s.epsilon * s.n * math.sqrt(s.M))


def strongly_convex_erm(s: Setting) -> float:
    """Theorem 37 (accelerated, empirical risk): (L^2 / mu) d ln(1/delta) / ((eps n)^2 M)."""
    L, mu = s.need("Theorem 37", "L", "mu")
    return L**2 / mu * s.d * s.log / ((s.epsilon * s.n) ** 2 * s.M)


def pl_isrl(s: Setting) -> float:
    """Theorem 40 (prox-SGD): (L^2 / mu)(kappa^2 d ln(1/delta) / ((eps n)^2 M) + kappa / (M n))."""
    L, beta, mu = s.need("Theorem 40", "L", "beta", "mu")
    kappa = beta / mu
    private = kappa**2 * s.d * s.log / ((s.epsilon * s.n) ** 2 * s.M)
    return L**2 / mu * (private + kappa / (s.M * s.n))


def pl_erm(s: Setting) -> float:
    """Theorem 42 (prox-PL-SVRG): kappa L^2 d ln(1/delta)/(mu (eps n)^2 M) + (N-M) upsilon^2/(mu M (N-1)).

    The second term's mu is missing in the theorem's first part.
    """
    L, beta, mu, upsilon = s.need("Theorem 42", "L", "beta", "mu", "upsilon")
    private = beta / mu * L**2 * s.d * s.log / (mu * (s.epsilon * s.n) ** 2 * s.M)
    return private + s.between * upsilon**2 / (mu * s.M)


def nonconvex_isrl(s: Setting) -> float:
    """Theorem 44 (prox-SPIDER), of the squared gradient mapping; p = sqrt(d ln(1/delta)) / (eps n sqrt M):

    (sqrt(L beta Delta) p)^(4/3) + L^2 p^2 + 1{M < N} (L sqrt(beta Delta) p / sqrt(n M) + L^2 / (M n)).
    """
    L, beta, Delta = s.need("Theorem 44", "L", "beta", "Delta")
    p = math.sqrt(s.d * s.log) / (s.epsilon * s.n * math.sqrt(s.M))
    drawn = L * math.sqrt(beta * Delta) * p / math.sqrt(s.n * s.M) + L**2 / (s.M * s.n)
    return math.pow(math.sqrt(L * beta * Delta) * p, 4 / 3) + (L * p) ** 2 + (drawn if s.M < s.N else 0.0)


def convex_central(s: Setting) -> float:
    """Theorem 38 (shuffled MB-SGD), also central: L D (1 / sqrt(n M) + sqrt(d ln(1/delta)) / (eps n N))."""
    L, D = s.need("Theorem 38", "L", "D")
    return L * D * (1 / math.sqrt(s.n * s.M) + math.sqrt(s.d * s.log) / (s.epsilon * s.n * s.N))


def strongly_convex_central(s: Setting) -> float:
    """Theorem 38 (shuffled MB-SGD), also central: (L^2/mu)(1 / (n M) + d ln(1/delta) / (eps n N)^2)."""
    L, mu = s.need("Theorem 38", "L", "mu")
    return L**2 / mu * (1 / (s.n * s.M) + s.d * s.log / (s.epsilon * s.n * s.N) ** 2)


def convex_isrl_lower(s: Setting) -> float:
    """Theorem 35: phi D / sqrt(N n) + L D min(1, sqrt d / (eps n sqrt N)), for M = N and C = 1."""
    L, D, phi = s.need("Theorem 35", "L", "D", "phi")
    private = L * D * min(1.0, math.sqrt(s.d) / (s.epsilon * s.n * math.sqrt(s.N)))
    return phi * D / math.sqrt(s.N * s.n) + private


def strongly_convex_isrl_lower(s: Setting) -> float:
    """Theorem 35: phi^2 / (mu n N) + L D min(1, d / ((eps n)^2 N)), for M = N, C = 1; hard at L = mu D.

    Written as (L^2 / mu) min(...), which is L D at the hard instance.
    """
    L, mu, phi = s.need("Theorem 35", "L", "mu", "phi")
    return phi**2 / (mu * s.n * s.N) + L**2 / mu * min(1.0, s.d / ((s.epsilon * s.n) ** 2 * s.N))


def convex_erm_lower(s: Setting) -> float:
    """Theorem 133: L D min(1, sqrt d / (eps n sqrt N)), for M = N."""
    L, D = s.need("Theorem 133", "L", "D")
    return L * D * min(1.0, math.sqrt(s.d) / (s.epsilon * s.n * math.sqrt(s.N)))


def strongly_convex_erm_lower(s: Setting) -> float:
    """Theorem 133: (L^2 / mu) min(1, d / ((eps n)^2 N)), for M = N; L D at the hard instance L = mu D."""
    L, mu = s.need("Theorem 133", "L", "mu")
    return L**2 / mu * min(1.0, s.d / ((s.epsilon * s.n) ** 2 * s.N))


def convex_central_lower(s: Setting) -> float:
    """Theorems 123 and 134, empirical risk: L D min(1, sqrt d / (eps n N))."""
    L, D = s.need("Theorem 123", "L", "D")
    return L * D * min(1.0, math.sqrt(s.d) / (s.epsilon * s.n * s.N))


def strongly_convex_central_lower(s: Setting) -> float:
    """Theorems 123 and 134, empirical risk: (L^2 / mu) min(1, d / (eps n N)^2), L D at L = mu D."""
    L, mu = s.need("Theorem 123", "L", "mu")
    return L**2 / mu * min(1.0, s.d / (s.epsilon * s.n * s.N) ** 2)


def nonconvex_isrl_lower(s: Setting) -> float:
    """Theorem 46, of the squared gradient: L^2 min(1, d ln(1/delta) / ((eps n)^2 N)), for M = N."""
    (L,) = s.need("Theorem 46", "L")
    return L**2 * min(1.0, s.d * s.log / ((s.epsilon * s.n) ** 2 * s.N))


def nonconvex_central_lower(s: Setting) -> float:
    """Theorem 46, of the squared gradient: L^2 min(1, d ln(1/delta) / (eps n N)^2)."""
    (L,) = s.need("Theorem 46", "L")
    return L**2 * min(1.0, s.d * s.log / (s.epsilon * s.n * s.N) ** 2)


@dataclass(frozen=True)
class Bound:
    """One bound.

    Args:
        functions: convex, strongly convex, proximal-PL or non-convex.
        trust: ISRL or central.
        risk: "population", "empirical" or "squared gradient".
        side: upper or lower.
        source: algorithm and theorem.
        symbols: constants that it needs.
        value: the bound.
        everyone: whether it is stated for M = N only.
    """

    functions: str
    trust: str
    risk: str
    side: str
    source: str
    symbols: tuple[str, ...]
    value: Callable[[Setting], float]
    everyone: bool = False


_C, _S, _P, _N = "convex", "strongly convex", "proximal-PL", "non-convex"
_LD, _LM = ("L", "D"), ("L", "mu")
BOUNDS = (
    Bound(_C, "ISRL", "population", "upper", "noisy MB-SGD, Theorem 34", _LD, convex_isrl),
    Bound(
        _C, "ISRL", "population", "upper", "accelerated one-pass, Theorem 36", (*_LD, "beta"), convex_one_pass
    ),
    Bound(_C, "ISRL", "population", "lower", "Theorem 35", _LD, convex_isrl_lower, True),
    Bound(_C, "ISRL", "empirical", "upper", "accelerated ERM, Theorem 37", _LD, convex_erm),
    Bound(_C, "ISRL", "empirical", "lower", "Theorem 133", _LD, convex_erm_lower, True),
    Bound(_C, "central", "population", "upper", "shuffled MB-SGD, Theorem 38", _LD, convex_central),
    Bound(_C, "central", "empirical", "lower", "Theorems 123, 134", _LD, convex_central_lower),
    Bound(_S, "ISRL", "population", "upper", "noisy MB-SGD, Theorem 34", _LM, strongly_convex_isrl),
    Bound(
        _S,
        "ISRL",
        "population",
        "upper",
        "accelerated one-pass, Theorem 36",
        (*_LM, "beta"),
        strongly_convex_one_pass,
    ),
    Bound(_S, "ISRL", "population", "lower", "Theorem 35", _LM, strongly_convex_isrl_lower, True),
    Bound(_S, "ISRL", "empirical", "upper", "accelerated ERM, Theorem 37", _LM, strongly_convex_erm),
    Bound(_S, "ISRL", "empirical", "lower", "Theorem 133", _LM, strongly_convex_erm_lower, True),
    Bound(_S, "central", "population", "upper", "shuffled MB-SGD, Theorem 38", _LM, strongly_convex_central),
    Bound(_S, "central", "empirical", "lower", "Theorems 123, 134", _LM, strongly_convex_central_lower),
    Bound(_P, "ISRL", "population", "upper", "prox-SGD, Theorem 40", (*_LM, "beta"), pl_isrl),
    Bound(_P, "ISRL", "empirical", "upper", "prox-PL-SVRG, Theorem 42", (*_LM, "beta"), pl_erm),
    Bound(
        _N,
        "ISRL",
        "squared gradient",
        "upper",
        "prox-SPIDER, Theorem 44",
        ("L", "beta", "Delta"),
        nonconvex_isrl,
    ),
    Bound(_N, "ISRL", "squared gradient", "lower", "Theorem 46", ("L",), nonconvex_isrl_lower, True),
    Bound(_N, "central", "squared gradient", "lower", "Theorem 46", ("L",), nonconvex_central_lower),
)


def applying(s: Setting) -> list[tuple[Bound, float | None, str]]:
    """Return every bound with its value, or None and why it does not apply to the setting."""
    return [(bound, *_evaluated(bound, s)) for bound in BOUNDS]


def _evaluated(bound: Bound, s: Setting) -> tuple[float | None, str]:
    if bound.everyone and s.M < s.N:
        return None, f"stated for M = N, here {s.M} of {s.N}"
    missing = s.missing(*bound.symbols)
    if missing:
        return None, f"needs assumptions.{', assumptions.'.join(missing)}"
    return bound.value(s), ""
