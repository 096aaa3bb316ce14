"""What can be refused of a scenario before anything heavy is loaded and any record is looked at."""

from __future__ import annotations

from fedsim.common.errors import InputError
from fedsim.mechanisms.registry import MECHANISMS, check_serves
from fedsim.scenario.model import RuntimeSection, Scenario


def check(scenario: Scenario) -> None:
    """Check that the sections are each whole, and go together.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    _check_runtime(scenario.runtime)
    scenario.privacy.check()
    scenario.data.check()
    mechanism = MECHANISMS[scenario.privacy.mechanism]
    check_serves(mechanism, scenario.algorithm.name, scenario.algorithm.kind)


def check_single(scenario: Scenario) -> None:
    """Check that it is one run.

    Raises:
        InputError: it has a `sweep` section.
    """
    if scenario.sweep is not None:
        expected = "is many runs; `fedsim sweep` makes them all, and sweep=null leaves the section out"
        raise InputError("scenario.sweep", sorted(scenario.sweep.model_fields_set), expected)


def _check_runtime(runtime: RuntimeSection) -> None:
    if runtime.name == "ray":
        return
    for field, value in (("address", runtime.address), ("silo_hosts", runtime.silo_hosts)):
        if value:
            raise InputError(f"scenario.runtime.{field}", value, "needs runtime ray, not inprocess")
