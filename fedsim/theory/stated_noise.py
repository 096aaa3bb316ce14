"""The noise that the theorem of an algorithm states for what is claimed.

Theorems go by the algorithm's name in scenarios: they need its public numbers, not its code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedsim.common.errors import InputError
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import Fresh
from fedsim.theory.difference_noise import (
    AlternateSPIDERNoise,
    ProxSPIDERNoise,
    ProxSVRGNoise,
    SPIDERExperiments,
)
from fedsim.theory.gradient_noise import (
    AcceleratedERM,
    AcceleratedOnePass,
    Experiments,
    LocalSGDNoise,
    NoisyMinibatch,
    ProxSGDNoise,
)
from fedsim.theory.symbols import Premises
from fedsim.theory.theorem import Check, Theorem, base_multiplier, difference_ratio

Choice = Literal["thesis", "experiments"]
_Maker = Callable[[Any, Budget], Theorem]


@dataclass(frozen=True)
class Prescribed:
    """Noise that is fixed beforehand, silo by silo in canonical order.

    Args:
        noise_multipliers: z_i, sigma / L2 sensitivity of a gradient.
        theorem: the theorem that states it, None where it is given.
        claimed_epsilons: what the theorem claims; None where it is given.
        claimed_deltas: the delta of that claim.
        violations: conditions of the theorem that do not hold, one line each.
    """

    noise_multipliers: tuple[float, ...]
    theorem: str | None = None
    claimed_epsilons: tuple[float, ...] | None = None
    claimed_deltas: tuple[float, ...] | None = None
    violations: tuple[str, ...] = ()


def stated_noise(
    name: str, algorithm: Any, premises: Premises, choice: Choice, allow_violations: bool
) -> tuple[Prescribed, float]:
    """z_i such that what the theorem states is what the gate adds, for every kind of release.

    Also z of a difference over z of a gradient, 1 where there are no differences. A plan has one such ratio
    for all silos. Where the theorem's differs between silos (other delta_i or rounding of K_i), the largest
    counts: differences then get at least the stated noise.

    Args:
        name: the algorithm, as scenarios call it.
        algorithm: its public numbers.
        premises: what the theorem starts from; its claims are what the noise is for.
        choice: "thesis", the algorithm's theorem; "experiments", the formula of the thesis's experiments.
        allow_violations: report conditions that do not hold instead of refusing them.

    Raises:
        InputError: no theorem, or no experiments' formula, speaks of the algorithm; or a condition fails.
    """
    maker = _maker(name, choice)
    theorems = [maker(algorithm, claim) for claim in premises.claims]
    violations = _violations(theorems, premises)
    title = theorems[0].title
    if violations and not allow_violations:
        raise _refusal(*violations[0], title)
    prescribed = Prescribed(
        tuple(map(base_multiplier, theorems)),
        title,
        tuple(claim.epsilon for claim in premises.claims),
        tuple(claim.delta for claim in premises.claims),
        tuple(_line(check, silos) for check, silos in violations),
    )
    return prescribed, max(map(difference_ratio, theorems))


def _violations(theorems: Sequence[Theorem], premises: Premises) -> list[tuple[Check, list[str]]]:
    """The checks that fail, each once with the silos in which it does; the first silo's value stands."""
    failing: dict[str, tuple[Check, list[str]]] = {}
    context = premises.context
    for theorem, name in zip(theorems, premises.names, strict=True):
        for check in theorem.conditions(context):
            if not check.holds:
                failing.setdefault(check.condition, (check, []))[1].append(name)
    return list(failing.values())


def _line(check: Check, silos: Sequence[str]) -> str:
    shown = check.value if isinstance(check.value, str) else f"{check.value:.6g}"
    return f"{check.condition}: {shown} is not {check.bound} ({_shortened(silos)})"


def _refusal(check: Check, silos: Sequence[str], title: str) -> InputError:
    here = f"{'that is' if isinstance(check.value, str) else 'here'} {check.bound}"
    hint = (
        f"{title} needs {check.condition}, {here} ({_shortened(silos)}); "
        "privacy.allow_violations=true runs all the same, and the report says so"
    )
    return InputError(f"scenario.{check.field}", check.value, hint)


def _shortened(silos: Sequence[str]) -> str:
    return silos[0] if len(silos) == 1 else f"{silos[0]} and {len(silos) - 1} more"


def _maker(name: str, choice: Choice) -> _Maker:
    table = {"thesis": _THESIS, "experiments": _EXPERIMENTS}[choice]
    if name in table:
        return table[name]
    if name in _THESIS:
        hint = f"stated for {', '.join(_EXPERIMENTS)} only; use thesis"
        raise InputError("scenario.privacy.theorem", choice, hint)
    hint = f"no theorem speaks of {name}, only of {', '.join(_THESIS)}; use accountant or sigma"
    raise InputError("scenario.privacy.calibration", "theorem", hint)


def _stated(kind: Callable[..., Theorem]) -> _Maker:
    """The theorem at an algorithm's numbers, which go by the same names but for clip and rounds."""
    names = [field.name for field in fields(kind) if field.name != "claim"]  # type: ignore[arg-type]
    own = {name: {"clip": "clip_norm", "rounds": "num_rounds"}.get(name, name) for name in names}
    return lambda algorithm, claim: kind(
        claim=claim,
        **{name: getattr(algorithm, field) for name, field in own.items() if hasattr(algorithm, field)},
    )


def _accelerated(algorithm: Any, claim: Budget) -> Theorem:
    kind = AcceleratedOnePass if isinstance(algorithm.batch, Fresh) else AcceleratedERM
    return _stated(kind)(algorithm, claim)


_THESIS: dict[str, _Maker] = {
    "noisy_minibatch_sgd": _stated(NoisyMinibatch),
    "accelerated_minibatch_sgd": _accelerated,
    "multi_stage_accelerated_minibatch_sgd": _accelerated,
    "prox_sgd": _stated(ProxSGDNoise),
    "prox_svrg": _stated(ProxSVRGNoise),
    "prox_pl_svrg": _stated(ProxSVRGNoise),
    "prox_spider": _stated(ProxSPIDERNoise),
    "spider_alternate": _stated(AlternateSPIDERNoise),
    "local_sgd": _stated(LocalSGDNoise),
}
_EXPERIMENTS: dict[str, _Maker] = {
    "noisy_minibatch_sgd": _stated(Experiments),
    "local_sgd": _THESIS["local_sgd"],
    "prox_spider": _stated(SPIDERExperiments),
    "spider_alternate": _THESIS["spider_alternate"],
}
"""The formulas of 3.2.5, B.1.10 and B.2.4; local SGD and alternate SPIDER have no other."""
