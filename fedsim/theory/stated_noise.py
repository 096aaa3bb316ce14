"""The noise that an algorithm's theorem states for a claimed epsilon and delta.

Theorems are found by the algorithm's name in scenarios: they need its public numbers, not its code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, Literal

from fedsim.common.errors import InputError
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import Fresh
from fedsim.theory import theorem_noise
from fedsim.theory.symbols import Premises
from fedsim.theory.theorem import Check, Prescribed, Theorem

Choice = Literal["thesis", "experiments"]
_Stated = Callable[..., Theorem]


def stated_noise(
    name: str, algorithm: Any, premises: Premises, choice: Choice, allow_violations: bool
) -> tuple[Prescribed, float]:
    """z_i such that what the theorem states is what the gate adds, for every kind of release; and z of a
    difference over z of a gradient, 1 where there are no differences.

    A plan has one such ratio for all silos. Where the theorem's differs between silos (other delta_i or
    rounding of K_i), the largest counts: differences then get at least the stated noise.

    Args:
        premises: what the theorem starts from; its claims are what the noise is for.
        choice: "thesis", the algorithm's theorem; "experiments", the formula of the thesis's experiments.
        allow_violations: report conditions that do not hold instead of refusing them.

    Raises:
        InputError: no theorem, or no experiments' formula, speaks of the algorithm; or a condition fails.
    """
    stated = _stated(name, algorithm, choice)
    theorems = [_at(stated, algorithm, claim, premises) for claim in premises.claims]
    violations = _violations(theorems, premises.names)
    title = theorems[0].title
    if violations and not allow_violations:
        check, silos = violations[0]
        here = f"{'that is' if isinstance(check.value, str) else 'here'} {check.bound}"
        hint = f"{title} needs {check.condition}, {here} ({_shortened(silos)}); "
        hint += "privacy.allow_violations=true runs all the same, and the report says so"
        raise InputError(f"scenario.{check.field}", check.value, hint)
    noise, lines = tuple(one.multiplier for one in theorems), tuple(_line(*each) for each in violations)
    return Prescribed(noise, title, lines), max(theorem.difference_ratio for theorem in theorems)


def _at(stated: _Stated, algorithm: Any, claim: Budget, premises: Premises) -> Theorem:
    """The theorem at an algorithm's numbers, which have the same names but for clip and rounds.

    What a theorem takes by keyword alone is no algorithm's.
    """
    given = {"claim": claim, "active": premises.active, "kappa": premises.kappa}
    names = [name for name, one in signature(stated).parameters.items() if one.kind is not one.KEYWORD_ONLY]
    for name in names:
        field = {"clip": "clip_norm", "rounds": "num_rounds"}.get(name, name)
        if name not in given and hasattr(algorithm, field):
            given[name] = getattr(algorithm, field)
    return stated(**{name: value for name, value in given.items() if name in names})


def _violations(theorems: Sequence[Theorem], names: Sequence[str]) -> list[tuple[Check, list[str]]]:
    """The checks that fail, each once with the silos in which it does; the first silo's value stands."""
    failing: dict[str, tuple[Check, list[str]]] = {}
    for theorem, name in zip(theorems, names, strict=True):
        for check in theorem.checks:
            if not check.holds:
                failing.setdefault(check.condition, (check, []))[1].append(name)
    return list(failing.values())


def _line(check: Check, silos: Sequence[str]) -> str:
    shown = check.value if isinstance(check.value, str) else f"{check.value:.6g}"
    return f"{check.condition}: {shown} is not {check.bound} ({_shortened(silos)})"


def _shortened(silos: Sequence[str]) -> str:
    return silos[0] if len(silos) == 1 else f"{silos[0]} and {len(silos) - 1} more"


def _stated(name: str, algorithm: Any, choice: Choice) -> _Stated:
    table = {"thesis": _THESIS, "experiments": _EXPERIMENTS}[choice]
    if name in table:
        one_pass = table[name] is theorem_noise.accelerated_erm and isinstance(algorithm.batch, Fresh)
        return theorem_noise.accelerated_one_pass if one_pass else table[name]
    if name in _THESIS:
        hint = f"stated for {', '.join(_EXPERIMENTS)} only; use thesis"
        raise InputError("scenario.privacy.theorem", choice, hint)
    hint = f"no theorem speaks of {name}, only of {', '.join(_THESIS)}; use accountant or sigma"
    raise InputError("scenario.privacy.calibration", "theorem", hint)


_THESIS: dict[str, _Stated] = {
    "noisy_minibatch_sgd": theorem_noise.noisy_minibatch,
    "accelerated_minibatch_sgd": theorem_noise.accelerated_erm,
    "multi_stage_accelerated_minibatch_sgd": theorem_noise.accelerated_erm,
    "prox_sgd": theorem_noise.prox_sgd,
    "prox_svrg": theorem_noise.prox_svrg,
    "prox_pl_svrg": theorem_noise.prox_svrg,
    "prox_spider": theorem_noise.prox_spider,
    "spider_alternate": theorem_noise.alternate_spider,
    "local_sgd": theorem_noise.local_sgd,
}
_EXPERIMENTS: dict[str, _Stated] = {
    "noisy_minibatch_sgd": theorem_noise.experiments,
    "local_sgd": theorem_noise.local_sgd,
    "prox_spider": theorem_noise.spider_experiments,
    "spider_alternate": theorem_noise.alternate_spider,
}
"""The formulas of 3.2.5, B.1.10 and B.2.4; local SGD and alternate SPIDER have no other."""
