"""Stub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsim.scenario.load import place
from fedsim.scenario.model import PrivacySection, ReportSection, Scenario


def apply(tree: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    for name, value in overrides.items():
        if "." in name or name in Scenario.model_fields:
            place(tree, name, value)
        elif name in PrivacySection.model_fields:
            place(tree, f"privacy.{name}", value)
        elif name in ReportSection.model_fields:
            place(tree, f"report.{name}", value)
        else:
            place(tree, f"algorithm.{name}", value)
