"""Noise that a scenario fixes: by a theorem for a claimed epsilon, or by a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedsim.common.errors import InputError
from fedsim.scenario.calibration import Prescribed
from fedsim.scenario.per_silo import per_silo
from fedsim.scenario.resolve import Resolved
from fedsim.theory.cost import base_multiplier, difference_ratio
from fedsim.theory.setting import active_silos
from fedsim.theory.stated import stated
from fedsim.theory.theorem import Check, Claim, Context, Theorem

_RATIO = "difference_noise_ratio"


def prescribe(resolved: Resolved) -> Resolved:
    """Fill in the noise that the scenario's calibration fixes; with the accountant there is none.

    Raises:
        InputError: a theorem is asked for outside its conditions, or speaks of no such algorithm.
    """
    privacy = resolved.scenario.privacy
    if privacy.mechanism == "none" or privacy.calibration == "accountant":
        return resolved
    return _given(resolved) if privacy.calibration == "sigma" else _by_theorem(resolved)


def _given(resolved: Resolved) -> Resolved:
    privacy, names = resolved.scenario.privacy, resolved.names
    if privacy.noise_multiplier is not None:
        z = per_silo("scenario.privacy.noise_multiplier", privacy.noise_multiplier, names)
        return replace(resolved, prescribed=Prescribed(z))
    sigmas = per_silo("scenario.privacy.sigma", privacy.sigma, names)
    # A gradient comes first in every algorithm's plan; the anchors of prox-SVRG use every record.
    batch, clip = resolved.trace.plan.rounds[0][0].batch, resolved.algorithm.clip_norm  # type: ignore[attr-defined]
    z = tuple(sigma * batch.size(n) / (2 * clip) for sigma, n in zip(sigmas, resolved.sizes, strict=True))
    return replace(resolved, prescribed=Prescribed(z))


def _by_theorem(resolved: Resolved) -> Resolved:
    """z_i such that what the theorem states is what the gate adds, for every kind of release.

    A plan has one noise ratio for all silos. Where the theorem's differs between silos (other delta_i or
    rounding of K_i), the largest counts: differences then get at least the stated noise.
    """
    theorems = _theorems(resolved)
    context = _context(resolved)
    violations = _violations(theorems, context, resolved.names)
    privacy = resolved.scenario.privacy
    if violations and not privacy.allow_violations:
        raise _refusal(violations[0], theorems[0].title)
    prescribed = Prescribed(
        tuple(base_multiplier(theorem) for theorem in theorems),
        theorems[0].title,
        tuple(theorem.claim.epsilon for theorem in theorems),
        tuple(theorem.claim.delta for theorem in theorems),
        tuple(_line(check, silos) for check, silos in violations),
    )
    section = resolved.scenario.algorithm
    if _RATIO in type(section).model_fields:
        ratio = max(difference_ratio(theorem) for theorem in theorems)
        section = section.model_copy(update={_RATIO: ratio})
    scenario = resolved.scenario.model_copy(update={"algorithm": section})
    return replace(resolved, scenario=scenario, prescribed=prescribed)


def _theorems(resolved: Resolved) -> list[Theorem]:
    privacy, names = resolved.scenario.privacy, resolved.names
    epsilons = per_silo("scenario.privacy.claimed_epsilon", privacy.claimed_epsilon, names)
    deltas = resolved.deltas
    if privacy.claimed_delta is not None:
        deltas = per_silo("scenario.privacy.claimed_delta", privacy.claimed_delta, names)
    claims = map(Claim, resolved.sizes, epsilons, deltas)
    name = resolved.scenario.algorithm.name
    return [stated(name, resolved.algorithm, claim, privacy.theorem) for claim in claims]


def _context(resolved: Resolved) -> Context:
    stated = resolved.scenario.assumptions
    known = stated.beta is not None and stated.mu is not None
    kappa = stated.beta / stated.mu if known else None  # type: ignore[operator]
    return Context(active_silos(resolved), kappa)


def _violations(
    theorems: Sequence[Theorem], context: Context, names: Sequence[str]
) -> list[tuple[Check, list[str]]]:
    """The checks that fail, each once with the silos in which it does; the first silo's value stands."""
    failing: dict[str, tuple[Check, list[str]]] = {}
    for theorem, name in zip(theorems, names, strict=True):
        for check in theorem.conditions(context):
            if not check.holds:
                failing.setdefault(check.condition, (check, []))[1].append(name)
    return list(failing.values())


def _line(check: Check, silos: Sequence[str]) -> str:
    return f"{check.condition}: {_shown(check)} is not {check.bound} ({_silos(silos)})"


def _refusal(violation: tuple[Check, list[str]], title: str) -> InputError:
    check, silos = violation
    here = f"{'that is' if isinstance(check.value, str) else 'here'} {check.bound}"
    expected = (
        f"{title} needs {check.condition}, {here} ({_silos(silos)}); "
        "privacy.allow_violations=true runs all the same, and the report says so"
    )
    return InputError(f"scenario.{check.field}", check.value, expected)


def _shown(check: Check) -> str:
    return check.value if isinstance(check.value, str) else f"{check.value:.6g}"


def _silos(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
