"""Convex theorems for the noise that the plan really has; see `fedsim.theory.joint`."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedsim.common.errors import InputError
from fedsim.theory.joint import MOST_ROUNDS, Case, Errors, larger, smallest
from fedsim.theory.parameters import accelerated
from fedsim.theory.theorem import Derived

_LONGEST = 100  # times the rounds that stages take without noise: one that makes it more is not begun


def noisy_minibatch_sgd(case: Case) -> Derived:
    """Theorem 34: beta D^2 / R against D sqrt(V^2 / R + L^2 / (n M)); with mu, its strongly convex part.

    The last term is stability's, from empirical to population risk (Lemma 99). Drawn records need rounds
    until what they add is no more than the rest.
    """
    s = case.s
    if s.mu is not None:
        return _strongly_convex(case)
    L, beta, D = s.need("noisy MB-SGD (Theorem 34)", "L", "beta", "D")
    batch, stability = case.drawn(), L**2 / (s.n * s.M)

    def floor(R: int) -> float:
        return case.squared(batch, R) / R + stability

    def errors(R: int) -> tuple[float, float]:
        return beta * D**2 / R, D * math.sqrt(floor(R))

    R = _rounds(case, errors, stability=stability)
    step = min(1 / beta, D / (R * math.sqrt(floor(R))))
    values = {"num_rounds": R, "step_size": step, "batch": "full"}
    V, excess = math.sqrt(case.squared(batch, R)), larger(errors(R))
    return case.derived("noisy MB-SGD, convex (Theorem 34)", values, V, excess=excess)


def _strongly_convex(case: Case) -> Derived:
    """beta D^2 e^(-R / (2 kappa)) against V^2 / (mu R) + L^2 / (mu n M); the step is Lemma 102's for V."""
    s, batch = case.s, case.drawn()
    L, beta, mu, D = s.need("noisy MB-SGD (Theorem 34)", "L", "beta", "mu", "D")
    stability = L**2 / (s.n * s.M)

    def errors(R: int) -> tuple[float, float]:
        floor = case.squared(batch, R) / R + stability
        return beta * D**2 * math.exp(-R * mu / (2 * beta)), floor / mu

    R = _rounds(case, errors, math.ceil(2 * beta / mu), stability)
    squared = max(case.squared(batch, R), 1e-300)
    step = min(1 / (2 * beta), math.log(max(2.0, (mu * R * D) ** 2 / squared)) / (mu * R))
    values = {"num_rounds": R, "step_size": step, "strong_convexity": mu, "batch": "full"}
    name = "noisy MB-SGD, strongly convex (Theorem 34)"
    return case.derived(name, values, math.sqrt(squared), excess=larger(errors(R)))


def _rounds(case: Case, errors: Errors, least: int = 1, stability: float = 0.0) -> int:
    """The smallest R at which neither optimisation nor draws of records err more than the rest.

    Args:
        stability: what a round adds to the rest, in the unit of V^2.
    """
    batch = case.drawn()

    def enough(R: int) -> bool:
        fast, noisy = errors(R)
        return fast <= noisy and case.sampling(batch) <= case.private(batch, R) + stability * R

    return case.rounds or (case.candidates()[-1] if case.one_pass else smallest(enough, least))


def accelerated_minibatch_sgd(case: Case) -> Derived:
    """Theorem 37, or 36 on disjoint batches: beta D^2 / R^2 against D V / sqrt R; the step is for V.

    One pass makes as many rounds as the given batch leaves: V does not depend on R then.
    """
    s, batch = case.s, case.drawn()
    name = (
        f"accelerated MB-SGD, {'one pass (Theorem 36)' if case.one_pass else 'empirical risk (Theorem 37)'}"
    )
    _, beta, D = s.need(name, "L", "beta", "D")

    def errors(R: int) -> tuple[float, float]:
        return beta * D**2 / R**2, D * math.sqrt(case.squared(batch, R) / R)

    R = _rounds(case, errors)
    V = math.sqrt(case.squared(batch, R))
    return case.derived(name, accelerated(s, R, V) | {"batch": "full"}, V, excess=larger(errors(R)))


def multi_stage_accelerated_minibatch_sgd(case: Case) -> Derived:
    """Theorems 36 and 37: as many stages as fit into a number of rounds whose own V they are made for.

    Stage k of B.1.6.1 takes max(4 sqrt(2 kappa), 128 V^2 / (3 mu Delta 2^-(k+1))) rounds and halves Delta;
    V grows with their sum R. The smallest R that holds S stages is the least fixed point of that sum and is
    found from below; S is the most that has one.
    """
    s = case.s
    name = f"multi-stage accelerated MB-SGD ({'one pass, Theorem 36' if case.one_pass else 'Theorem 37'})"
    _, beta, mu, Delta = s.need(name, "L", "beta", "mu", "Delta")
    batch, shortest = case.drawn(), 4 * math.sqrt(2 * beta / mu)

    def needed(S: int, R: int) -> int:
        squared = case.squared(batch, R)
        stages = (128 * squared * 2.0 ** (k + 1) / (3 * mu * Delta) for k in range(1, S + 1))
        return sum(math.ceil(max(shortest, noisy)) for noisy in stages)

    most = case.rounds or (case.candidates()[-1] if case.one_pass else MOST_ROUNDS)
    S, R = _stages(needed, math.ceil(shortest), most)
    if S == 0:
        expected = f"larger: {name} cannot end its first stage for noise, or for want of rounds"
        raise InputError("scenario.privacy.epsilon", s.epsilon, expected)
    R = case.rounds or R
    V = math.sqrt(case.squared(batch, R))
    values = {
        "num_rounds": R,
        "smoothness": beta,
        "strong_convexity": mu,
        "initial_excess": Delta,
        "noise": V,
        "batch": "full",
    }
    return case.derived(name, values, V, excess=Delta * 2.0**-S)


def _stages(needed: Callable[[int, int], int], shortest: int, most: int) -> tuple[int, int]:
    """(S, R): the most stages that `most` rounds hold, and the smallest R that holds them; (0, 0) if none."""
    S, R = 0, 0
    while True:
        limit = min(most, _LONGEST * shortest * (S + 1))
        longer = max(R, (S + 1) * shortest)
        while longer <= limit and (more := needed(S + 1, longer)) > longer:
            longer = more
        if longer > limit:
            return S, R
        S, R = S + 1, longer
