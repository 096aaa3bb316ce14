"""What theorems supply for a scenario: the numbers that it leaves to them, and the noise that it fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedsim.algorithms.registry import algorithms
from fedsim.algorithms.section import THEOREM
from fedsim.common.errors import InputError
from fedsim.common.registry import Registry
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.regularisers import L2Ball
from fedsim.protocol.batch import Fresh
from fedsim.protocol.contract import traits
from fedsim.protocol.statistics import GRADIENT, OPPOSITE, Extent
from fedsim.scenario.model import Scenario
from fedsim.scenario.privacy import PrivacySection
from fedsim.theory.averaged_noise import Kind, Noise, SummedNoise, averaged_noise
from fedsim.theory.participants import law
from fedsim.theory.symbols import Constants, Premises, symbols
from fedsim.theory.theorem import Derived, Prescribed

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedsim.theory.choice import Case

_RATIO = "difference_noise_ratio"
_PLACES = {
    "noisy_minibatch_sgd": "convex_choice:noisy_minibatch_sgd",
    "accelerated_minibatch_sgd": "convex_choice:accelerated_minibatch_sgd",
    "multi_stage_accelerated_minibatch_sgd": "convex_choice:multi_stage_accelerated_minibatch_sgd",
    "prox_sgd": "proximal_choice:prox_sgd",
    "prox_pl_svrg": "proximal_choice:prox_pl_svrg",
    "prox_spider": "proximal_choice:prox_spider",
}
CHOICES: Registry[Callable[[Case], Derived]] = Registry.of("fedsim.theory", _PLACES)
"""{algorithm: its theorem's choice}; other algorithms have no utility theorem that can be computed."""


def constants(scenario: Scenario) -> Constants:
    """The constants that the scenario states; L defaults to the clipping norm, D to a ball's diameter."""
    stated, constraint = scenario.assumptions, scenario.problem.constraint
    ball = 2 * constraint.radius if isinstance(constraint, L2Ball) else None
    clip = traits(scenario.algorithm).clip_norm
    defaults = {"L": clip if isinstance(clip, int | float) else None, "D": ball}
    missing = {key: value for key, value in defaults.items() if dict(stated)[key] is None}
    return stated.model_copy(update=missing)


def need_privacy(privacy: PrivacySection, theorem: bool = True) -> None:
    """Refuse a scenario without noise; and of units that are added or removed, which no `theorem` covers."""
    name = privacy.mechanism
    if theorem and privacy.unit.spread(GRADIENT.name) < OPPOSITE:
        hint = "one that replaces: theorems and bounds take a sum to move by 2 clip; give numbers, or auto"
        raise InputError("scenario.privacy.unit.relation", privacy.unit.relation, hint)
    if privacy.some_public:
        hint = "numbers: theorems, bounds and auto take every silo to add noise; or give the algorithm's"
        raise InputError("scenario.privacy.epsilon", privacy.epsilon, hint)
    if not MECHANISMS[name].private:
        private = ", ".join(other for other, mechanism in MECHANISMS.items() if mechanism.private)
        raise InputError("scenario.privacy.mechanism", name, f"theorems and bounds need noise: {private}")


def need_equal_noise(scenario: Scenario) -> None:
    """InputError where noise falls over the rounds, which no theorem or rule for numbers covers."""
    if (decay := traits(scenario.algorithm).noise_decay) != 1:
        hint = "1: theorems and auto take every round to have the same noise; or give numbers"
        raise InputError("scenario.algorithm.noise_decay", decay, hint)


def with_numbers(scenario: Scenario, premises: Premises) -> tuple[Scenario, Derived | None]:
    """The scenario with every number of its algorithm, and what a theorem chose; given numbers stand.
    InputError if no theorem chooses this algorithm's numbers, or a constant that it needs is missing.
    """
    section = scenario.algorithm
    if section.parameters == "given":
        return scenario, None
    need_privacy(scenario.privacy)
    need_equal_noise(scenario)
    given = {key: value for key, value in section.model_dump(exclude_unset=True).items() if value is not None}
    chosen = _chosen(scenario, premises, given)
    known = type(section).model_fields
    values = {key: value for key, value in chosen.values.items() if key in known and key not in given}
    rest = {key: value for key, value in chosen.values.items() if key not in known}
    filled = type(section).model_validate(values | given)
    derived = Derived(chosen.theorem, values, rest | chosen.notes, chosen.predicted)
    return scenario.model_copy(update={"algorithm": filled}), derived


def _chosen(scenario: Scenario, premises: Premises, given: Mapping[str, Any]) -> Derived:
    """Every number of the algorithm, as its theorem chooses it; `given` ones among them are not used.

    With the theorem's noise a given number changes no other: each is the theorem's for its own choices. With
    the accountant the rest is chosen for the noise of the plan that has the given numbers.
    """
    section = scenario.algorithm
    name, batch = section.name, section.batch if "batch" in given else None  # type: ignore[attr-defined]
    if name not in CHOICES:
        hint = f"no theorem chooses the numbers of {name}; those of {', '.join(CHOICES)} have one"
        raise InputError("scenario.algorithm.parameters", "theorem", hint)
    from fedsim.theory.choice import Case  # parameters: theorem

    s = symbols(premises)
    if scenario.privacy.calibration != "accountant":
        return CHOICES[name](Case(s, s.clip or 0.0, batch))
    (L,) = s.need(f"the theorem of {name}", "L")
    clip = given.get("clip_norm", L / s.heaviest)
    derived = CHOICES[name](Case(s, clip, batch, given, noise_of(scenario.privacy, premises)))
    sums = MECHANISMS[scenario.privacy.mechanism].sums_only
    return replace(derived, theorem=f"{derived.theorem}, with secure aggregation") if sums else derived


def with_clip(scenario: Scenario, premises: Premises) -> tuple[Scenario, Derived | None]:
    """The scenario with the clip of its algorithm's theorem on heavy tails in place of `clip_norm: theorem`.

    InputError if the algorithm, its batches or the noise are none of a theorem's, or a constant is missing.
    """
    section: Any = scenario.algorithm
    if traits(section).clip_norm != THEOREM:
        return scenario, None
    from fedsim.theory.heavy_tails import CLIPS, bias  # clip_norm: theorem

    need_privacy(scenario.privacy)
    if section.name not in CLIPS:
        hint = f"a number: no theorem on heavy tails is of {section.name}, only of {', '.join(CLIPS)}"
        raise InputError("scenario.algorithm.clip_norm", THEOREM, hint)
    rule = CLIPS[section.name]
    needs = {
        "algorithm.batch": (isinstance(section.batch, Fresh), "batches of sampler fresh"),
        "algorithm.strong_convexity": (not rule.curved or section.strong_convexity > 0, "mu > 0"),
        "algorithm.num_rounds": (isinstance(section.num_rounds, int), "a number of rounds"),
        "privacy.calibration": (scenario.privacy.calibration == "accountant", "accountant"),
    }
    for field, (holds, hint) in needs.items():
        if not holds:
            part, name = field.split(".")
            value = dict(dict(scenario)[part])[name]
            raise InputError(f"scenario.{field}", value, f"clip_norm: theorem ({rule.theorem}) needs {hint}")
    symbols(premises).need(f"clip_norm: theorem, {rule.theorem}", "moment", "moment_bound")
    k, r = premises.constants.moment or 0.0, premises.constants.moment_bound or 0.0
    T, kind = section.num_rounds, Kind(section.batch, section.num_rounds)
    noise = (premises.dimension * noise_of(scenario.privacy, premises).variance(1.0, kind, [kind])) ** 0.5
    clip = rule.clip(k, r, noise, T)
    reason = f"noise of {T} rounds counts as much as the bias of clipping, at moment {k:g} and bound {r:g}"
    filled = scenario.model_copy(update={"algorithm": section.having(clip_norm=clip)})
    predicted = {"bias": bias(k, r, clip), "noise": clip * noise}
    return filled, Derived(rule.theorem, {"clip_norm": clip}, {}, predicted, {"clip_norm": reason})


def noise_of(privacy: PrivacySection, premises: Premises) -> Noise:
    """The noise of a round's mean: each silo's own, or the common noise of secure aggregation."""
    need_privacy(privacy, theorem=False)
    own = averaged_noise(premises)
    if not MECHANISMS[privacy.mechanism].sums_only:
        return own
    sizes, d = [claim.n for claim in premises.claims], premises.dimension
    extent = Extent(d, d, premises.unit.spread(GRADIENT.name))
    sums = privacy.sums(extent, sizes, premises.weights, premises.participants)
    share = 0.0 if privacy.noise_by == "aggregators" else sums.mechanism.colluding(1.0) ** 2
    turnout = law(premises.participants, len(sizes))
    return SummedNoise(own, sums.mechanism, sums.pool, turnout, share, 0.0 if share else 2.0)


def with_stated_noise(scenario: Scenario, premises: Premises) -> tuple[Scenario, Prescribed | None]:
    """The noise of the algorithm's theorem, where the scenario asks for it; its algorithm gets the ratio of
    its two noises. InputError outside the theorem's conditions, or if no theorem covers the algorithm.
    """
    privacy, section = scenario.privacy, scenario.algorithm
    if not MECHANISMS[privacy.mechanism].private or privacy.calibration != "theorem":
        return scenario, None
    from fedsim.theory.stated_noise import stated_noise  # calibration: theorem

    need_privacy(privacy)
    need_equal_noise(scenario)
    algorithm, allowed, kind = section.build(), privacy.allow_violations, section.kind
    known = algorithms().get(section.name) is kind  # else a user's class, which may have any name
    name = section.name if known else f"{kind.__module__}.{kind.__qualname__}"
    prescribed, ratio = stated_noise(name, algorithm, premises, privacy.theorem, allowed)
    if hasattr(algorithm, _RATIO):
        section = section.having(**{_RATIO: ratio})
    return scenario.model_copy(update={"algorithm": section}), prescribed
