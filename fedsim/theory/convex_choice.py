"""Numbers that the convex theorems choose, for the theorem's noise or the calibrated one (see `choice`).

A. Lowy, thesis (USC 2023); theorem numbers per function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fedsim.common.errors import InputError
from fedsim.protocol.batch import FULL, Batch
from fedsim.theory.choice import Case, Errors, fresh, larger, log, rounded, subsample
from fedsim.theory.symbols import Symbols
from fedsim.theory.theorem import MOST_ROUNDS, Derived, smallest
from fedsim.theory.theorem_noise import smallest_batch

_LONGEST = 100  # a stage that makes a run longer than this many times the noiseless rounds is not begun


def noisy_minibatch_sgd(case: Case) -> Derived:
    """Theorems 34 and 104; strongly convex where mu is stated (step sizes of Lemma 102).

    Solved: beta D^2 / R against D sqrt(V^2 / R + L^2 / (n M)). The last term is stability's, from empirical
    to population risk (Lemma 99). Drawn records need rounds until what they add is no more than the rest.
    """
    s = case.s
    if s.mu is not None:
        return _strongly_convex(case)
    L, beta, D = s.need("noisy MB-SGD (Theorem 34)", "L", "beta", "D")
    batch, stability = case.batch or FULL, L**2 / (s.n * s.M)

    def floor(R: int) -> float:  # the error that more rounds do not remove, squared and over D^2
        return case.squared(batch, R) / R + stability

    def errors(R: int) -> tuple[float, float]:
        return beta * D**2 / R, D * math.sqrt(floor(R))

    if case.noise is None:
        reach = min(math.sqrt(s.n), s.reach / math.sqrt(s.d))
        R = rounded(beta * D * math.sqrt(s.M) / L * reach + min(s.n * s.M, s.signal / s.d))
        private = math.sqrt(s.signal / (s.d * R))
        step = min(1 / beta, D / (L * math.sqrt(R)) * min(1.0, private, math.sqrt(s.n * s.M / R)))
    else:
        R = _rounds(case, errors, stability=stability)
        step = min(1 / beta, D / (R * math.sqrt(floor(R))))
    values = {"num_rounds": R, "step_size": step, "clip_norm": case.clip, "batch": _least(case, R)}
    return case.derived("noisy MB-SGD, convex (Theorem 34)", values, _predicted(case, batch, R, errors))


def _strongly_convex(case: Case) -> Derived:
    """Solved: beta D^2 e^(-R / (2 kappa)) against V^2 / (mu R) + L^2 / (mu n M); Lemma 102's step for V."""
    s, batch = case.s, case.batch or FULL
    L, beta, mu, D = s.need("noisy MB-SGD (Theorem 34)", "L", "beta", "mu", "D")
    stability = L**2 / (s.n * s.M)

    def errors(R: int) -> tuple[float, float]:
        floor = case.squared(batch, R) / R + stability
        return beta * D**2 * math.exp(-R * mu / (2 * beta)), floor / mu

    if case.noise is None:
        contraction = 2 * beta / mu * log(beta * D**2 * mu * s.signal / (s.d * L**2))
        R = rounded(max(contraction, min(s.M * s.n, s.signal / s.d)))
        squared = case.private(FULL, R) + L**2
    else:
        R = _rounds(case, errors, math.ceil(2 * beta / mu), stability)
        squared = max(case.squared(batch, R), 1e-300)
    step = min(1 / (2 * beta), math.log(max(2.0, (mu * R * D) ** 2 / squared)) / (mu * R))
    values: dict[str, Any] = {"num_rounds": R, "step_size": step, "clip_norm": case.clip}
    values |= {"strong_convexity": mu, "batch": _least(case, R)}
    name, notes = "noisy MB-SGD, strongly convex (Theorem 34)", {"gamma_r ratio": 1 / (1 - mu * step)}
    return case.derived(name, values, _predicted(case, batch, R, errors), notes)


def _rounds(case: Case, errors: Errors, least: int = 1, stability: float = 0.0) -> int:
    """The smallest R at which neither optimisation nor draws of records err more than the rest, to which a
    round adds `stability` in the unit of V^2.

    One pass makes as many rounds as the given batch leaves: V does not depend on R then.
    """
    batch = case.drawn()

    def enough(R: int) -> bool:
        fast, noisy = errors(R)
        return fast <= noisy and case.sampling(batch) <= case.private(batch, R) + stability * R

    return case.rounds or (case.candidates()[-1] if case.one_pass else smallest(enough, least))


def _least(case: Case, rounds: int) -> Any:
    """The smallest batch of the theorem's proof, the same share of every silo's records (Theorem 140)."""
    if case.noise is not None:
        return "full"
    shares = (max(1, math.ceil(smallest_batch(silo, rounds))) / silo.n for silo in case.s.silos)
    return subsample(max(shares))


def _predicted(case: Case, batch: Batch, R: int, errors: Errors) -> Callable[[], dict[str, float]]:
    return lambda: {"V": math.sqrt(case.squared(batch, R)), "excess": larger(errors(R))}


def accelerated_minibatch_sgd(case: Case) -> Derived:
    """Theorem 37, or 36 on disjoint batches: beta D^2 / R^2 against D V / sqrt R; the step is for V.

    The thesis leaves alpha_r and eta_r open in the convex case and regularises by lambda; step sizes
    1 / max(2 beta, R^(3/2) V / D) without lambda reach the same bound, so lambda is a note.
    """
    s, one_pass = case.s, case.one_pass
    name = f"accelerated MB-SGD, {'one pass (Theorem 36)' if one_pass else 'empirical risk (Theorem 37)'}"
    L, beta, D = s.need(name, "L", "beta", "D")

    def errors(R: int) -> tuple[float, float]:
        return beta * D**2 / R**2, D * math.sqrt(case.squared(case.drawn(R), R) / R)

    if case.noise is not None:
        R = _rounds(case, errors)
    elif one_pass:
        size = (L / (beta * D)) ** 0.4 * s.n**0.6 * (s.d * s.log) ** 0.2
        R = s.n // min(s.n, max(1, math.ceil(size / ((s.reach / s.n) ** 0.4 * s.M**0.2))))
    else:
        reach = beta * D / L * math.sqrt(s.signal / (s.d * s.log))
        R = rounded(max(math.sqrt(reach), _redrawn(s)))
    V = math.sqrt(case.squared(case.drawn(R), R))
    values = {
        "num_rounds": R,
        "step_size": 1 / max(2 * beta, R**1.5 * V / D),
        "clip_norm": case.clip,
        "strong_convexity": 0.0,
        "batch": fresh(R) if one_pass else "full",
    }
    notes = {"lambda": V / (D * math.sqrt(R))}
    return case.derived(name, values, _predicted(case, case.drawn(R), R, errors), notes)


def _redrawn(s: Symbols) -> float:
    """eps^2 n^2 / (K d ln(1/delta)) with K = n: rounds that a draw of silos needs; 0 if all take part."""
    return s.reach**2 / (s.n * s.d * s.log) if s.M < s.N else 0.0


def multi_stage_accelerated_minibatch_sgd(case: Case) -> Derived:
    """Theorems 36 (fresh batches) and 37, strongly convex: R = O(sqrt(kappa) ln(signal)).

    Stage k of B.1.6.1 takes max(4 sqrt(2 kappa), 128 V^2 / (3 mu Delta 2^-(k+1))) rounds and halves Delta.
    """
    s, one_pass = case.s, case.one_pass
    name = f"multi-stage accelerated MB-SGD ({'one pass, Theorem 36' if one_pass else 'Theorem 37'})"
    _, beta, mu, Delta = s.need(name, "L", "beta", "mu", "Delta")
    S, R = _stages(case, name) if case.noise is not None else (0, _stated_stages(case, name))
    V = math.sqrt(case.squared(case.drawn(R), R))
    first = math.ceil(512 * V**2 / (3 * mu * Delta))  # 128 V^2 / (3 mu Delta 2^-(k+1)) at k = 1
    if case.noise is None and first > R:
        hint = f"larger: {name} needs {first} rounds in its first stage, so large is the noise, and has {R}"
        raise InputError("scenario.privacy.epsilon", s.epsilon, hint)
    values = {
        "num_rounds": R,
        "smoothness": beta,
        "strong_convexity": mu,
        "initial_excess": Delta,
        "clip_norm": case.clip,
        "noise": V,
        "batch": fresh(R) if one_pass else "full",
    }
    return case.derived(name, values, lambda: {"V": V, "excess": Delta * 2.0**-S})


def _stated_stages(case: Case, name: str) -> int:
    """R of log2(signal) stages of 4 sqrt(2 kappa) rounds; once V rules, stages are longer and fewer fit."""
    s = case.s
    L, beta, mu, Delta, phi = s.need(name, "L", "beta", "mu", "Delta", "phi")
    signal = s.signal / (L**2 * s.d * s.log)
    signal = min(signal, s.n * s.M / phi**2) if case.one_pass else signal
    R = math.ceil(log(mu * Delta * signal) / math.log(2)) * math.ceil(4 * math.sqrt(2 * beta / mu))
    if case.one_pass and s.n < R:
        hint = f"at most what leaves R <= n = {s.n}: {name} needs R = {R} disjoint batches"
        raise InputError("scenario.assumptions.beta", beta, hint)
    return R if case.one_pass else max(R, rounded(_redrawn(s)))


def _stages(case: Case, name: str) -> tuple[int, int]:
    """(S, R): the most stages S that fit into R rounds at the noise V of a plan of R rounds, and R.

    V grows with R, and the stages' rounds grow with V. The smallest R that holds S stages is therefore the
    least fixed point of R -> needed(S, R), and iterating from below finds it. S is the largest number of
    stages for which a fixed point exists.
    """
    _, beta, mu, Delta = case.s.need(name, "L", "beta", "mu", "Delta")
    batch, shortest = case.drawn(), 4 * math.sqrt(2 * beta / mu)

    def needed(S: int, R: int) -> int:
        squared = case.squared(batch, R)
        stages = (128 * squared * 2.0 ** (k + 1) / (3 * mu * Delta) for k in range(1, S + 1))
        return sum(math.ceil(max(shortest, noisy)) for noisy in stages)

    most = case.rounds or (case.candidates()[-1] if case.one_pass else MOST_ROUNDS)
    S, R = 0, 0
    while True:
        limit = min(most, _LONGEST * math.ceil(shortest) * (S + 1))
        longer = max(R, (S + 1) * math.ceil(shortest))
        while longer <= limit and (more := needed(S + 1, longer)) > longer:
            longer = more
        if longer > limit:
            break
        S, R = S + 1, longer
    if S == 0:
        hint = f"larger: {name} cannot end its first stage for noise, or for want of rounds"
        raise InputError("scenario.privacy.epsilon", case.s.epsilon, hint)
    return S, case.rounds or R
