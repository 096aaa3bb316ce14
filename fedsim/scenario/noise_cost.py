"""The loss that the noise in a run's model is expected to cost: a public number, for fits at home."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import cast

from fedsim.problems.at_home import usual_curvature
from fedsim.problems.glm import GeneralisedLinear
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import traits
from fedsim.protocol.query import Query
from fedsim.protocol.statistics import GRADIENT
from fedsim.scenario.automatic import WITHOUT_RULE, course
from fedsim.scenario.resolved import Resolved


def noise_cost(resolved: Resolved, noise_multipliers: Sequence[float]) -> float:
    """In the problem's loss; 0 without noise, infinity where no rule covers the run.

    Of gradient steps it is h r^2 eta^2 v(T) phi^2 / 2, with the symbols of `fedsim.scenario.automatic` but h
    the usual curvature, and phi^2 the variance of a round's mean. An algorithm that knows better says so by a method of this name.
    """
    algorithm, problem, section = resolved.algorithm, resolved.problem, resolved.scenario.algorithm
    public, norms, known = (
        resolved.public(noise_multipliers),
        resolved.outline.squared_norms,
        traits(algorithm),
    )
    if not any(noise_multipliers):
        return 0.0
    if hasattr(algorithm, "noise_cost"):
        return cast(float, algorithm.noise_cost(public, problem))
    clip = section.private_clip.start if section.private_clip else known.clip_norm
    step, rounds = known.step_size, known.num_rounds
    covered = isinstance(problem, GeneralisedLinear) and problem.curvature and not resolved.stages
    if not (covered and norms and clip and step and rounds) or section.name in WITHOUT_RULE:
        return inf
    variance = public.noise(Query(GRADIENT.name, (), clip, known.batch or FULL)) ** 2
    _, gathered = course(section, rounds * known.local_steps)
    seen = len(resolved.names) / resolved.premises.active * variance
    return float(usual_curvature(problem) * norms[1] * float(step) ** 2 * gathered * seen / 2)
