"""What of a scenario a deployed run can do: refused by field, or left out by name."""

from __future__ import annotations

from fedsim.common.errors import InputError
from fedsim.mechanisms.registry import MECHANISMS
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.model import Scenario

UNMEASURED = (
    "test error on each silo's own records",
    "the same algorithm without noise and clipping",
    "baselines: silos alone, all records pooled",
    "excess risk and gradient mapping",
    "heterogeneity of the silos' records",
)
"""What only a simulation can know, since it takes the silos' records."""
NO_TEST = "test error and loss (federation.yaml names no public test records)"


def deployable(scenario: Scenario) -> tuple[Scenario, list[str]]:
    """The scenario as it is deployed, and lines on what of it is not done.

    A deployed run is one trial, since every repetition would spend the silos' budgets again.

    Raises:
        InputError: a field asks for what no silo would do.
    """
    _check(scenario)
    report = scenario.report.model_copy(
        update={"nonprivate_twin": False, "baselines": False, "heterogeneity": False, "excess_risk": False}
    )
    said = []
    if scenario.trials > 1:
        said.append(f"1 of {scenario.trials} trials: every repetition would spend the silos' budgets again")
    return scenario.model_copy(update={"trials": 1, "report": report}), said


def _check(scenario: Scenario) -> None:
    privacy, data = scenario.privacy, scenario.data
    if isinstance(scenario.algorithm, GivenAlgorithm):
        hint = "is an object: silos run algorithms of their own installation only, by name"
        raise InputError("scenario.algorithm", scenario.algorithm.name, hint)
    if not MECHANISMS[privacy.mechanism].private:
        raise InputError("scenario.privacy.mechanism", privacy.mechanism, "exists in simulation only")
    if privacy.epsilon == "unlimited":
        raise InputError(
            "scenario.privacy.epsilon", privacy.epsilon, "exists in simulation only; give a number"
        )
    data.check_alone("scenario.data")
    if data.reserve is not None:
        hint = "tunes on records that silos put aside, which exists in simulation only; leave it out"
        raise InputError("scenario.data.reserve", data.reserve.model_dump(), hint)
    if scenario.sweep is not None:
        hint = "is for `fedsim sweep`; a deployed run spends real budgets once, so leave it out"
        raise InputError("scenario.sweep", "...", hint)
