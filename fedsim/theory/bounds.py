"""Excess-risk bounds of the thesis, with every constant and logarithmic factor in n, R, N set to one.

A. Lowy, thesis (USC 2023), chapter 3 and appendix B. They are orders of magnitude: measured excess risk
beside them is compared in slopes and gaps, never heights. ln(1/delta) is kept where the thesis prints it.

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

Chapter 4 bounds a k-th moment of gradients by r^k in place of L (`fedsim.theory.heavy_tails`). Its privacy is
(mu^2 / 2)-zCDP, as Gaussian noise has it: there xi is 1 / ((mu n)^2 M), mu a silo's at its epsilon and delta.
In the mean of N silos noise is averaged as records are, so that N n takes the place of n.

A bound is a formula of the symbols and of xi, the variance of the noise in a coordinate of the mean gradient
in the unit of L^2 (`XI`); then of the constants that are its symbols. p is short for sqrt(d xi).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.theory.symbols import Symbols


def _gaussian(silo: Budget) -> float:
    return 1 / (float(gaussian.mu(silo.epsilon, silo.delta)) * silo.n) ** 2


XI: dict[str, Callable[[Symbols], float]] = {
    "isrl": lambda s: s.xi,  # ln(1/delta) / ((eps n)^2 M), or what Theorem 140 puts in its place
    "sdp": lambda s: s.log / (s.epsilon * s.n * s.N) ** 2,  # a Gaussian sum over the silos, or central
    # a sum by P_vec (Lemma 136); over a pass; over many rounds
    "oracle": lambda s: (math.log(s.d / s.delta) / (s.epsilon * s.n * s.N)) ** 2,
    "one pass": lambda s: (math.log(s.d / s.delta) / (s.epsilon * s.n * s.M)) ** 2,
    "composed": lambda s: math.log(s.d / s.delta) ** 3 / (s.epsilon * s.n * s.N) ** 2,
    "isrl lower": lambda s: 1 / ((s.epsilon * s.n) ** 2 * s.N),  # for M = N, and with ln(1/delta)
    "isrl lower log": lambda s: s.log * (1 / ((s.epsilon * s.n) ** 2 * s.N)),
    "central lower": lambda s: 1 / (s.epsilon * s.n * s.N) ** 2,
    "gaussian isrl": lambda s: s.spread(_gaussian),  # 1 / ((mu n)^2 M), or Theorem 140's
    "gaussian central": lambda s: _gaussian(Budget(s.n, s.epsilon, s.delta)) / s.N**2,  # 1 / (mu n N)^2
}
"""What xi stands for, by trust and mechanism."""


def convex(s: Symbols, xi: float, L: float, D: float) -> float:
    """Theorems 34 (noisy MB-SGD) and 38 (shuffled MB-SGD): L D (1 / sqrt(n M) + p)."""
    return L * D * (1 / math.sqrt(s.n * s.M) + math.sqrt(s.d * xi))


def strongly_convex(s: Symbols, xi: float, L: float, mu: float) -> float:
    """Theorems 34 and 38: (L^2 / mu)(1 / (n M) + d xi)."""
    return L**2 / mu * (1 / (s.n * s.M) + s.d * xi)


def convex_one_pass(s: Symbols, xi: float, L: float, D: float, beta: float) -> float:
    """Theorems 36 and 39 (accelerated, one pass), heterogeneous silos:

    phi D / sqrt(n M) + (beta^(1/4) L D^(3/2) p)^(4/5)
    + sqrt((N - M)/(N - 1)) upsilon L^(1/5) D^(4/5) beta^(-1/5) (p / M^(5/2))^(1/5).

    The last term is (B.19): upsilon D / sqrt(M R) at R = n / K rounds of the theorem's K, which is
    (L/(beta D))^(2/5) n p^(2/5) in Theorem 39.
    """
    phi, upsilon = s.need("the bound", "phi", "upsilon")
    p = math.sqrt(s.d * xi)
    silos = upsilon * L**0.2 * D**0.8 * beta**-0.2 * (p / s.M**2.5) ** 0.2
    private = (beta**0.25 * L * D**1.5 * p) ** 0.8
    return float(phi * D / math.sqrt(s.n * s.M) + private + math.sqrt(s.between) * silos)


def strongly_convex_one_pass(s: Symbols, xi: float, L: float, mu: float, beta: float) -> float:
    """Theorems 36 and 39: phi^2/(mu n M) + (L^2/mu) sqrt(kappa) d xi + drawn silos' variance.

    The first term's mu is missing in (B.20) and Theorem 39, not in (3.7); the last is
    upsilon^2 (N - M) / ((N - 1) mu sqrt(kappa) M). Theorem 39 prints ln(1/delta), a logarithm less than V^2.
    """
    phi, upsilon = s.need("the bound", "phi", "upsilon")
    kappa = beta / mu
    private = L**2 / mu * math.sqrt(kappa) * s.d * xi
    return phi**2 / (mu * s.n * s.M) + private + upsilon**2 * s.between / (mu * math.sqrt(kappa) * s.M)


def convex_erm(s: Symbols, xi: float, L: float, D: float) -> float:
    """Theorem 37 (accelerated, empirical risk): L D p."""
    return L * D * math.sqrt(s.d * xi)


def strongly_convex_erm(s: Symbols, xi: float, L: float, mu: float) -> float:
    """Theorem 37 (accelerated, empirical risk): (L^2 / mu) d xi."""
    return L**2 / mu * s.d * xi


def pl(s: Symbols, xi: float, L: float, mu: float, beta: float) -> float:
    """Theorem 40 (prox-SGD): (L^2 / mu)(kappa^2 d xi + kappa / (M n))."""
    kappa = beta / mu
    return L**2 / mu * (kappa**2 * s.d * xi + kappa / (s.M * s.n))


def pl_erm(s: Symbols, xi: float, L: float, mu: float, beta: float) -> float:
    """Theorem 42 (prox-PL-SVRG): kappa L^2 d xi / mu + (N-M) upsilon^2/(mu M (N-1)).

    The second term's mu is missing in the theorem's first part.
    """
    (upsilon,) = s.need("the bound", "upsilon")
    return beta / mu * L**2 / mu * s.d * xi + s.between * upsilon**2 / (mu * s.M)


def nonconvex(s: Symbols, xi: float, L: float, beta: float, Delta: float) -> float:
    """Theorems 44 and 45 (prox-SPIDER), of the squared gradient mapping:

    (sqrt(L beta Delta) p)^(4/3) + L^2 p^2 + 1{M < N} (L sqrt(beta Delta) p / sqrt(n M) + L^2 / (M n)).
    """
    p = math.sqrt(s.d * xi)
    drawn = L * math.sqrt(beta * Delta) * p / math.sqrt(s.n * s.M) + L**2 / (s.M * s.n)
    return math.pow(math.sqrt(L * beta * Delta) * p, 4 / 3) + (L * p) ** 2 + (drawn if s.M < s.N else 0.0)


def convex_lower(s: Symbols, xi: float, L: float, D: float) -> float:
    """Theorem 35: phi D / sqrt(N n) + L D min(1, p), for M = N and C = 1."""
    (phi,) = s.need("the bound", "phi")
    return phi * D / math.sqrt(s.N * s.n) + convex_erm_lower(s, xi, L, D)


def strongly_convex_lower(s: Symbols, xi: float, L: float, D: float, mu: float) -> float:
    """Theorem 35: phi^2 / (mu n N) + L D min(1, d xi), for M = N and C = 1.

    L D is at most 2 L^2 / mu: gradients of such a function differ by mu D across the set.
    """
    (phi,) = s.need("the bound", "phi")
    return phi**2 / (mu * s.n * s.N) + strongly_convex_erm_lower(s, xi, L, D)


def convex_erm_lower(s: Symbols, xi: float, L: float, D: float) -> float:
    """Theorems 133 (M = N), 123 and 134 (central): L D min(1, p)."""
    return L * D * min(1.0, math.sqrt(s.d * xi))


def strongly_convex_erm_lower(s: Symbols, xi: float, L: float, D: float, *_: float) -> float:
    """Theorems 133 (M = N), 123 and 134 (central): L D min(1, d xi), whatever mu."""
    return L * D * min(1.0, s.d * xi)


def nonconvex_lower(s: Symbols, xi: float, L: float) -> float:
    """Theorem 46, of the squared gradient: L^2 min(1, d xi)."""
    return L**2 * min(1.0, s.d * xi)


def clipped_convex(s: Symbols, xi: float, k: float, r: float, D: float, beta: float) -> float:
    """Theorem 59 (clipped AC-SA), with a = (beta D / r)^(1/4) p:

    r D (1 / sqrt(n N) + max(a^(4 (k-1) / (5k-1)), p^((k-1)/k))).
    """
    p = math.sqrt(s.d * xi)
    steps = math.pow(math.pow(beta * D / r, 0.25) * p, 4 * (k - 1) / (5 * k - 1))
    return r * D * (1 / math.sqrt(s.n * s.N) + max(steps, math.pow(p, (k - 1) / k)))


def clipped_curved(s: Symbols, xi: float, k: float, r: float, mu: float, beta: float) -> float:
    """Theorem 61 (clipped SGD): (r^2 / mu)(1 / (n N) + (sqrt(kappa) p)^((2k-2)/k))."""
    return r**2 / mu * (1 / (s.n * s.N) + math.pow(beta / mu * s.d * xi, (k - 1) / k))


def clipped_pl(s: Symbols, xi: float, k: float, r: float, mu: float, beta: float) -> float:
    """Theorem 63 (clipped prox-SGD): (r^2 / mu)((kappa p)^((2k-2)/k) + kappa / (n N))."""
    kappa = beta / mu
    return r**2 / mu * (math.pow(kappa**2 * s.d * xi, (k - 1) / k) + kappa / (s.n * s.N))


def heavy_lower(s: Symbols, xi: float, k: float, r: float, D: float) -> float:
    """Theorem 57 (central): r D (1 / sqrt(n N) + min(1, p^((k-1)/k)))."""
    return r * D * (1 / math.sqrt(s.n * s.N) + min(1.0, math.pow(s.d * xi, (k - 1) / (2 * k))))


def heavy_curved_lower(s: Symbols, xi: float, k: float, r: float, mu: float) -> float:
    """Theorem 58 (central): (r^2 / mu)(1 / (n N) + min(1, p^((2k-2)/k)))."""
    return r**2 / mu * (1 / (s.n * s.N) + min(1.0, math.pow(s.d * xi, (k - 1) / k)))
