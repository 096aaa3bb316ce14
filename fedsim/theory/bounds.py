"""Excess-risk bounds of the thesis, with every constant and logarithmic factor in n, R, N set to one.

A. Lowy, thesis (USC 2023), chapter 3 and appendix B. They are orders of magnitude: measured excess risk
can be plotted beside them to compare slopes and gaps, never heights. ln(1/delta) is kept where the thesis
prints it.

ISRL: every silo protects its transcript and trusts no other party. SDP: silos trust a shuffler, or two
aggregators of which at least one follows the protocol. Central: the server is trusted; such a lower bound
holds for SDP and ISRL too. For the proximal-PL and the non-convex class see each function's measure.

With one noise on the sum over silos instead of one in every silo (SDP), N^2 takes the place of M (one pass,
which counts on no draw of silos: M^2). P_vec's variance has ln(d/delta)^2 where a Gaussian sum's has
ln(1/delta), and over many rounds composition adds a third logarithm; they are kept where the thesis prints
them, but for factors n, R and N in them. These bounds are for silos of equal n, eps, delta and weight.

Silos that differ: upper bounds under ISRL-DP have what Theorem 140 puts in place of (n, eps, delta) and
of weights (`fedsim.theory.symbols`); lower and central bounds are proven for equal silos only. Lower
ISRL bounds hold for algorithms that compose as advanced composition does (C = 1) and spend at most about
1/n a round. What a setting can be checked for is in `fedsim.theory.bound_table`.
"""

from __future__ import annotations

import math

from fedsim.theory.symbols import Symbols


def convex_isrl(s: Symbols) -> float:
    """Theorem 34 (noisy MB-SGD): (L D / sqrt M)(1 / sqrt n + sqrt(d ln(1/delta)) / (eps n))."""
    L, D = s.need("Theorem 34", "L", "D")
    return L * D * (1 / math.sqrt(s.n * s.M) + math.sqrt(s.d * s.xi))


def convex_sdp(s: Symbols) -> float:
    """Theorem 38 (shuffled MB-SGD): L D (1 / sqrt(n M) + sqrt(d ln(1/delta)) / (eps n N))."""
    L, D = s.need("Theorem 38", "L", "D")
    return L * D * (1 / math.sqrt(s.n * s.M) + math.sqrt(s.d * s.log) / (s.epsilon * s.n * s.N))


def strongly_convex_isrl(s: Symbols) -> float:
    """Theorem 34 (noisy MB-SGD): (L^2 / (mu M))(1 / n + d ln(1/delta) / (eps n)^2)."""
    L, mu = s.need("Theorem 34", "L", "mu")
    return L**2 / mu * (1 / (s.n * s.M) + s.d * s.xi)


def strongly_convex_sdp(s: Symbols) -> float:
    """Theorem 38 (shuffled MB-SGD): (L^2/mu)(1 / (n M) + d ln(1/delta) / (eps n N)^2)."""
    L, mu = s.need("Theorem 38", "L", "mu")
    return L**2 / mu * (1 / (s.n * s.M) + s.d * s.log / (s.epsilon * s.n * s.N) ** 2)


def convex_one_pass(s: Symbols) -> float:
    """Theorem 36 (accelerated, one pass), heterogeneous silos; with p = sqrt(d ln(1/delta)) / (eps n sqrt M):

    phi D / sqrt(n M) + (beta^(1/4) L D^(3/2) p)^(4/5)
    + sqrt((N - M)/(N - 1)) upsilon L^(1/5) D^(4/5) beta^(-1/5) (p / M^(5/2))^(1/5).

    The last term is (B.19): upsilon D / sqrt(M R) at R = n / K rounds of the theorem's K.
    """
    return _convex_one_pass(s, "Theorem 36", math.sqrt(s.d * s.xi))


def convex_one_pass_sdp(s: Symbols) -> float:
    """Theorem 39 (accelerated, one pass): that of Theorem 36 with p = sqrt d ln(d/delta) / (eps n M).

    The last term is upsilon D / sqrt(M R) at R = n / K rounds of K = (L/(beta D))^(2/5) n (p)^(2/5).
    """
    return _convex_one_pass(s, "Theorem 39", _one_pass_noise(s))


def _convex_one_pass(s: Symbols, theorem: str, p: float) -> float:
    L, beta, D, phi, upsilon = s.need(theorem, "L", "beta", "D", "phi", "upsilon")
    silos = upsilon * L**0.2 * D**0.8 * beta**-0.2 * (p / s.M**2.5) ** 0.2
    private = (beta**0.25 * L * D**1.5 * p) ** 0.8
    return float(phi * D / math.sqrt(s.n * s.M) + private + math.sqrt(s.between) * silos)


def strongly_convex_one_pass(s: Symbols) -> float:
    """Theorem 36: phi^2/(mu n M) + (L^2/mu) sqrt(kappa) d ln(1/delta)/((eps n)^2 M) + drawn silos' variance.

    The first term's mu is missing in (B.20) and present in (3.7); the last is
    upsilon^2 (N - M) / ((N - 1) mu sqrt(kappa) M).
    """
    return _strongly_convex_one_pass(s, "Theorem 36", s.d * s.xi)


def strongly_convex_one_pass_sdp(s: Symbols) -> float:
    """Theorem 39: that of Theorem 36 with d ln(d/delta)^2/(eps n M)^2 for the noise.

    The thesis prints ln(1/delta) there, one logarithm less than in V^2, and no mu in the first term.
    """
    return _strongly_convex_one_pass(s, "Theorem 39", _one_pass_noise(s) ** 2)


def _strongly_convex_one_pass(s: Symbols, theorem: str, variance: float) -> float:
    L, beta, mu, phi, upsilon = s.need(theorem, "L", "beta", "mu", "phi", "upsilon")
    kappa = beta / mu
    private = L**2 / mu * math.sqrt(kappa) * variance
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
    return _pl(s, s.d * s.xi)


def pl_sdp(s: Symbols) -> float:
    """Theorem 40 (prox-SGD): (L^2 / mu)(kappa^2 d ln(d/delta)^2 / (eps n N)^2 + kappa / (M n))."""
    return _pl(s, s.d * (_oracle_log(s) / (s.epsilon * s.n * s.N)) ** 2)


def _pl(s: Symbols, variance: float) -> float:
    L, beta, mu = s.need("Theorem 40", "L", "beta", "mu")
    kappa = beta / mu
    return L**2 / mu * (kappa**2 * variance + kappa / (s.M * s.n))


def pl_erm(s: Symbols) -> float:
    """Theorem 42 (prox-PL-SVRG): kappa L^2 d ln(1/delta)/(mu (eps n)^2 M) + (N-M) upsilon^2/(mu M (N-1)).

    The second term's mu is missing in the theorem's first part.
    """
    return _pl_erm(s, s.d * s.xi)


def pl_erm_sdp(s: Symbols) -> float:
    """Theorem 42 (prox-PL-SVRG): kappa L^2 d ln(1/delta)/(mu (eps n N)^2) + (N-M) upsilon^2/(mu M (N-1))."""
    return _pl_erm(s, s.d * s.log / (s.epsilon * s.n * s.N) ** 2)


def _pl_erm(s: Symbols, variance: float) -> float:
    L, beta, mu, upsilon = s.need("Theorem 42", "L", "beta", "mu", "upsilon")
    return beta / mu * L**2 / mu * variance + s.between * upsilon**2 / (mu * s.M)


def nonconvex_isrl(s: Symbols) -> float:
    """Theorem 44 (prox-SPIDER), of the squared gradient mapping; p = sqrt(d ln(1/delta)) / (eps n sqrt M):

    (sqrt(L beta Delta) p)^(4/3) + L^2 p^2 + 1{M < N} (L sqrt(beta Delta) p / sqrt(n M) + L^2 / (M n)).
    """
    return _nonconvex(s, "Theorem 44", math.sqrt(s.d * s.xi))


def nonconvex_sdp(s: Symbols) -> float:
    """Theorem 45 (prox-SPIDER): that of Theorem 44 with p = sqrt(d ln(d/delta)^3) / (eps n N)."""
    return _nonconvex(s, "Theorem 45", math.sqrt(s.d * _oracle_log(s) ** 3) / (s.epsilon * s.n * s.N))


def _nonconvex(s: Symbols, theorem: str, p: float) -> float:
    L, beta, Delta = s.need(theorem, "L", "beta", "Delta")
    drawn = L * math.sqrt(beta * Delta) * p / math.sqrt(s.n * s.M) + L**2 / (s.M * s.n)
    return math.pow(math.sqrt(L * beta * Delta) * p, 4 / 3) + (L * p) ** 2 + (drawn if s.M < s.N else 0.0)


def _oracle_log(s: Symbols) -> float:
    """ln(d / delta), of which P_vec's variance has the square (Lemma 136)."""
    return math.log(s.d / s.delta)


def _one_pass_noise(s: Symbols) -> float:
    """Square root of P_vec's variance over a pass, in the unit of L: sqrt d ln(d/delta) / (eps n M)."""
    return math.sqrt(s.d) * _oracle_log(s) / (s.epsilon * s.n * s.M)


def convex_isrl_lower(s: Symbols) -> float:
    """Theorem 35: phi D / sqrt(N n) + L D min(1, sqrt d / (eps n sqrt N)), for M = N and C = 1."""
    D, phi = s.need("Theorem 35", "D", "phi")
    return phi * D / math.sqrt(s.N * s.n) + convex_erm_lower(s)


def strongly_convex_isrl_lower(s: Symbols) -> float:
    """Theorem 35: phi^2 / (mu n N) + L D min(1, d / ((eps n)^2 N)), for M = N and C = 1.

    L D is at most 2 L^2 / mu: gradients of such a function differ by mu D across the set.
    """
    mu, phi = s.need("Theorem 35", "mu", "phi")
    return phi**2 / (mu * s.n * s.N) + strongly_convex_erm_lower(s)


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
