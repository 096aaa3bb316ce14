"""`auto`: step size, clipping norm and rounds from declared ranges, sizes and budgets, never from records.

For features x and parameters W the gradient of a record's loss l(x W, y) is x outer l', and its Hessian is at
most h |x|^2, h the largest curvature of l in the scores. Declared ranges (or `record_norm`) bound |x| by a
public R, so that beta = h R^2 + l2 + ridge is public too.

- clip_norm: s r, with r the norm of a record that is spread evenly over its ranges, and s the slope of l that
  half of the records have at the start. Noise is proportional to the clip, and bias is small above it.
- step_size and num_rounds: a run of T steps of size eta has an optimisation error of at most D^2 b(T) / eta,
  and per coordinate of its answer noise of variance eta^2 v(T) phi^2, phi^2 that of a round's mean. A score
  moves by that noise times |x|, so that the loss grows by about h r^2 eta^2 v(T) phi^2 / 2. The sum is least
  at eta^3 = D^2 b(T) / (h r^2 v(T) phi^2). The step is the smaller of that and 1 / beta, and num_rounds the
  smallest T for which that is no larger than 1 / beta: phi^2 is calibrated to the plan of T rounds, and grows
  with T as fast as the step falls, so that more rounds would gain nothing.

b of gradient descent is 1 / (4 T) for the last iterate (Drori and Teboulle, Mathematical Programming 145,
2014, Theorem 3.1) and 1 / (2 T) for the mean; of the accelerated method it is 2 / T^2 (Lan, Mathematical
Programming 133, 2012). D = 4 is the distance to a model that the rules assume: scores of such a model differ
by up to 8 r. Where optimum and noise are others, the step is not the best, but no guarantee depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from fedsim.algorithms.section import AUTO
from fedsim.common.errors import InputError
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.glm import OWN, GeneralisedLinear, KinkedLoss, LinearRegression
from fedsim.problems.kinds import Problem
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Algorithm, traits
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.by_theorem import need_equal_noise, noise_of, with_clip
from fedsim.scenario.chosen import moment_numbers, with_chosen
from fedsim.scenario.model import Scenario
from fedsim.theory.averaged_noise import Kind
from fedsim.theory.symbols import Premises
from fedsim.theory.theorem import Derived, smallest

DISTANCE = 4.0
MOST_ROUNDS = 500
"""Rounds beyond which noise is too small to matter; what is left is optimisation error."""
NETWORK = {"clip_norm": 1.0, "step_size": 1.0}
"""A network has no public bound: a round moves its parameters at most by 1, plus noise."""
WITHOUT_RULE = (
    "fedadam",
    "localized_accelerated_sgd",
    "prox_svrg",
    "prox_pl_svrg",
    "prox_spider",
    "spider_alternate",
)
"""Algorithms whose steps are no gradient steps, or whose plans release differences too."""


@dataclass(frozen=True)
class Bounds:
    """Public bounds on a linear model's records."""

    curvature: float  # h, the largest second derivative of the loss in a score
    slope: float  # s, the derivative of the loss that a record typically has at the start
    typical: float  # r, the norm of a record spread evenly over its ranges
    smoothness: float  # beta of a record's loss and the public part

    @classmethod
    def of(cls, problem: GeneralisedLinear, squared_norms: tuple[float, float] | None, field: str) -> Bounds:
        """The bounds, with `squared_norms` as `Outline` has them; InputError on `field`, which asks for them,
        where one is missing. A kink has infinite curvature, which a clip does not need.
        """
        kind = type(problem)
        if squared_norms is None:
            hint = "a number: records have no public bound; declare ranges (of a numeric target too), "
            raise InputError(field, AUTO, hint + "or give data.record_norm for classes")
        largest, typical = squared_norms
        smoothed = problem.smoothing if isinstance(problem, KinkedLoss) else None
        curvature = smoothed / largest if smoothed else kind.curvature
        if kind.typical_slope is None or (curvature is None and not field.endswith("clip_norm")):
            hint = f"a number, or state curvature and typical_slope in the class {kind.__qualname__}"
            if isinstance(problem, KinkedLoss):
                hint = "a number: the loss has a kink; or give problem.smoothing"
            raise InputError(field, AUTO, hint)
        curvature = inf if curvature is None else curvature
        public, records = problem.composite.quadratic, problem.composite.records
        if records is not None and records.by_server and not (records.weight and records.inverse is None):
            raise InputError(field, AUTO, "a number: no rule covers a preconditioner or weight optimal")
        weight = 1.0 if records is None else 1.0 + records.weight  # of the silos' losses, and of public ones
        return cls(curvature, kind.typical_slope, sqrt(typical), curvature * largest * weight + public)


def with_automatic(
    scenario: Scenario, premises: Premises, problem: Problem, squared_norms: tuple[float, float] | None
) -> tuple[Scenario, Derived | None]:
    """The scenario with a number in place of every `auto` of its algorithm, and of a clip by theorem,
    with the reasons. InputError if no rule covers the algorithm, the loss or the noise; it says what to give.
    """
    scenario, why = with_chosen(scenario, premises, problem, squared_norms)
    scenario, clipped = with_clip(scenario, premises)
    section, numbers = scenario.algorithm, ("clip_norm", "num_rounds", "step_size", "moment_clip", "steps")
    asked = [name for name in numbers if dict(section).get(name) == AUTO]
    if not asked:
        return scenario, clipped
    need_equal_noise(scenario)
    if "moment_clip" in dict(section) and isinstance(problem, GeneralisedLinear):
        found, reasons = moment_numbers(scenario, premises, problem, squared_norms)
    elif isinstance(problem, GeneralisedLinear):
        bounds = Bounds.of(problem, squared_norms, f"scenario.algorithm.{asked[-1]}")
        found, reasons = _linear(scenario, premises, bounds, asked)
    else:
        if "num_rounds" in asked:
            raise InputError("scenario.algorithm.num_rounds", AUTO, "a number: no rule covers a network")
        found = {name: NETWORK[name] for name in asked}
        reasons = dict.fromkeys(asked, "for every network: a round moves it at most by 1, plus noise")
    filled = scenario.model_copy(update={"algorithm": section.having(**found)})
    if why:
        rest = {"diagonal": True} if getattr(section, "diagonal", False) else {}
        found, reasons = {"name": section.name, **rest} | found, {"name": why} | reasons
    return filled, Derived("automatic", found, reasons=reasons).beside(clipped)


def _linear(
    scenario: Scenario, premises: Premises, bounds: Bounds, asked: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    section, found, reasons = scenario.algorithm, dict[str, Any](), dict[str, str]()
    if "clip_norm" in asked:
        found["clip_norm"] = float(f"{bounds.slope * bounds.typical:.2g}")
        norm = f"{bounds.typical:.3g}, the norm of a record spread evenly over its ranges"
        reasons["clip_norm"] = f"{bounds.slope:g} times {norm}"
    if asked == ["clip_norm"]:
        return found, reasons
    if section.name in WITHOUT_RULE:
        hint = f"a number, or parameters: theorem where there is one: no rule covers {section.name}"
        raise InputError(f"scenario.algorithm.{asked[-1]}", AUTO, hint)
    rule = section.private_clip
    clip: Any = rule.start if rule else found.get("clip_norm", traits(section).clip_norm)
    best, largest = _best_step(scenario, premises, bounds, clip), 1 / bounds.smoothness
    rounds = dict(section).get("num_rounds", 1)
    if rounds == AUTO:
        rounds = min(MOST_ROUNDS, smallest(lambda T: T >= MOST_ROUNDS or best(T) <= largest))
        found["num_rounds"] = rounds
        reasons["num_rounds"] = "more would add as much noise as they gain, in the worst case of the ranges"
        if best(rounds) > largest:
            reasons["num_rounds"] = "the most that are chosen; noise is small"
    if "step_size" in asked:
        step, limit = (float(f"{value:.2g}") for value in (min(best(rounds), largest), largest))
        found["step_size"] = step
        reasons["step_size"] = (
            f"1 / beta, beta = {bounds.smoothness:.3g} the largest curvature within the declared ranges"
            if step == limit
            else f"less than 1 / beta = {limit:g}, because of the noise of {rounds} rounds"
        )
    return found, reasons


def _best_step(scenario: Scenario, premises: Premises, bounds: Bounds, clip: float) -> Callable[[int], float]:
    """T to the step that balances optimisation error and noise; infinity without noise."""
    section, private = scenario.algorithm, MECHANISMS[scenario.privacy.mechanism].private
    if private and scenario.privacy.calibration != "accountant":
        hint = "accountant, or numbers in place of auto: the noise must follow from the budget"
        raise InputError("scenario.privacy.calibration", scenario.privacy.calibration, hint)
    noise = noise_of(scenario.privacy, premises) if private else None
    # An object's section holds its batch as text.
    given = traits(section.build() if isinstance(section, GivenAlgorithm) else section)
    batch, local = given.batch or FULL, given.local_steps

    def best(rounds: int) -> float:
        kind = Kind(batch, rounds * local)
        variance = 0.0 if noise is None else noise.variance(clip, kind, [kind])
        left, gathered = course(section, rounds * local)
        grown = bounds.curvature * bounds.typical**2 * gathered * variance
        return (DISTANCE**2 * left / grown) ** (1 / 3) if grown else inf

    return best


def course(section: Any, T: int) -> tuple[float, float]:
    """(b, v): optimisation error D^2 b / eta, variance eta^2 v phi^2 of the noise in the answer."""
    if section.name == "accelerated_minibatch_sgd":
        return 2 / T**2, T**3 / 12
    averaged = section.name == "noisy_minibatch_sgd" and not section.last_iterate
    return (1 / (2 * T), T / 3) if averaged else (1 / (4 * T), T)


def step_warning(
    algorithm: Algorithm, problem: Problem, squared_norms: tuple[float, float] | None
) -> list[str]:
    """A line where the step is so large that gradient descent may diverge, above 2 / beta; else none.

    A loss whose slope is bounded cannot diverge, and few data sets have all records at the ends of their
    ranges: there the line is for ten times that.
    """
    step = traits(algorithm).step_size
    if not isinstance(step, float) or not isinstance(problem, GeneralisedLinear):
        return []
    with suppress(InputError):
        limit = 2 / Bounds.of(problem, squared_norms, "").smoothness
        bounded = type(problem) in OWN and not isinstance(problem, LinearRegression)
        if step > (10 * limit if bounded else limit):
            return [
                f"step_size {step:g} is above 2 / beta = {limit:.2g}: in the worst case that the declared "
                f"ranges allow, a run with it {'oscillates' if bounded else 'diverges'}; step_size: auto "
                "takes one that does not, where a rule covers the run"
            ]
    return []
