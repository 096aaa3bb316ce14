"""What a scenario says of itself to the table of clashes (`fedsim.protocol.clashes`)."""

from __future__ import annotations

from fedsim.algorithms.registry import shipped_names
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.registry import FITTED_AT_HOME, NETWORKS_AT_HOME, PROBLEMS
from fedsim.protocol.facts import Facts, Told
from fedsim.protocol.plan import Plan
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.contributions import asked
from fedsim.scenario.model import Scenario


def facts_of(scenario: Scenario, plan: Plan | None = None, /, **more: Told) -> Facts:
    """What is known of a scenario, of its plan where that is known, and `more` by name."""
    privacy, runtime = scenario.privacy, scenario.runtime
    evaluate, problem = scenario.evaluate, scenario.problem
    kind = problem.name if problem.model is None else problem.model.name
    known: dict[str, Told] = {
        "float32": runtime.dtype == "float32",
        "noise drawn at once": runtime.noise == "aggregate",
        "hosts of silos": runtime.silo_hosts > 0,
        "a stage for h": asked(privacy.unit) is not None,
        "unlimited": privacy.epsilon == "unlimited",
        "a calibration beside accountant": privacy.calibration != "accountant",
        "prepare": bool(scenario.prepare),
        "a private clip": scenario.algorithm.private_clip is not None,
        "evaluate": evaluate is not None,
        "evaluate by bins and group": evaluate is not None and evaluate.by_group and evaluate.asked_bins > 0,
        "counts of clipped terms": scenario.report.clipping,
        "a fit at home": scenario.report.at_home,
        "a loss without one": problem.score_bound is not None
        or kind not in FITTED_AT_HOME + NETWORKS_AT_HOME,
        "public silo": False,
        "a silo named as public": privacy.some_public,
        "an object": isinstance(scenario.algorithm, GivenAlgorithm),
        "records put aside": scenario.data.reserve is not None,
        "a sweep": scenario.sweep is not None,
        "whitened_newton": scenario.algorithm.name == "whitened_newton",
        "no constant feature": not scenario.data.intercept,
        "a device": runtime.device != "cpu" and runtime.device,
        "code in a confined process": scenario.algorithm.name not in shipped_names()
        or problem.name not in PROBLEMS
        or getattr(problem.model, "name", "") == "module",
        "public records": problem.public is not None,
    }
    return Facts(plan, MECHANISMS[privacy.mechanism].facts | privacy.unit.facts | known | more)
