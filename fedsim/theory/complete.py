"""`algorithm.parameters: theorem`: fill in what the scenario does not give."""

from __future__ import annotations

from dataclasses import replace

from fedsim.protocol.errors import InputError
from fedsim.scenario.derived import Derived
from fedsim.scenario.resolve import Resolved
from fedsim.theory.parameters import TABLE
from fedsim.theory.setting import setting_of


def complete(resolved: Resolved) -> Resolved:
    """Return `resolved` with every number of its algorithm; numbers that the scenario gives stand.

    A given number changes no other: each is the theorem's for the theorem's own choices.

    Raises:
        InputError: no theorem chooses this algorithm's numbers, or a constant that it needs is missing.
    """
    section = resolved.scenario.algorithm
    if section.parameters == "given":
        return resolved
    if section.name not in TABLE:
        expected = f"no theorem chooses the numbers of {section.name}; those of {', '.join(TABLE)} have one"
        raise InputError("scenario.algorithm.parameters", "theorem", expected)
    given = {key: value for key, value in section.model_dump(exclude_unset=True).items() if value is not None}
    one_pass = "batch" in given and given["batch"]["sampler"] == "fresh"
    chosen = TABLE[section.name](setting_of(resolved), one_pass)
    known = type(section).model_fields
    values = {key: value for key, value in chosen.values.items() if key in known and key not in given}
    rest = {key: value for key, value in chosen.values.items() if key not in known}
    filled = type(section).model_validate(values | given)
    scenario = resolved.scenario.model_copy(update={"algorithm": filled})
    return replace(resolved, scenario=scenario, derived=Derived(chosen.theorem, values, rest | chosen.notes))
