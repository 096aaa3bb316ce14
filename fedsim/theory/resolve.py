"""From a scenario to the objects of a run, with the numbers that theorems supply."""

from __future__ import annotations

from fedsim.scenario import resolve as plain
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved
from fedsim.theory.calibrate import prescribe


def resolve(scenario: Scenario) -> Resolved:
    """Resolve `scenario`, its theorem's noise included.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    return prescribe(plain.resolve(scenario))
