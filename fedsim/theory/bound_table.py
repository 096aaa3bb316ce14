"""The thesis's bounds for a setting, and what their theorems require of it beyond its constants.

Each condition is a check that is met or not. One on epsilon applies to every silo; the silo nearest to
breaking it is shown. The asymptotic delta = o(1/(n N)) is read as delta < 1/(n N). Requirements on an
algorithm that do not follow from a setting (its C, its epsilon a round) are in `fedsim.theory.bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fedsim.theory import bounds, theorem
from fedsim.theory.symbols import Symbols
from fedsim.theory.theorem import Check, EpsilonRange, at_least, at_most, delta_below_half

Conditions = Callable[[Symbols], tuple[Check, ...]]


def one_sum(s: Symbols) -> tuple[Check, ...]:
    """Theorem 39: the range of P_vec."""
    return (_range(s, theorem.ORACLE), delta_below_half(s.delta, "privacy.delta"))


def sums_of_silos(s: Symbols) -> tuple[Check, ...]:
    """Theorem 40, SDP."""
    least = s.N * min(s.epsilon / 2, 1.0)
    return (*proximal_pl(s), at_least("M >= N min(eps/2, 1)", "participation", s.M, least))


def sums_of_restarts(s: Symbols) -> tuple[Check, ...]:
    """Theorem 42, SDP; its least M where Delta is stated."""
    if s.Delta is None:
        return (_range(s, theorem.RESTARTS),)
    L, beta, Delta = s.need("Theorem 42", "L", "beta", "Delta")
    private = (s.d * math.log(s.d / s.delta) ** 3 / (beta * Delta)) ** (3 / 8)
    least = min((s.epsilon * s.n * L) ** 0.75 / s.n**0.25 * private, s.N)
    condition = "M >= min((eps n L)^(3/4) (d ln(d/delta)^3/(beta Delta))^(3/8)/n^(1/4), N)"
    return (_range(s, theorem.RESTARTS), at_least(condition, "participation", s.M, least))


def proximal_pl(s: Symbols) -> tuple[Check, ...]:
    """Theorem 40."""
    beta, mu = s.need("Theorem 40", "beta", "mu")
    most = max(silo.delta for silo in s.silos)
    return (
        _range(s, theorem.PROX_SGD),
        delta_below_half(most, "privacy.delta"),
        at_least("n >= kappa", "partition", s.n, beta / mu),
    )


def zcdp(s: Symbols) -> tuple[Check, ...]:
    """Theorem 44; q >= 1 says that the noise leaves a step worth taking, else the theorem returns w_0."""
    L, beta, Delta = s.need("Theorem 44", "L", "beta", "Delta")
    period = (L / (8 * math.sqrt(s.d * s.xi * Delta * beta))) ** (2 / 3)
    return (_range(s, theorem.SPIDER), at_least("q >= 1", "privacy.epsilon", period, 1))


def shuffled(s: Symbols) -> tuple[Check, ...]:
    """Theorem 38, with the least R that it can have: max(n^2 N^2 eps^2 / M, N / M, ...)."""
    least = max((s.n * s.N * s.epsilon) ** 2 / s.M, s.N / s.M, 1.0)
    M = 16 * math.log(18 * least * s.M**2 / (s.N * s.delta))
    return (_range(s, theorem.SHUFFLED), at_least("M >= 16 ln(18 R M^2/(N delta))", "participation", s.M, M))


def reduction(s: Symbols) -> tuple[Check, ...]:
    """Theorems 35, 133 and 46: from ISRL to central through amplification by shuffling.

    The theorem requires N >= 16 ln(2/(delta_r n)) with a round's delta_r <= delta; delta makes it necessary.
    """
    needed = 16 * math.log(2 / (s.delta * s.n))
    return (
        _range(s, EpsilonRange("eps <= sqrt N", lambda _: math.sqrt(s.N))),
        _small_delta(s),
        at_least("N >= 16 ln(2/(delta n))", "partition", s.N, needed),
    )


def one_step(s: Symbols) -> tuple[Check, ...]:
    """Theorem 59: its T is at most n."""
    k, r, beta, D = s.need("Theorem 59", "moment", "moment_bound", "beta", "D")
    p, gain = math.sqrt(s.d * bounds.XI["gaussian isrl"](s)), beta * D / r
    noisy = math.pow(gain, 2 * k / (5 * k - 1)) * math.pow(p, -(2 * k - 2) / (5 * k - 1))
    rounds = min(noisy, math.sqrt(gain) * math.pow(s.n * s.N, 0.25))
    return (at_most("T <= n", "assumptions.beta", rounds, s.n),)


def well_conditioned(s: Symbols) -> tuple[Check, ...]:
    """Theorems 61 and 63: kappa <= n / ln n."""
    beta, mu = s.need("Theorems 61 and 63", "beta", "mu")
    return (at_most("kappa <= n/ln n", "assumptions.beta", beta / mu, s.n / max(1.0, math.log(s.n))),)


def many_features(s: Symbols) -> tuple[Check, ...]:
    """Theorems 57 and 58: d >= 40 and rho <= d, rho = mu^2 / 2."""
    rho = 1 / (2 * bounds.XI["gaussian central"](s) * (s.n * s.N) ** 2)
    return (at_least("d >= 40", "data", s.d, 40), at_most("rho <= d", "privacy.epsilon", rho, s.d))


def _small_delta(s: Symbols) -> Check:
    largest = max(silo.delta for silo in s.silos)
    bound = 1 / (s.n * s.N)
    return Check("delta = o(1/(n N))", "privacy.delta", largest, f"below {bound:.6g}", largest < bound)


def _only(stated: EpsilonRange) -> Conditions:
    return lambda s: (_range(s, stated),)


def _range(s: Symbols, stated: EpsilonRange) -> Check:
    tightest = max(s.silos, key=lambda silo: silo.epsilon / stated.most(silo.delta))
    return stated.check(tightest, "privacy.epsilon")


@dataclass(frozen=True)
class Bound:
    """One bound."""

    functions: str  # convex, strongly convex, proximal-PL or non-convex
    risk: str  # "population", "empirical" or "squared gradient"
    source: str  # algorithm and theorem
    symbols: tuple[str, ...]  # constants that it needs
    formula: Callable[..., float]  # of a setting, xi and these constants
    noise: str  # xi, as `bounds.XI` names it
    asks: Conditions  # what else its theorem requires of a setting
    trust: str  # ISRL, SDP or central
    side: str  # upper or lower
    everyone: bool = False  # whether it is stated for M = N only
    alike: bool = False  # whether it is stated for silos of equal n, eps, delta and weight only

    def value(self, s: Symbols) -> float:
        """The bound; InputError where a constant is not stated or epsilon is unlimited."""
        constants = s.need(self.source, *self.symbols)
        return self.formula(s, bounds.XI[self.noise](s), *constants)


_upper = partial(Bound, trust="ISRL", side="upper")
_lower = partial(Bound, trust="ISRL", side="lower", asks=reduction, everyone=True, alike=True)
_sdp = partial(Bound, trust="SDP", side="upper", alike=True)
_central_lower = partial(Bound, trust="central", side="lower", asks=lambda s: (_small_delta(s),), alike=True)
_clipped = partial(_upper, noise="gaussian isrl", everyone=True)
_heavy_lower = partial(_central_lower, noise="gaussian central", asks=many_features)
_C, _S, _P, _N = "convex", "strongly convex", "proximal-PL", "non-convex"
_POP, _ERM, _SQ = "population", "empirical", "squared gradient"
_LD, _LM, _LDM = ("L", "D"), ("L", "mu"), ("L", "D", "mu")
_SGD, _PASS = "noisy MB-SGD, Theorem 34", "accelerated one-pass, Theorem 36"
_FULL = "accelerated ERM, Theorem 37"
_SHUFFLED, _SUMMED = "shuffled MB-SGD, Theorem 38", "accelerated one-pass, Theorem 39"
_KR = ("moment", "moment_bound")
_KRD, _KRM = (*_KR, "D"), (*_KR, "mu")
_KRDB, _KRMB = (*_KRD, "beta"), (*_KRM, "beta")
_LDB, _LMB, _LBD = (*_LD, "beta"), (*_LM, "beta"), ("L", "beta", "Delta")
BOUNDS = (
    _upper(_C, _POP, _SGD, _LD, bounds.convex, "isrl", _only(theorem.ADVANCED_COMPOSITION)),
    _upper(_C, _POP, _PASS, _LDB, bounds.convex_one_pass, "isrl", _only(theorem.ONE_GAUSSIAN)),
    _lower(_C, _POP, "Theorem 35", _LD, bounds.convex_lower, "isrl lower"),
    _upper(_C, _ERM, _FULL, _LD, bounds.convex_erm, "isrl", _only(theorem.ADVANCED_COMPOSITION)),
    _lower(_C, _ERM, "Theorem 133", _LD, bounds.convex_erm_lower, "isrl lower"),
    _sdp(_C, _POP, _SHUFFLED, _LD, bounds.convex, "sdp", shuffled),
    _sdp(_C, _POP, _SUMMED, _LDB, bounds.convex_one_pass, "one pass", one_sum),
    _central_lower(_C, _ERM, "Theorems 123, 134", _LD, bounds.convex_erm_lower, "central lower"),
    _upper(_S, _POP, _SGD, _LM, bounds.strongly_convex, "isrl", _only(theorem.ADVANCED_COMPOSITION)),
    _upper(_S, _POP, _PASS, _LMB, bounds.strongly_convex_one_pass, "isrl", _only(theorem.ONE_GAUSSIAN)),
    _lower(_S, _POP, "Theorem 35", _LDM, bounds.strongly_convex_lower, "isrl lower"),
    _upper(_S, _ERM, _FULL, _LM, bounds.strongly_convex_erm, "isrl", _only(theorem.ADVANCED_COMPOSITION)),
    _lower(_S, _ERM, "Theorem 133", _LDM, bounds.strongly_convex_erm_lower, "isrl lower"),
    _sdp(_S, _POP, _SHUFFLED, _LM, bounds.strongly_convex, "sdp", shuffled),
    _sdp(_S, _POP, _SUMMED, _LMB, bounds.strongly_convex_one_pass, "one pass", one_sum),
    _central_lower(_S, _ERM, "Theorems 123, 134", _LDM, bounds.strongly_convex_erm_lower, "central lower"),
    _upper(_P, _POP, "prox-SGD, Theorem 40", _LMB, bounds.pl, "isrl", proximal_pl),
    _upper(_P, _ERM, "prox-PL-SVRG, Theorem 42", _LMB, bounds.pl_erm, "isrl", _only(theorem.RESTARTS)),
    _sdp(_P, _POP, "prox-SGD, Theorem 40", _LMB, bounds.pl, "oracle", sums_of_silos),
    _sdp(_P, _ERM, "prox-PL-SVRG, Theorem 42", _LMB, bounds.pl_erm, "sdp", sums_of_restarts),
    _upper(_N, _SQ, "prox-SPIDER, Theorem 44", _LBD, bounds.nonconvex, "isrl", zcdp),
    _sdp(_N, _SQ, "prox-SPIDER, Theorem 45", _LBD, bounds.nonconvex, "composed", _only(theorem.SPIDER_SDP)),
    _lower(_N, _SQ, "Theorem 46", ("L",), bounds.nonconvex_lower, "isrl lower log"),
    _central_lower(_N, _SQ, "Theorem 46", ("L",), bounds.nonconvex_lower, "sdp"),
    _clipped(_C, _POP, "clipped AC-SA, Theorem 59", _KRDB, bounds.clipped_convex, asks=one_step),
    _heavy_lower(_C, _POP, "Theorem 57", _KRD, bounds.heavy_lower),
    _clipped(_S, _POP, "clipped SGD, Theorem 61", _KRMB, bounds.clipped_curved, asks=well_conditioned),
    _heavy_lower(_S, _POP, "Theorem 58", _KRM, bounds.heavy_curved_lower),
    _clipped(_P, _POP, "clipped prox-SGD, Theorem 63", _KRMB, bounds.clipped_pl, asks=well_conditioned),
)


def applying(s: Symbols) -> list[tuple[Bound, float | None, str]]:
    """Return every bound with its value, or None and why it does not apply to the setting."""
    return [(bound, *_evaluated(bound, s)) for bound in BOUNDS]


def conditions(bound: Bound, s: Symbols) -> tuple[Check, ...]:
    """The conditions of the bound's theorem, met or not; a bound is printed with them either way.

    Empty where a constant of the bound is not stated.
    """
    if s.missing(*bound.symbols):
        return ()
    even = "even: every silo as likely as another"
    drawn = Check("S_r uniformly random", "participation", "uneven", even, s.even)
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
