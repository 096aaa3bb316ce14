"""Which fields a scenario may have."""

from __future__ import annotations

from typing import Any

from fedsim.common import model_fields
from fedsim.scenario.model import Scenario


def fields(tree: Any) -> list[str]:
    """The dotted name of every field that may stand in the scenario `tree`, given or not.

    >>> found = fields({"problem": {"constraint": {"name": "l2_ball"}}})
    >>> [name for name in found if name.startswith("problem.constraint.")]
    ['problem.constraint.name', 'problem.constraint.radius']
    """
    return model_fields.fields(tree, Scenario)
