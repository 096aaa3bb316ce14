"""`algorithm: auto`: Newton steps on whitened records where public numbers say that noise is small, else
accelerated minibatch SGD; and the numbers of the former. Records are never looked at.

2 C s_0 is the deviation of a coordinate of a round's mean gradient that has the whole budget, at the clip C.
With p features, of typical squared norm r^2 (`Outline.squared_norms`), and h the curvature of the loss,

- x is the squared length of the noise in whitened records' coefficients after one Newton step, over that of
  coefficients of length 4: x = p (c s sqrt(p) 2 s_0)^2 / (0.8 h^2) / 16, c s sqrt(p) the clip;
- f is the spectral norm of the noise on the second moment, at a fifth of mu^2, over a typical eigenvalue.

The thresholds, and S = 1.3 x^-0.3 Newton steps in max(6, 2 S) rounds, are what did best on 22 tables
(benchmarks/worth.py): no guarantee depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedsim.algorithms.section import AUTO, section_of
from fedsim.algorithms.whitened_newton import STEPS, usual_factor
from fedsim.common.errors import InputError
from fedsim.privacy.gaussian import mu
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem
from fedsim.protocol.batch import FULL
from fedsim.scenario.by_theorem import noise_of
from fedsim.scenario.model import Scenario
from fedsim.theory.averaged_noise import Kind
from fedsim.theory.symbols import Premises

WHITENED, ACCELERATED = "whitened_newton", "accelerated_minibatch_sgd"
_CURVATURE = 0.2  # of two classes whose shares are not far from equal
_WHOLE, _DIAGONAL = 0.003, 0.01  # x below which the moment is worth its share, whole or its diagonal
_MOST_OF_NUMBER = 6.0  # Newton steps
Norms = tuple[float, float] | None


class Noise(NamedTuple):
    """What the noise is expected to do: x and f."""

    model: float
    moment: float

    @classmethod
    def of(cls, scenario: Scenario, premises: Premises, problem: GeneralisedLinear, norms: Norms) -> Noise:
        """By the budgets, and declared ranges."""
        assert norms is not None
        h, p = usual_curvature(problem), problem.num_features
        factor = usual_factor(problem) * (problem.typical_slope or 1.0)
        one = Kind(FULL, 1)
        private = MECHANISMS[scenario.privacy.mechanism].private
        variance = (
            noise_of(scenario.privacy, premises).variance(1.0, one, [one]) if private else 0.0
        )  # (2 s_0)^2
        eigenvalue = (norms[1] - 1) / 2 / max(p - 1, 1)
        spectral = 0.5 * math.sqrt(2.0) * norms[1] * math.sqrt(variance) / 2 * math.sqrt(2 * p / 0.2)
        return cls(_length(p, factor, h, variance), spectral / max(eigenvalue, 1e-9))


def _length(p: int, factor: float, h: float, variance: float) -> float:
    """x, with the clip factor sqrt(p)."""
    return p**2 * factor**2 * variance / 0.8 / (16 * h**2)


def curves_pay(sizes: Sequence[int], p: int, epsilon: float) -> bool:
    """Whether Newton steps would be chosen for two classes by p features, of which many are hats.

    Silos of these sizes weigh by them, with delta 1/n^2.
    """
    total = sum(sizes)
    variance = sum((2 / total / float(mu(epsilon, 1 / n**2))) ** 2 for n in sizes)
    return _length(p, 0.75, _CURVATURE, variance) < _DIAGONAL


def usual_curvature(problem: GeneralisedLinear) -> float:
    """h, of a record's loss in a score."""
    if isinstance(problem, LinearRegression):
        return 1.0
    return _CURVATURE if problem.num_outputs == 1 else 1 / problem.num_outputs


def with_chosen(
    scenario: Scenario, premises: Premises, problem: Problem, norms: Norms
) -> tuple[Scenario, str]:
    """The scenario with the section of an algorithm in place of `auto`, and why it is that one.

    InputError for a network, or records without bounds, of which there is no rule.
    """
    if scenario.algorithm.name != AUTO:
        return scenario, ""
    if not isinstance(problem, GeneralisedLinear):
        hint = "a name, such as noisy_minibatch_sgd, with its num_rounds: no rule chooses for a network"
        raise InputError("scenario.algorithm", AUTO, hint)
    if norms is None:
        hint = "a name, with numbers: records have no public bound; declare ranges (of a numeric target too)"
        raise InputError("scenario.algorithm", AUTO, hint)
    given: dict[str, Any] = dict.fromkeys(("step_size", "clip_norm"), AUTO)
    name, why = ACCELERATED, _unfit(scenario, premises, problem)
    if not why:
        noise = Noise.of(scenario, premises, problem, norms)
        two = isinstance(problem, LogisticRegression)
        most = 2.0 if two or isinstance(problem, LinearRegression) else 1.1
        whole = noise.moment < most and (noise.model < _WHOLE or not two)
        length = f"noise is expected to have {math.sqrt(noise.model):.2g} of the length of a strong model"
        if whole or (two and noise.model < _DIAGONAL):
            name, given = WHITENED, {"moment_clip": AUTO, "steps": AUTO, "diagonal": not whole}
            why = f"a second moment is worth its share of the budget: {length}"
        else:
            why = f"a second moment is not worth its share of the budget: {length}, and that of the moment "
            why += f"{noise.moment:.2g} of a typical eigenvalue"
    given["num_rounds"] = dict(scenario.algorithm)["num_rounds"]
    return scenario.model_copy(update={"algorithm": section_of(name)(name=name, **given)}), why


def _unfit(scenario: Scenario, premises: Premises, problem: GeneralisedLinear) -> str:
    """Why Newton steps are out of the question; empty where they are not."""
    privacy, composite = scenario.privacy, problem.composite
    kept = privacy.calibration == "accountant" and privacy.epsilon != "unlimited" and not privacy.some_public
    return next(
        (
            f"whitened_newton is for {what}"
            for what, holds in {
                "logistic (without score_bound), softmax and linear regression": type(problem) in _PROBLEMS,
                "Gaussian noise": privacy.mechanism in ("gaussian", "summed_gaussian"),
                "budgets that the accountant keeps": kept,
                "all silos in every round": premises.participants is None,
                "features with a constant one": scenario.data.intercept,
                "problems without regulariser, constraint and public records": composite.empty
                and composite.records is None,
                "runs without prepare": not scenario.prepare,
                "persons that are not clipped whole": "bound clip" not in privacy.unit.facts
                or not privacy.unit.facts["bound clip"],
            }.items()
            if not holds
        ),
        "",
    )


_PROBLEMS = LogisticRegression, SoftmaxRegression, LinearRegression


def moment_numbers(
    scenario: Scenario, premises: Premises, problem: GeneralisedLinear, norms: Norms
) -> tuple[dict[str, Any], dict[str, str]]:
    """The numbers that are `auto` of an algorithm with a second moment, and why.

    InputError where no ranges bound records.
    """
    section: Any = scenario.algorithm
    asked = [name for name in ("moment_clip", "num_rounds", "steps") if dict(section).get(name) == AUTO]
    if norms is None:
        hint = "a number: records have no public bound; declare ranges"
        raise InputError(f"scenario.algorithm.{asked[0]}", AUTO, hint)
    typical = norms[1] + (
        1 / 3 if section.name == "sufficient_statistics" else 0.0
    )  # of (x, y), y in [-1, 1]
    x = Noise.of(scenario, premises, problem, norms).model
    steps, numbers = 1.3 * max(x, 1e-9) ** -0.3, isinstance(problem, LinearRegression)
    held = min(max(steps, STEPS[0]), _MOST_OF_NUMBER if numbers else STEPS[1])
    # the algorithm itself holds steps to the bounds where shares of two classes are released
    own = steps if problem.num_outputs <= 2 and not numbers else held
    found: dict[str, Any] = {
        "moment_clip": float(f"{0.8 * typical:.3g}"),
        "num_rounds": max(6, math.ceil(2 * held)),
        "steps": float(f"{own:.3g}"),
    }
    reasons = {
        "moment_clip": f"0.8 of {typical:.3g}, the squared norm of a record spread evenly over its ranges",
        "num_rounds": "rounds of half a step or less, whose average has less noise",
        "steps": f"more where noise is small: it has about {math.sqrt(x):.2g} of a strong model's length"
        + f"; at most {STEPS[1]:g} are taken, of a rare class fewer" * (own != held or own > STEPS[1]),
    }
    return {name: found[name] for name in asked}, {name: reasons[name] for name in asked}
