"""The loss that the noise in a run's model is expected to cost: a public number, for fits at home."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from fedsim.algorithms.whitened_newton import WhitenedNewton
from fedsim.problems.glm import GeneralisedLinear
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import traits
from fedsim.protocol.query import Query
from fedsim.protocol.statistics import GRADIENT
from fedsim.scenario.automatic import WITHOUT_RULE, course
from fedsim.scenario.chosen import ACCELERATED, usual_curvature
from fedsim.scenario.resolved import Resolved

_OF_AGGREGATE = 8 / 35
"""v of w_ag, the answer, over that of w: of sum_r (r (1 - r^2 / T^2))^2 over sum_r r^2, for many rounds T."""


def noise_cost(resolved: Resolved, noise_multipliers: Sequence[float]) -> float:
    """In the problem's loss; 0 without noise, infinity where no rule covers the run.

    Of gradient steps it is h r^2 eta^2 v(T) phi^2 / 2, with the symbols of `fedsim.scenario.automatic` but h
    the usual curvature, and phi^2 the variance of a round's mean. Of whitened_newton it is h |noise|^2 / 2,
    that of the mean of its rounds' steps in p coefficients, |noise|^2 = p phi^2 / (R h^2).
    """
    algorithm, problem, section = resolved.algorithm, resolved.problem, resolved.scenario.algorithm
    public, norms, known = (
        resolved.public(noise_multipliers),
        resolved.outline.squared_norms,
        traits(algorithm),
    )
    free = max(1, getattr(problem, "num_outputs", 1) - 1)  # scores that a model of k classes sets apart
    if not any(noise_multipliers):
        return 0.0 if noise_multipliers else inf  # before silos have said what noise they add
    if isinstance(algorithm, WhitenedNewton) and isinstance(problem, GeneralisedLinear):
        h, p = usual_curvature(problem), problem.num_features
        sd = public.noise(Query(GRADIENT.name, (), algorithm.factor(problem) * p**0.5, FULL))
        return free * p * sd**2 / (algorithm.num_rounds * h) / 2
    clip = section.private_clip.start if section.private_clip else known.clip_norm
    step, rounds = known.step_size, known.num_rounds
    if not isinstance(problem, GeneralisedLinear) or not problem.curvature or resolved.stages:
        return inf
    if not (norms and clip and step and rounds) or section.name in WITHOUT_RULE:
        return inf
    variance = public.noise(Query(GRADIENT.name, (), clip, known.batch or FULL)) ** 2
    _, gathered = course(section, rounds * known.local_steps)
    if section.name == ACCELERATED:
        gathered *= _OF_AGGREGATE
    seen = len(resolved.names) / resolved.premises.active * variance
    return float(free * usual_curvature(problem) * norms[1] * float(step) ** 2 * gathered * seen / 2)
