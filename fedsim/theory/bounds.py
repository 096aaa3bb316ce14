"""Excess-risk bounds of the thesis, with every constant and logarithmic factor in n, R, N set to one.

A. Lowy, thesis (USC 2023), chapter 3 and appendix B. They are orders of magnitude: measured excess risk
can be plotted beside them to compare slopes and gaps, never heights. ln(1/delta) is kept where the thesis
prints it. ISRL: every silo protects its own transcript and trusts nobody. SDP: silos trust a shuffler, or two
aggregators of which one keeps to the protocol (`fedsim.theory.shuffle_bounds`). Central: the server is
trusted; a lower bound of that holds for SDP and ISRL too. For the proximal-PL and the non-convex class see
each function's measure.

Silos that differ: upper bounds under ISRL-DP have what Theorem 140 puts in place of (n, eps, delta) and
of weights (`fedsim.theory.symbols`); lower and central bounds are proven for equal silos only. Lower
ISRL bounds hold for algorithms that compose as advanced composition does (C = 1) and spend at most about
1/n a round. What a setting can be checked for is in `conditions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fedsim.theory.conditions import (
    Conditions,
    advanced_composition,
    central,
    one_gaussian,
    one_sum,
    proximal_pl,
    reduction,
    restarts,
    shuffled,
    sums_of_differences,
    sums_of_restarts,
    sums_of_silos,
    zcdp,
)
from fedsim.theory.shuffle_bounds import (
    convex_one_pass_sdp,
    convex_sdp,
    nonconvex_sdp,
    pl_erm_sdp,
    pl_sdp,
    strongly_convex_one_pass_sdp,
    strongly_convex_sdp,
)
from fedsim.theory.symbols import Symbols
from fedsim.theory.theorem import Check


def convex_isrl(s: Symbols) -> float:
    """Theorem 34 (noisy MB-SGD): (L D / sqrt M)(1 / sqrt n + sqrt(d ln(1/delta)) / (eps n))."""
    L, D = s.need("Theorem 34", "L", "D")
    return L * D * (1 / math.sqrt(s.n * s.M) + math.sqrt(s.d * s.xi))


def strongly_convex_isrl(s: Symbols) -> float:
    """Theorem 34 (noisy MB-SGD): (L^2 / (mu M))(1 / n + d ln(1/delta) / (eps n)^2)."""
    L, mu = s.need("Theorem 34", "L", "mu")
    return L**2 / mu * (1 / (s.n * s.M) + s.d * s.xi)


def convex_one_pass(s: Symbols) -> float:
    """Theorem 36 (accelerated, one pass), heterogeneous silos; with p = sqrt(d ln(1/delta)) / (eps n):

    phi D / sqrt(n M) + (beta^(1/4) L D^(3/2) p / sqrt M)^(4/5)
    + sqrt((N - M)/(N - 1)) upsilon L^(1/5) D^(4/5) beta^(-1/5) (p / M^3)^(1/5).

    The last term is (B.19): upsilon D / sqrt(M R) at R = n / K rounds of the theorem's K.
    """
    L, beta, D, phi, upsilon = s.need("Theorem 36", "L", "beta", "D", "phi", "upsilon")
    noise = math.sqrt(s.d * s.xi)  # p / sqrt M
    silos = upsilon * L**0.2 * D**0.8 * beta**-0.2 * (noise / s.M**2.5) ** 0.2
    private = (beta**0.25 * L * D**1.5 * noise) ** 0.8
    return float(phi * D / math.sqrt(s.n * s.M) + private + math.sqrt(s.between) * silos)


def strongly_convex_one_pass(s: Symbols) -> float:
    """Theorem 36: phi^2/(mu n M) + (L^2/mu) sqrt(kappa) d ln(1/delta)/((eps n)^2 M) + drawn silos' variance.

    The first term's mu is missing in (B.20) and present in (3.7); the last is
    upsilon^2 (N - M) / ((N - 1) mu sqrt(kappa) M).
    """
    L, beta, mu, phi, upsilon = s.need("Theorem 36", "L", "beta", "mu", "phi", "upsilon")
    kappa = beta / mu
    private = L**2 / mu * math.sqrt(kappa) * s.d * s.xi
    return phi**2 / (mu * s.n * s.M) + private + upsilon**2 * s.between / (mu * math.sqrt(kappa) * s.M)


def convex_erm(s: Symbols) -> float:
    """Theorem 37 (accelerated, empirical risk): L D sqrt(d ln(1/delta)) / (eps n sqrt M)."""
    L, D = s.need("Theorem 37", "L", "D")
    return L * D * math.sqrt(s.d * s.xi)


def strongly_convex_erm(s: Symbols) -> float:
    """Theorem 37 (accelerated, empirical risk): (L^2 / mu) d ln(1/delta) / ((eps n)^2 M)."""
    L, mu = s.need("Theorem 37", "L", "mu")
    return L**2 / mu * s.d * s.xi


def pl_isrl(s: Symbols) -> float:
    """Theorem 40 (prox-SGD): (L^2 / mu)(kappa^2 d ln(1/delta) / ((eps n)^2 M) + kappa / (M n))."""
    L, beta, mu = s.need("Theorem 40", "L", "beta", "mu")
    kappa = beta / mu
    return L**2 / mu * (kappa**2 * s.d * s.xi + kappa / (s.M * s.n))


def pl_erm(s: Symbols) -> float:
    """Theorem 42 (prox-PL-SVRG): kappa L^2 d ln(1/delta)/(mu (eps n)^2 M) + (N-M) upsilon^2/(mu M (N-1)).

    The second term's mu is missing in the theorem's first part.
    """
    L, beta, mu, upsilon = s.need("Theorem 42", "L", "beta", "mu", "upsilon")
    private = beta / mu * L**2 / mu * s.d * s.xi
    return private + s.between * upsilon**2 / (mu * s.M)


def nonconvex_isrl(s: Symbols) -> float:
    """Theorem 44 (prox-SPIDER), of the squared gradient mapping; p = sqrt(d ln(1/delta)) / (eps n sqrt M):

    (sqrt(L beta Delta) p)^(4/3) + L^2 p^2 + 1{M < N} (L sqrt(beta Delta) p / sqrt(n M) + L^2 / (M n)).
    """
    L, beta, Delta = s.need("Theorem 44", "L", "beta", "Delta")
    p = math.sqrt(s.d * s.xi)
    drawn = L * math.sqrt(beta * Delta) * p / math.sqrt(s.n * s.M) + L**2 / (s.M * s.n)
    return math.pow(math.sqrt(L * beta * Delta) * p, 4 / 3) + (L * p) ** 2 + (drawn if s.M < s.N else 0.0)


def convex_isrl_lower(s: Symbols) -> float:
    """Theorem 35: phi D / sqrt(N n) + L D min(1, sqrt d / (eps n sqrt N)), for M = N and C = 1."""
    L, D, phi = s.need("Theorem 35", "L", "D", "phi")
    private = L * D * min(1.0, math.sqrt(s.d) / (s.epsilon * s.n * math.sqrt(s.N)))
    return phi * D / math.sqrt(s.N * s.n) + private


def strongly_convex_isrl_lower(s: Symbols) -> float:
    """Theorem 35: phi^2 / (mu n N) + L D min(1, d / ((eps n)^2 N)), for M = N and C = 1.

    L D is at most 2 L^2 / mu: gradients of such a function differ by mu D across the set.
    """
    L, D, mu, phi = s.need("Theorem 35", "L", "D", "mu", "phi")
    return phi**2 / (mu * s.n * s.N) + L * D * min(1.0, s.d / ((s.epsilon * s.n) ** 2 * s.N))


def convex_erm_lower(s: Symbols) -> float:
    """Theorem 133: L D min(1, sqrt d / (eps n sqrt N)), for M = N."""
    L, D = s.need("Theorem 133", "L", "D")
    return L * D * min(1.0, math.sqrt(s.d) / (s.epsilon * s.n * math.sqrt(s.N)))


def strongly_convex_erm_lower(s: Symbols) -> float:
    """Theorem 133: L D min(1, d / ((eps n)^2 N)), for M = N."""
    L, D = s.need("Theorem 133", "L", "D")
    return L * D * min(1.0, s.d / ((s.epsilon * s.n) ** 2 * s.N))


def convex_central_lower(s: Symbols) -> float:
    """Theorems 123 and 134, empirical risk: L D min(1, sqrt d / (eps n N))."""
    L, D = s.need("Theorem 123", "L", "D")
    return L * D * min(1.0, math.sqrt(s.d) / (s.epsilon * s.n * s.N))


def strongly_convex_central_lower(s: Symbols) -> float:
    """Theorems 123 and 134, empirical risk: L D min(1, d / (eps n N)^2)."""
    L, D = s.need("Theorem 123", "L", "D")
    return L * D * min(1.0, s.d / (s.epsilon * s.n * s.N) ** 2)


def nonconvex_isrl_lower(s: Symbols) -> float:
    """Theorem 46, of the squared gradient: L^2 min(1, d ln(1/delta) / ((eps n)^2 N)), for M = N."""
    (L,) = s.need("Theorem 46", "L")
    return L**2 * min(1.0, s.d * s.log / ((s.epsilon * s.n) ** 2 * s.N))


def nonconvex_central_lower(s: Symbols) -> float:
    """Theorem 46, of the squared gradient: L^2 min(1, d ln(1/delta) / (eps n N)^2)."""
    (L,) = s.need("Theorem 46", "L")
    return L**2 * min(1.0, s.d * s.log / (s.epsilon * s.n * s.N) ** 2)


@dataclass(frozen=True)
class Bound:
    """One bound.

    Args:
        functions: convex, strongly convex, proximal-PL or non-convex.
        risk: "population", "empirical" or "squared gradient".
        source: algorithm and theorem.
        symbols: constants that it needs.
        value: the bound.
        asks: what else its theorem asks of a setting.
        trust: ISRL, SDP or central.
        side: upper or lower.
        everyone: whether it is stated for M = N only.
        alike: whether it is stated for silos of equal n, eps, delta and weight only.
    """

    functions: str
    risk: str
    source: str
    symbols: tuple[str, ...]
    value: Callable[[Symbols], float]
    asks: Conditions
    trust: str
    side: str
    everyone: bool = False
    alike: bool = False


_upper = partial(Bound, trust="ISRL", side="upper")
_lower = partial(Bound, trust="ISRL", side="lower", asks=reduction, everyone=True, alike=True)
_sdp = partial(Bound, trust="SDP", side="upper", alike=True)
_central_lower = partial(Bound, trust="central", side="lower", asks=central, alike=True)
_C, _S, _P, _N = "convex", "strongly convex", "proximal-PL", "non-convex"
_POP, _ERM, _SQ = "population", "empirical", "squared gradient"
_LD, _LM, _LDM = ("L", "D"), ("L", "mu"), ("L", "D", "mu")
_SGD, _PASS, _FULL = (
    "noisy MB-SGD, Theorem 34",
    "accelerated one-pass, Theorem 36",
    "accelerated ERM, Theorem 37",
)
_SHUFFLED, _SUMMED = "shuffled MB-SGD, Theorem 38", "accelerated one-pass, Theorem 39"
BOUNDS = (
    _upper(_C, _POP, _SGD, _LD, convex_isrl, advanced_composition),
    _upper(_C, _POP, _PASS, (*_LD, "beta"), convex_one_pass, one_gaussian),
    _lower(_C, _POP, "Theorem 35", _LD, convex_isrl_lower),
    _upper(_C, _ERM, _FULL, _LD, convex_erm, advanced_composition),
    _lower(_C, _ERM, "Theorem 133", _LD, convex_erm_lower),
    _sdp(_C, _POP, _SHUFFLED, _LD, convex_sdp, shuffled),
    _sdp(_C, _POP, _SUMMED, (*_LD, "beta"), convex_one_pass_sdp, one_sum),
    _central_lower(_C, _ERM, "Theorems 123, 134", _LD, convex_central_lower),
    _upper(_S, _POP, _SGD, _LM, strongly_convex_isrl, advanced_composition),
    _upper(_S, _POP, _PASS, (*_LM, "beta"), strongly_convex_one_pass, one_gaussian),
    _lower(_S, _POP, "Theorem 35", _LDM, strongly_convex_isrl_lower),
    _upper(_S, _ERM, _FULL, _LM, strongly_convex_erm, advanced_composition),
    _lower(_S, _ERM, "Theorem 133", _LDM, strongly_convex_erm_lower),
    _sdp(_S, _POP, _SHUFFLED, _LM, strongly_convex_sdp, shuffled),
    _sdp(_S, _POP, _SUMMED, (*_LM, "beta"), strongly_convex_one_pass_sdp, one_sum),
    _central_lower(_S, _ERM, "Theorems 123, 134", _LDM, strongly_convex_central_lower),
    _upper(_P, _POP, "prox-SGD, Theorem 40", (*_LM, "beta"), pl_isrl, proximal_pl),
    _upper(_P, _ERM, "prox-PL-SVRG, Theorem 42", (*_LM, "beta"), pl_erm, restarts),
    _sdp(_P, _POP, "prox-SGD, Theorem 40", (*_LM, "beta"), pl_sdp, sums_of_silos),
    _sdp(_P, _ERM, "prox-PL-SVRG, Theorem 42", (*_LM, "beta"), pl_erm_sdp, sums_of_restarts),
    _upper(_N, _SQ, "prox-SPIDER, Theorem 44", ("L", "beta", "Delta"), nonconvex_isrl, zcdp),
    _sdp(_N, _SQ, "prox-SPIDER, Theorem 45", ("L", "beta", "Delta"), nonconvex_sdp, sums_of_differences),
    _lower(_N, _SQ, "Theorem 46", ("L",), nonconvex_isrl_lower),
    _central_lower(_N, _SQ, "Theorem 46", ("L",), nonconvex_central_lower),
)


def applying(s: Symbols) -> list[tuple[Bound, float | None, str]]:
    """Return every bound with its value, or None and why it does not apply to the setting."""
    return [(bound, *_evaluated(bound, s)) for bound in BOUNDS]


def conditions(bound: Bound, s: Symbols) -> tuple[Check, ...]:
    """What the bound's theorem asks of the setting, met or not; a bound is printed with them either way.

    Empty where a constant of the bound is not stated.
    """
    if s.missing(*bound.symbols):
        return ()
    drawn = Check(
        "S_r uniformly random", "participation", "uneven", "even: every silo as likely as another", s.even
    )
    return (*bound.asks(s), *((drawn,) if s.M < s.N else ()))


def _evaluated(bound: Bound, s: Symbols) -> tuple[float | None, str]:
    if bound.everyone and s.M < s.N:
        return None, f"stated for M = N, here {s.M:g} of {s.N}"
    if bound.alike and s.differ:
        return None, f"stated for silos alike, here {', '.join(s.differ)} differ"
    missing = s.missing(*bound.symbols)
    if missing:
        return None, f"needs assumptions.{', assumptions.'.join(missing)}"
    return bound.value(s), ""
