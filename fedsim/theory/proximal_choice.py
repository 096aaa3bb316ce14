"""Numbers that the proximal and non-convex theorems choose, for the theorem's noise or the calibrated one.

A. Lowy, thesis (USC 2023); theorem numbers per function.
"""

from __future__ import annotations

import math
from typing import Any

from fedsim.common.errors import InputError
from fedsim.protocol.batch import FULL, Batch, Fresh, Subsample
from fedsim.theory.averaged_noise import Kind, Noise
from fedsim.theory.choice import Case, balanced, best, fresh, larger, log, rounded, subsample
from fedsim.theory.theorem import Derived, smallest
from fedsim.theory.theorem_noise import smallest_batch


def prox_sgd(case: Case) -> Derived:
    """Theorem 40: R = ceil(2 kappa ln((mu Delta / L^2) min(M n, eps^2 n^2 M / (d ln(1/delta))))).

    Solved: Delta (1 - 1/(2 kappa))^R against V^2 / mu, V that of R disjoint batches.
    """
    s, name = case.s, "prox-SGD (Theorem 40)"
    L, beta, mu, Delta = s.need(name, "L", "beta", "mu", "Delta")

    def squared(R: int) -> float:
        return case.squared(case.drawn(R, Fresh(1 / R)), R)

    def errors(R: int) -> tuple[float, float]:
        return float(Delta * (1 - mu / (2 * beta)) ** R), squared(R) / mu

    if case.noise is None:
        signal = min(s.M * s.n, s.signal / (s.d * s.log))
        R = rounded(2 * beta / mu * log(mu * Delta / L**2 * signal))
        if s.n < R:
            hint = f"at most what leaves R <= n = {s.n}: {name} needs R = {R} disjoint batches (n >= kappa)"
            raise InputError("scenario.assumptions.beta", beta, hint)
    else:
        if s.n < beta / mu:
            hint = f"at most what leaves n >= kappa: here n = {s.n} and kappa = {beta / mu:.6g} ({name})"
            raise InputError("scenario.assumptions.beta", beta, hint)
        disjoint = case.batch is None or case.one_pass
        R = case.rounds or (best(case.candidates(), errors) if disjoint else balanced(errors))
    values = {"num_rounds": R, "step_size": 1 / (2 * beta), "clip_norm": case.clip, "batch": fresh(R)}
    return case.derived(name, values, lambda: {"V": math.sqrt(squared(R)), "excess": larger(errors(R))})


def prox_pl_svrg(case: Case) -> Derived:
    """Theorem 42: R = E Q = 12 kappa, Q = floor(n/K), S = log2(Delta mu M eps^2 n^2 / (kappa d L^2)).

    Solved: Delta 2^-S against V^2 / mu, V^2 the noise of an anchor's gradient and of a difference. A draw of
    silos adds (N - M) upsilon^2 / (mu M (N - 1)), whatever S is.
    """
    s, name = case.s, "prox-PL-SVRG (Theorem 42)"
    L, beta, mu, Delta = s.need(name, "L", "beta", "mu", "Delta")
    upsilon, noise = s.upsilon or 0.0, case.noise
    least = (s.n**2 / s.M) ** (1 / 3)
    if noise is None:
        S = max(1, math.ceil(log(Delta * mu * s.signal / (beta / mu * s.d * L**2)) / math.log(2)))
        needed = max(smallest_batch(silo, S * 12 * beta / mu) / silo.n for silo in s.silos) * s.n
        return Derived(name, _restarted(case, S, max(least, needed)))

    def values(S: int) -> dict[str, Any]:
        # A difference's multiplier is (K/n) sqrt Q times a gradient's: sigma_2 / sigma_1 of Theorem 148.
        chosen: dict[str, Any] = _restarted(case, S, least) | {**case.given}
        ratio = _batch(case, chosen).size(s.n) / s.n * math.sqrt(chosen["inner_steps"])
        return {"difference_noise_ratio": min(1.0, ratio), **chosen}

    def squared(S: int) -> float:
        run = values(S)
        epochs = S * run["epochs"]
        gradient = Kind(FULL, epochs)
        difference = Kind(_batch(case, run), epochs * run["inner_steps"], run["difference_noise_ratio"])
        clips = ((gradient, run["clip_norm"]), (difference, run["difference_clip"]))
        return s.d * sum(noise.variance(clip, kind, [gradient, difference]) for kind, clip in clips)

    def errors(S: int) -> tuple[float, float]:
        return Delta * 2.0**-S, squared(S) / mu

    S = case.given.get("restarts") or balanced(errors)
    V, excess = math.sqrt(squared(S)), larger(errors(S)) + s.between * upsilon**2 / (mu * s.M)
    return Derived(name, values(S), predicted={"V": V, "excess": excess})


def _restarted(case: Case, S: int, least: float) -> dict[str, Any]:
    """Theorem 42's numbers for S restarts and K >= least: Q = floor(n/K), E = 12 kappa / Q and the step."""
    s = case.s
    beta, mu = s.need("prox-PL-SVRG (Theorem 42)", "beta", "mu")
    K = min(s.n, math.ceil(least))
    Q = max(1, s.n // K)
    return {
        "restarts": S,
        "epochs": rounded(12 * beta / mu / Q),
        "inner_steps": Q,
        "step_size": min(1.0, K**1.5 * math.sqrt(s.M) / s.n) / (8 * beta),
        "clip_norm": case.clip,
        "difference_clip": 2 * case.clip,
        "batch": subsample(K / s.n),
    }


def _batch(case: Case, values: dict[str, Any]) -> Batch:
    chosen = values["batch"]
    return case.batch or (FULL if chosen == "full" else Subsample(chosen["fraction"]))


def prox_spider(case: Case) -> Derived:
    """Theorem 44 with the period that its descent needs, q <= 1 / (2 eta^2 tau_2^2), eta = 1 / (2 beta).

    tau_1^2 is the mean squared noise of a gradient, tau_2^2 that of a difference per unit of
    |w_r - w_{r-1}|^2; K = n, as the theorem has it.
    """
    name = "prox-SPIDER (Theorem 44)"
    _, beta, _ = case.s.need(name, "L", "beta", "Delta")
    q, R, predicted = _stated_period(case) if case.noise is None else _solved_period(case, case.noise)
    if q < 1:
        hint = f"larger: {name} finds q < 1 and returns w_0, since the noise would drown every step"
        raise InputError("scenario.privacy.epsilon", case.s.epsilon, hint)
    values = {
        "num_rounds": R,
        "period": q,
        "step_size": 1 / (2 * beta),
        "clip_norm": case.clip,
        "smoothness": case.s.record_beta,
        "random_iterate": True,
        "batch": "full",
        # The multipliers of sigma_1 and sigma_2 are as 1 to sqrt q (Theorem 149): gradients, which start
        # every phase, are the more exact for it.
        "difference_noise_ratio": math.sqrt(min(q, R)),
    }
    return Derived(name, values, predicted=predicted)


def _stated_period(case: Case) -> tuple[int, int, dict[str, float]]:
    """q and R for the theorem's sigma_2; R = a sqrt(q Delta beta) / L, a = eps n sqrt(M / (d ln(1/delta))).

        q = floor(min((a L / (8 sqrt(Delta beta)))^(2/3), n M / 1{M < N})).

    Erratum: the thesis prints it without the 8, at which q eta^2 tau_2^2 = 4 (docs/thesis-audit.md).
    """
    s = case.s
    L, beta, Delta = s.need("prox-SPIDER (Theorem 44)", "L", "beta", "Delta")
    strength = math.sqrt(s.signal / (s.d * s.log))
    longest = (strength * L / (8 * math.sqrt(Delta * beta))) ** (2 / 3)
    q = math.floor(min(longest, s.n * s.M) if s.M < s.N else longest)
    return q, rounded(strength * math.sqrt(max(q, 0) * Delta * beta) / L), {}


def _solved_period(case: Case, noise: Noise) -> tuple[int, int, dict[str, float]]:
    """The longest q with q eta^2 tau_2^2 <= 1/2 for the plan's tau_2; R balances beta Delta / R, tau_1^2."""
    s = case.s
    beta, Delta = s.need("prox-SPIDER (Theorem 44)", "beta", "Delta")
    change = s.record_beta or 0.0

    def squares(q: int, R: int) -> tuple[float, float]:
        """tau_1^2 and tau_2^2."""
        starts = math.ceil(R / q)
        ratio = case.given.get("difference_noise_ratio", math.sqrt(min(q, R)))
        plan = gradient, difference = Kind(FULL, starts), Kind(FULL, R - starts, ratio)
        clips = ((gradient, case.clip), (difference, change))
        first, second = (s.d * noise.variance(clip, kind, plan) for kind, clip in clips)
        return first, second

    def errors(q: int, R: int) -> tuple[float, float]:
        return beta * Delta / R, squares(q, R)[0]

    def rounds(q: int) -> int:
        return case.rounds or balanced(lambda R: errors(q, R))

    def too_long(q: int) -> bool:
        R = rounds(q)
        # q eta^2 tau_2^2 > 1/2 at eta = 1 / (2 beta): errors of a phase would feed themselves.
        return q > R or q * squares(q, R)[1] > 2 * beta**2 or (s.M < s.N and q > s.n * s.M)

    q = case.given.get("period") or smallest(too_long) - 1
    if q < 1:
        return q, 0, {}
    R = rounds(q)
    return q, R, {"V": math.sqrt(squares(q, R)[0]), "squared gradient": larger(errors(q, R))}
