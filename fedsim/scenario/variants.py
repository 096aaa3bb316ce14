"""A scenario file that stands for several scenarios: what each variant sets over the rest of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.scenario.overrides import apply

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
    return apply(apply(rest, {VARIANT: chosen, **_fields(tree[VARIANTS], chosen)}), changes)


def _fields(variants: Any, chosen: Any) -> Mapping[str, Any]:
    """What the chosen variant sets, {dotted field: value}."""
    if not isinstance(variants, Mapping) or not all(isinstance(one, Mapping) for one in variants.values()):
        raise InputError("scenario.variants", variants, "must be {name: {dotted.field: value}}")
    if chosen not in variants:
        names = list(map(str, variants))
        hint = f"choose one of {', '.join(names)}" if chosen is None else suggest(str(chosen), names)
        raise InputError("scenario.variant", chosen, hint)
    fields: Mapping[str, Any] = variants[chosen]
    for name in (VARIANT, VARIANTS):
        if name in fields:
            raise InputError(
                f"scenario.variants.{chosen}.{name}", fields[name], "a variant sets other fields"
            )
    return fields
