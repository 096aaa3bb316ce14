"""The numbers that theorems choose for their own noise: `parameters: theorem` without the accountant.

With `calibration: accountant` the noise is another, and `fedsim.theory.joint` chooses. Each function takes a
`Symbols` and returns {field of the algorithm: value}, and beside it what the theorem also sets and the
algorithm has no field for. Constants that the thesis leaves open are one. Where a theorem only asks for a
least K, noisy MB-SGD takes that K (a record a step is enough for its R), the others the one that their R is
stated for. Silos that differ: Theorem 140 (`fedsim.theory.symbols`). A. Lowy, thesis (USC 2023); theorem
numbers per function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fedsim.common.errors import InputError
from fedsim.protocol.batch import Fresh
from fedsim.theory.minibatch_noise import smallest_batch, variance
from fedsim.theory.one_pass_noise import AcceleratedOnePass
from fedsim.theory.symbols import Symbols
from fedsim.theory.theorem import Derived


def noisy_minibatch_sgd(s: Symbols, one_pass: bool) -> Derived:
    """Theorems 34 and 104; strongly convex where mu is stated (step sizes of Lemma 102)."""
    if s.mu is not None:
        return _strongly_convex(s)
    L, beta, D = s.need("noisy MB-SGD (Theorem 34)", "L", "beta", "D")
    reach = min(math.sqrt(s.n), s.reach / math.sqrt(s.d))
    floor = min(s.n * s.M, s.signal / s.d)
    R = _rounds(beta * D * math.sqrt(s.M) / L * reach + floor)
    private = math.sqrt(s.signal / (s.d * R))
    step = min(1 / beta, D / (L * math.sqrt(R)) * min(1.0, private, math.sqrt(s.n * s.M / R)))
    values = {"num_rounds": R, "step_size": step, "clip_norm": s.clip, "batch": _least(s, R)}
    return Derived("noisy MB-SGD, convex (Theorem 34)", values)


def _strongly_convex(s: Symbols) -> Derived:
    L, beta, mu, D = s.need("noisy MB-SGD (Theorem 34)", "L", "beta", "mu", "D")
    contraction = 2 * beta / mu * _log(beta * D**2 * mu * s.signal / (s.d * L**2))
    R = _rounds(max(contraction, min(s.M * s.n, s.signal / s.d)))
    noise = s.spread(lambda silo: variance(L, R, R, silo))
    a, c, g = mu, s.d * noise + L**2, 2 * beta
    step = min(1 / g, math.log(max(2.0, (a * R * D) ** 2 / c)) / (a * R))
    values = {
        "num_rounds": R,
        "step_size": step,
        "clip_norm": s.clip,
        "strong_convexity": mu,
        "batch": _least(s, R),
    }
    return Derived(
        "noisy MB-SGD, strongly convex (Theorem 34)", values, {"gamma_r ratio": 1 / (1 - a * step)}
    )


def accelerated_minibatch_sgd(s: Symbols, one_pass: bool) -> Derived:
    """Theorem 36 with a fresh batch, else Theorem 37.

    The thesis leaves alpha_r and eta_r open in the convex case and regularises by lambda; step sizes
    1 / max(2 beta, R^(3/2) V / D) without lambda reach the same bound, so lambda is a note.
    """
    return _one_pass(s) if one_pass else _empirical(s)


def _one_pass(s: Symbols) -> Derived:
    name = "accelerated MB-SGD, one pass (Theorem 36)"
    L, beta, D, *_ = s.need(name, "L", "beta", "D", "phi", "upsilon")
    size = (L / (beta * D)) ** 0.4 * s.n**0.6 * (s.d * s.log) ** 0.2 / ((s.reach / s.n) ** 0.4 * s.M**0.2)
    R = s.n // min(s.n, max(1, math.ceil(size)))
    V = _fresh_noise(s, L, R)
    return Derived(name, accelerated(s, R, V) | {"batch": fresh(R)}, {"lambda": V / (D * math.sqrt(R))})


def _empirical(s: Symbols) -> Derived:
    name = "accelerated MB-SGD, empirical risk (Theorem 37)"
    L, beta, D = s.need(name, "L", "beta", "D")
    reach = beta * D / L * math.sqrt(s.signal / (s.d * s.log))
    R = _rounds(max(math.sqrt(reach), _redrawn(s)))
    V = _full_noise(s, L, R)
    return Derived(name, accelerated(s, R, V) | {"batch": "full"}, {"lambda": V / (D * math.sqrt(R))})


def _fresh_noise(s: Symbols, L: float, R: int) -> float:
    """V of Lemma 128: root mean squared error of a round's mean gradient, on n // R records of a silo."""
    phi, upsilon = s.need("one pass (Lemma 128)", "phi", "upsilon")
    noise = s.spread(lambda silo: AcceleratedOnePass(silo, L, R, Fresh(1 / R)).variance())
    return math.sqrt(phi**2 / (s.M * (s.n // R)) + s.between * upsilon**2 / s.M + s.d * noise)


def _full_noise(s: Symbols, L: float, R: int) -> float:
    """V_X of Theorem 37 with K = n: only a draw of silos adds to the noise."""
    drawn = 4 * L**2 / (s.M * s.n) if s.M < s.N else 0.0
    return math.sqrt(drawn + s.d * s.spread(lambda silo: variance(L, R, R, silo)))


def _redrawn(s: Symbols) -> float:
    """eps^2 n^2 / (K d ln(1/delta)) with K = n: rounds that a draw of silos needs; 0 if all take part."""
    return s.reach**2 / (s.n * s.d * s.log) if s.M < s.N else 0.0


def accelerated(s: Symbols, R: int, V: float) -> dict[str, Any]:
    """Theorems 36 and 37 for a round's error V: the step without lambda, see `accelerated_minibatch_sgd`."""
    beta, D = s.need("accelerated MB-SGD", "beta", "D")
    step = 1 / max(2 * beta, R**1.5 * V / D)
    return {"num_rounds": R, "step_size": step, "clip_norm": s.clip, "strong_convexity": 0.0}


def multi_stage_accelerated_minibatch_sgd(s: Symbols, one_pass: bool) -> Derived:
    """Theorems 36 (fresh batches) and 37, strongly convex: R = O(sqrt(kappa) ln(signal)).

    The constant is B.1.6.1's: log2(signal) stages of 4 sqrt(2 kappa) rounds, each of which halves the
    excess risk Delta until the noise V rules. From then on stages are longer, and fewer of them fit.
    """
    name = f"multi-stage accelerated MB-SGD ({'one pass, Theorem 36' if one_pass else 'Theorem 37'})"
    L, beta, mu, Delta, phi = s.need(name, "L", "beta", "mu", "Delta", "phi")
    signal = s.signal / (L**2 * s.d * s.log)
    signal = min(signal, s.n * s.M / phi**2) if one_pass else signal
    R = math.ceil(_log(mu * Delta * signal) / math.log(2)) * math.ceil(4 * math.sqrt(2 * beta / mu))
    if one_pass and s.n < R:
        expected = f"at most what leaves R <= n = {s.n}: {name} needs R = {R} disjoint batches"
        raise InputError("scenario.assumptions.beta", beta, expected)
    R = R if one_pass else max(R, _rounds(_redrawn(s)))
    V = _fresh_noise(s, L, R) if one_pass else _full_noise(s, L, R)
    first = math.ceil(512 * V**2 / (3 * mu * Delta))
    if first > R:
        expected = (
            f"larger: {name} needs {first} rounds in its first stage, so large is the noise, and has {R}"
        )
        raise InputError("scenario.privacy.epsilon", s.epsilon, expected)
    values = {
        "num_rounds": R,
        "smoothness": beta,
        "strong_convexity": mu,
        "initial_excess": Delta,
        "clip_norm": s.clip,
        "noise": V,
        "batch": fresh(R) if one_pass else "full",
    }
    return Derived(name, values)


def prox_sgd(s: Symbols, one_pass: bool) -> Derived:
    """Theorem 40: R = ceil(2 kappa ln((mu Delta / L^2) min(M n, eps^2 n^2 M / (d ln(1/delta)))))."""
    name = "prox-SGD (Theorem 40)"
    L, beta, mu, Delta = s.need(name, "L", "beta", "mu", "Delta")
    signal = min(s.M * s.n, s.signal / (s.d * s.log))
    R = _rounds(2 * beta / mu * _log(mu * Delta / L**2 * signal))
    if s.n < R:
        expected = f"at most what leaves R <= n = {s.n}: {name} needs R = {R} disjoint batches (n >= kappa)"
        raise InputError("scenario.assumptions.beta", beta, expected)
    values = {"num_rounds": R, "step_size": 1 / (2 * beta), "clip_norm": s.clip, "batch": fresh(R)}
    return Derived(name, values)


def prox_pl_svrg(s: Symbols, one_pass: bool) -> Derived:
    """Theorem 42: R = E Q = 12 kappa, Q = floor(n/K), S = log2(Delta mu M eps^2 n^2 / (kappa d L^2))."""
    name = "prox-PL-SVRG (Theorem 42)"
    L, beta, mu, Delta = s.need(name, "L", "beta", "mu", "Delta")
    S = max(1, math.ceil(_log(Delta * mu * s.signal / (beta / mu * s.d * L**2)) / math.log(2)))
    needed = max(smallest_batch(silo, S * 12 * beta / mu) / silo.n for silo in s.silos) * s.n
    return Derived(name, restarted(s, S, max((s.n**2 / s.M) ** (1 / 3), needed)))


def restarted(s: Symbols, S: int, least: float) -> dict[str, Any]:
    """Theorem 42's numbers for S restarts and K >= least: Q = floor(n/K), E = 12 kappa / Q and the step."""
    beta, mu = s.need("prox-PL-SVRG (Theorem 42)", "beta", "mu")
    K = min(s.n, math.ceil(least))
    Q = max(1, s.n // K)
    clip = s.clip or 0.0
    return {
        "restarts": S,
        "epochs": _rounds(12 * beta / mu / Q),
        "inner_steps": Q,
        "step_size": min(1.0, K**1.5 * math.sqrt(s.M) / s.n) / (8 * beta),
        "clip_norm": clip,
        "difference_clip": 2 * clip,
        "batch": _drawn(K / s.n),
    }


def prox_spider(s: Symbols, one_pass: bool) -> Derived:
    """Theorem 44 with the period that its descent needs, q <= 1 / (2 eta^2 tau_2^2), eta = 1 / (2 beta).

    tau_2^2 = d sigma_2^2 / M per unit of |w_r - w_{r-1}|^2; with the theorem's sigma_2 and its
    R = a sqrt(q Delta beta) / L, a = eps n sqrt M / sqrt(d ln(1/delta)), that is

        q = floor(min((a L / (8 sqrt(Delta beta)))^(2/3), n M / 1{M < N})).

    Erratum: the thesis prints it without the 8, at which q eta^2 tau_2^2 = 4 (see `fedsim.theory.claims`).
    """
    name = "prox-SPIDER (Theorem 44)"
    L, beta, Delta = s.need(name, "L", "beta", "Delta")
    strength = math.sqrt(s.signal / (s.d * s.log))
    longest = (strength * L / (8 * math.sqrt(Delta * beta))) ** (2 / 3)
    q = math.floor(min(longest, s.n * s.M) if s.M < s.N else longest)
    if q < 1:
        raise drowned(name, s)
    return Derived(name, phases(s, q, _rounds(strength * math.sqrt(q * Delta * beta) / L)))


def drowned(name: str, s: Symbols) -> InputError:
    """The refusal where the theorem returns w_0."""
    expected = f"larger: {name} finds q < 1 and returns w_0, since the noise would drown every step"
    return InputError("scenario.privacy.epsilon", s.epsilon, expected)


def phases(s: Symbols, q: int, R: int) -> dict[str, Any]:
    """Theorem 44's numbers for q and R.

    The noise multipliers of its sigma_1 and sigma_2 are as 1 to sqrt q (Theorem 149): a difference's is
    larger, and gradients, which start every phase, are the more exact for it.
    """
    (beta,) = s.need("prox-SPIDER (Theorem 44)", "beta")
    return {
        "num_rounds": R,
        "period": q,
        "step_size": 1 / (2 * beta),
        "clip_norm": s.clip,
        "smoothness": s.record_beta,
        "random_iterate": True,
        "batch": "full",
        "difference_noise_ratio": math.sqrt(min(q, R)),
    }


TABLE: dict[str, Callable[[Symbols, bool], Derived]] = {
    "noisy_minibatch_sgd": noisy_minibatch_sgd,
    "accelerated_minibatch_sgd": accelerated_minibatch_sgd,
    "multi_stage_accelerated_minibatch_sgd": multi_stage_accelerated_minibatch_sgd,
    "prox_sgd": prox_sgd,
    "prox_pl_svrg": prox_pl_svrg,
    "prox_spider": prox_spider,
}
"""{algorithm: its theorem's choice}; the others have no utility theorem, or none that can be computed."""


def fresh(R: int) -> dict[str, Any]:
    """R disjoint batches, as a scenario says it."""
    return {"sampler": "fresh", "fraction": 1 / R}


def _rounds(value: float) -> int:
    return max(1, math.ceil(value))


def _log(value: float) -> float:
    """A logarithm that the theorems take of a large number; at least ln 2, so that R stays positive."""
    return math.log(max(2.0, value))


def _least(s: Symbols, rounds: int) -> Any:
    """The smallest batch of the theorem's proof, the same share of every silo's records (Theorem 140)."""
    return _drawn(max(max(1, math.ceil(smallest_batch(silo, rounds))) / silo.n for silo in s.silos))


def _drawn(fraction: float) -> Any:
    return "full" if fraction >= 1 else {"sampler": "subsample", "fraction": fraction}
