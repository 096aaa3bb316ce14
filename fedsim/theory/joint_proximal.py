"""Proximal and non-convex theorems for the noise that the plan really has; see `fedsim.theory.joint`."""

from __future__ import annotations

import math
from typing import Any

from fedsim.common.errors import InputError
from fedsim.protocol.batch import FULL, Batch, Fresh, Subsample
from fedsim.theory.averaged_noise import Kind
from fedsim.theory.joint import Case, balanced, best, larger, smallest
from fedsim.theory.parameters import drowned, fresh, phases, restarted
from fedsim.theory.theorem import Derived


def prox_sgd(case: Case) -> Derived:
    """Theorem 40: Delta (1 - 1/(2 kappa))^R against V^2 / mu, V that of R disjoint batches."""
    s, name = case.s, "prox-SGD (Theorem 40)"
    _, beta, mu, Delta = s.need(name, "L", "beta", "mu", "Delta")
    if s.n < beta / mu:
        expected = f"at most what leaves n >= kappa: here n = {s.n} and kappa = {beta / mu:.6g} ({name})"
        raise InputError("scenario.assumptions.beta", beta, expected)

    def errors(R: int) -> tuple[float, float]:
        contracted = float(Delta * (1 - mu / (2 * beta)) ** R)
        return contracted, case.squared(case.drawn(Fresh(1 / R)), R) / mu

    disjoint = case.batch is None or case.one_pass
    R = case.rounds or (best(case.candidates(), errors) if disjoint else balanced(errors))
    values = {"num_rounds": R, "step_size": 1 / (2 * beta), "batch": fresh(R)}
    V = math.sqrt(case.squared(case.drawn(Fresh(1 / R)), R))
    return case.derived(name, values, V, excess=larger(errors(R)))


def prox_pl_svrg(case: Case) -> Derived:
    """Theorem 42: Delta 2^-S against V^2 / mu, V^2 the noise of an anchor's gradient and of a difference.

    A difference's noise multiplier is (K/n) sqrt Q times a gradient's: sigma_2 / sigma_1 of Theorem 148. A
    draw of silos adds (N - M) upsilon^2 / (mu M (N - 1)), whatever S is.
    """
    s, name = case.s, "prox-PL-SVRG (Theorem 42)"
    *_, mu, Delta = s.need(name, "L", "beta", "mu", "Delta")
    upsilon = s.upsilon or 0.0

    def values(S: int) -> dict[str, Any]:
        own = {"clip_norm": case.clip, "difference_clip": 2 * case.clip}
        chosen: dict[str, Any] = restarted(s, S, (s.n**2 / s.M) ** (1 / 3)) | own | {**case.given}
        ratio = _batch(case, chosen).size(s.n) / s.n * math.sqrt(chosen["inner_steps"])
        return {"difference_noise_ratio": min(1.0, ratio), **chosen}

    def squared(S: int) -> float:
        run = values(S)
        epochs = S * run["epochs"]
        gradient = Kind(FULL, epochs)
        difference = Kind(_batch(case, run), epochs * run["inner_steps"], run["difference_noise_ratio"])
        clips = ((gradient, run["clip_norm"]), (difference, run["difference_clip"]))
        plan = [gradient, difference]
        return s.d * sum(case.noise.variance(clip, kind, plan) for kind, clip in clips)

    def errors(S: int) -> tuple[float, float]:
        return Delta * 2.0**-S, squared(S) / mu

    S = case.given.get("restarts") or balanced(errors)
    V, excess = math.sqrt(squared(S)), larger(errors(S)) + s.between * upsilon**2 / (mu * s.M)
    return case.derived(name, values(S), V, excess=excess)


def _batch(case: Case, values: dict[str, Any]) -> Batch:
    chosen = values["batch"]
    return case.drawn(FULL if chosen == "full" else Subsample(chosen["fraction"]))


def prox_spider(case: Case) -> Derived:
    """Theorem 44: beta Delta / R against tau_1^2, for the longest period with q <= 1 / (2 eta^2 tau_2^2).

    tau_1^2 is the mean squared noise of a gradient, tau_2^2 that of a difference per unit of
    |w_r - w_{r-1}|^2; K = n, as the theorem has it.
    """
    s, name = case.s, "prox-SPIDER (Theorem 44)"
    _, beta, Delta = s.need(name, "L", "beta", "Delta")
    change = s.record_beta or 0.0

    def noise(q: int, R: int) -> tuple[float, float]:
        starts = math.ceil(R / q)
        ratio = case.given.get("difference_noise_ratio", math.sqrt(min(q, R)))
        plan = gradient, difference = Kind(FULL, starts), Kind(FULL, R - starts, ratio)
        clips = ((gradient, case.clip), (difference, change))
        first, second = (s.d * case.noise.variance(clip, kind, plan) for kind, clip in clips)
        return first, second

    def errors(q: int, R: int) -> tuple[float, float]:
        return beta * Delta / R, noise(q, R)[0]

    def rounds(q: int) -> int:
        return case.rounds or balanced(lambda R: errors(q, R))

    def too_long(q: int) -> bool:
        R = rounds(q)
        return q > R or q * noise(q, R)[1] > 2 * beta**2 or (s.M < s.N and q > s.n * s.M)

    q = case.given.get("period") or smallest(too_long) - 1
    if q < 1:
        raise drowned(name, s)
    R = rounds(q)
    V, bound = math.sqrt(noise(q, R)[0]), larger(errors(q, R))
    return case.derived(name, phases(s, q, R), V, **{"squared gradient": bound})
