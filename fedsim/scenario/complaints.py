"""What is wrong with a scenario, in its own words."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from fedsim.common import complaints
from fedsim.common.errors import InputError
from fedsim.scenario.model import Scenario

ROOT = "scenario"
"""What errors call the file."""


def complaint(error: ValidationError, tree: Any, prefix: tuple[str, ...] = ()) -> InputError:
    """The first error of a scenario's `tree`, or of its part at `prefix` (`fedsim.common.complaints`)."""
    return complaints.complaint(error, tree, ROOT, Scenario, prefix)
