"""From a scenario to the objects of a run, with the numbers and the noise that theorems supply."""

from __future__ import annotations

from fedsim.data.outline import Outline
from fedsim.scenario import resolve as plain
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved
from fedsim.theory.calibrate import prescribe
from fedsim.theory.complete import complete


def resolve(scenario: Scenario, known: Outline | None = None) -> Resolved:
    """Resolve `scenario`, including what its theorem chooses; `known` is its data's outline, if at hand.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    return prescribe(complete(plain.resolve(scenario, known)))
