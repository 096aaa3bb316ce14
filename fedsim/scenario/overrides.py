"""Changes to a scenario that is not validated yet: those of a caller by field, and those of its variants."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from fedsim.common.errors import InputError, suggest
from fedsim.common.section import fields
from fedsim.scenario.model import Scenario

SWEPT = re.compile(r"(sweep\.(?:tune\.)?grid)\.(.+)")
"""A field of a sweep's grid, whose keys are dotted fields themselves."""


def apply(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the scenario `tree` with each of the fields set, in order; names as in `full_name`.

    >>> apply({"trials": 1, "algorithm": {"name": "prox_sgd"}}, {"trials": 3, "step_size": 0.5})
    {'trials': 3, 'algorithm': {'name': 'prox_sgd', 'step_size': 0.5}}
    """
    changed = copy.deepcopy(dict(tree))
    for name, value in changes.items():
        place(changed, full_name(changed, name, value), value)
    return changed


def full_name(tree: Mapping[str, Any], name: str, value: object = None) -> str:
    """The dotted field that `name` is short for: the only one that ends so, in what is given or in all.

    >>> full_name({}, "epsilon"), full_name({}, "privacy.epsilon"), full_name({}, "trials")
    ('privacy.epsilon', 'privacy.epsilon', 'trials')
    >>> full_name({}, "beta")
    Traceback (most recent call last):
    fedsim.common.errors.InputError: beta: None: could be any of problem.smoothing.beta, assumptions.beta
    >>> full_name({"assumptions": {"beta": 2.0}}, "beta")
    'assumptions.beta'
    >>> full_name({"problem": {"constraint": {"name": "l2_ball"}}}, "radius")
    'problem.constraint.radius'

    Args:
        tree: the scenario, as plain mappings.
        name: a dotted field, or its end.
        value: what it is to be set to, for the message.

    Raises:
        InputError: there is no such field, or there are several.
    """
    if name.partition(".")[0] in Scenario.model_fields:
        return name
    known = fields(tree, Scenario)
    found = [field for field in known if field.endswith(f".{name}")]
    given = [field for field in found if _is_given(tree, field)]
    for only in (given, found):
        if len(only) == 1:
            return only[0]
    if found:
        raise InputError(name, value, f"could be any of {', '.join(given or found)}")
    ends = [field.rpartition(".")[2] for field in known]
    hint = suggest(name, [*Scenario.model_fields, *dict.fromkeys(ends), *known])
    raise InputError(f"scenario.{name}", value, f"no such field; {hint}")


def place(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the dotted field `path`, making the mappings on the way."""
    swept = SWEPT.match(path)
    *parents, last = [*swept[1].split("."), swept[2]] if swept else path.split(".")
    for key in parents:
        branch = tree.get(key)
        # `participation: all` is short for a mapping with that name.
        tree[key] = (
            {"name": branch} if isinstance(branch, str) else branch if isinstance(branch, dict) else {}
        )
        tree = tree[key]
    tree[last] = value


def _is_given(tree: Any, field: str) -> bool:
    for key in field.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


VARIANT, VARIANTS = "variant", "variants"


def completed(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario with the fields of its chosen variant set, then the changes, which may choose the variant.

    >>> file = {"variant": "a", "trials": 1, "variants": {"a": {}, "b": {"trials": 20, "seed": 3}}}
    >>> completed(file, {"variant": "b", "seed": 4})
    {'variant': 'b', 'trials': 20, 'seed': 4}

    Raises:
        InputError: there is no such variant, or none is chosen; or as `fedsim.scenario.overrides.apply`.
    """
    rest = {key: value for key, value in tree.items() if key != VARIANTS}
    chosen = changes.get(VARIANT, tree.get(VARIANT))
    if tree.get(VARIANTS) is None:
        if VARIANT in changes and chosen != tree.get(VARIANT):
            raise InputError("scenario.variant", chosen, "this scenario has no variants to choose from")
        return apply(rest, changes)
    return apply(apply(rest, {VARIANT: chosen, **_of_variant(tree[VARIANTS], chosen)}), changes)


def _of_variant(variants: Any, chosen: Any) -> Mapping[str, Any]:
    """What the chosen variant sets, {dotted field: value}."""
    if not isinstance(variants, Mapping) or not all(isinstance(one, Mapping) for one in variants.values()):
        raise InputError("scenario.variants", variants, "must be {name: {dotted.field: value}}")
    if chosen not in variants:
        names = list(map(str, variants))
        hint = f"choose one of {', '.join(names)}" if chosen is None else suggest(str(chosen), names)
        raise InputError("scenario.variant", chosen, hint)
    own: Mapping[str, Any] = variants[chosen]
    for name in (VARIANT, VARIANTS):
        if name in own:
            raise InputError(f"scenario.variants.{chosen}.{name}", own[name], "a variant sets other fields")
    return own
