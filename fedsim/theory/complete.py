"""`algorithm.parameters: theorem`: fill in what the scenario does not give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedsim.common.errors import InputError
from fedsim.protocol.batch import Fresh
from fedsim.scenario.algorithm import AlgorithmSection
from fedsim.scenario.derived import Derived
from fedsim.scenario.resolve import Resolved
from fedsim.theory.calibrated import calibrated
from fedsim.theory.case import Case
from fedsim.theory.joint import JOINT
from fedsim.theory.parameters import TABLE
from fedsim.theory.setting import setting_of


def complete(resolved: Resolved) -> Resolved:
    """Return `resolved` with every number of its algorithm; numbers that the scenario gives stand.

    With calibration `theorem` a given number changes no other: each is the theorem's for the theorem's own
    choices and noise. With the accountant the rest is chosen for the noise of the plan that has the given
    numbers.

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
    chosen = _chosen(resolved, section, given)
    known = type(section).model_fields
    values = {key: value for key, value in chosen.values.items() if key in known and key not in given}
    rest = {key: value for key, value in chosen.values.items() if key not in known}
    filled = type(section).model_validate(values | given)
    scenario = resolved.scenario.model_copy(update={"algorithm": filled})
    derived = Derived(chosen.theorem, values, rest | chosen.notes, chosen.predicted)
    return replace(resolved, scenario=scenario, derived=derived)


def _chosen(resolved: Resolved, section: AlgorithmSection, given: dict[str, Any]) -> Derived:
    setting = setting_of(resolved)
    batch = section.batch if "batch" in given else None  # type: ignore[attr-defined]
    if resolved.scenario.privacy.calibration != "accountant":
        return TABLE[section.name](setting, isinstance(batch, Fresh))
    (L,) = setting.need(f"the theorem of {section.name}", "L")
    clip = given.get("clip_norm", L / setting.heaviest)
    return JOINT[section.name](Case(setting, calibrated(resolved), clip, batch, given))
