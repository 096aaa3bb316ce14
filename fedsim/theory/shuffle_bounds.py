"""Upper bounds of the shuffle model (SDP): what `fedsim.theory.bounds` is for silos' own noise.

With one noise on the sum over silos instead of one in every silo, N^2 takes the place of M (one pass, which
counts on no draw of silos: M^2). P_vec's variance has ln(d/delta)^2 where a Gaussian sum's has ln(1/delta),
and over many rounds composition adds a third logarithm; they are kept where the thesis prints them, but for
factors n, R and N in them. For silos of equal n, eps, delta and weight.
"""

from __future__ import annotations

import math

from fedsim.theory.symbols import Symbols


def convex_sdp(s: Symbols) -> float:
    """Theorem 38 (shuffled MB-SGD): L D (1 / sqrt(n M) + sqrt(d ln(1/delta)) / (eps n N))."""
    L, D = s.need("Theorem 38", "L", "D")
    return L * D * (1 / math.sqrt(s.n * s.M) + math.sqrt(s.d * s.log) / (s.epsilon * s.n * s.N))


def strongly_convex_sdp(s: Symbols) -> float:
    """Theorem 38 (shuffled MB-SGD): (L^2/mu)(1 / (n M) + d ln(1/delta) / (eps n N)^2)."""
    L, mu = s.need("Theorem 38", "L", "mu")
    return L**2 / mu * (1 / (s.n * s.M) + s.d * s.log / (s.epsilon * s.n * s.N) ** 2)


def convex_one_pass_sdp(s: Symbols) -> float:
    """Theorem 39 (accelerated, one pass), heterogeneous silos; with p = sqrt d ln(d/delta) / (eps n M):

    phi D / sqrt(n M) + (beta^(1/4) L D^(3/2) p)^(4/5)
    + sqrt((N - M)/(N - 1)) upsilon L^(1/5) D^(4/5) beta^(-1/5) (p / M^(5/2))^(1/5).

    The last term is upsilon D / sqrt(M R) at R = n / K rounds of K = (L/(beta D))^(2/5) n (p)^(2/5).
    """
    L, beta, D, phi, upsilon = s.need("Theorem 39", "L", "beta", "D", "phi", "upsilon")
    p = _one_pass_noise(s)
    silos = upsilon * L**0.2 * D**0.8 * beta**-0.2 * (p / s.M**2.5) ** 0.2
    private = (beta**0.25 * L * D**1.5 * p) ** 0.8
    return float(phi * D / math.sqrt(s.n * s.M) + private + math.sqrt(s.between) * silos)


def strongly_convex_one_pass_sdp(s: Symbols) -> float:
    """Theorem 39: phi^2/(mu n M) + (L^2/mu) sqrt(kappa) d ln(d/delta)^2/(eps n M)^2 + drawn silos' variance.

    The thesis prints ln(1/delta) there, one logarithm less than in V^2, and no mu in the first term. The
    last is upsilon^2 (N - M) / ((N - 1) mu sqrt(kappa) M).
    """
    L, beta, mu, phi, upsilon = s.need("Theorem 39", "L", "beta", "mu", "phi", "upsilon")
    kappa = beta / mu
    private = L**2 / mu * math.sqrt(kappa) * _one_pass_noise(s) ** 2
    return phi**2 / (mu * s.n * s.M) + private + upsilon**2 * s.between / (mu * math.sqrt(kappa) * s.M)


def pl_sdp(s: Symbols) -> float:
    """Theorem 40 (prox-SGD): (L^2 / mu)(kappa^2 d ln(d/delta)^2 / (eps n N)^2 + kappa / (M n))."""
    L, beta, mu = s.need("Theorem 40", "L", "beta", "mu")
    kappa = beta / mu
    private = s.d * (_oracle_log(s) * kappa / (s.epsilon * s.n * s.N)) ** 2
    return L**2 / mu * (private + kappa / (s.M * s.n))


def pl_erm_sdp(s: Symbols) -> float:
    """Theorem 42 (prox-PL-SVRG): kappa L^2 d ln(1/delta)/(mu (eps n N)^2) + (N-M) upsilon^2/(mu M (N-1))."""
    L, beta, mu, upsilon = s.need("Theorem 42", "L", "beta", "mu", "upsilon")
    private = beta / mu * L**2 / mu * s.d * s.log / (s.epsilon * s.n * s.N) ** 2
    return private + s.between * upsilon**2 / (mu * s.M)


def nonconvex_sdp(s: Symbols) -> float:
    """Theorem 45 (prox-SPIDER), of the squared mapping; with p = sqrt(d ln(d/delta)^3) / (eps n N):

    (sqrt(L beta Delta) p)^(4/3) + L^2 p^2 + 1{M < N} (L sqrt(beta Delta) p / sqrt(n M) + L^2 / (M n)).
    """
    L, beta, Delta = s.need("Theorem 45", "L", "beta", "Delta")
    p = math.sqrt(s.d * _oracle_log(s) ** 3) / (s.epsilon * s.n * s.N)
    drawn = L * math.sqrt(beta * Delta) * p / math.sqrt(s.n * s.M) + L**2 / (s.M * s.n)
    return math.pow(math.sqrt(L * beta * Delta) * p, 4 / 3) + (L * p) ** 2 + (drawn if s.M < s.N else 0.0)


def _oracle_log(s: Symbols) -> float:
    """ln(d / delta), of which P_vec's variance has the square (Lemma 136)."""
    return math.log(s.d / s.delta)


def _one_pass_noise(s: Symbols) -> float:
    """Square root of P_vec's variance over a pass, in the unit of L: sqrt d ln(d/delta) / (eps n M)."""
    return math.sqrt(s.d) * _oracle_log(s) / (s.epsilon * s.n * s.M)
