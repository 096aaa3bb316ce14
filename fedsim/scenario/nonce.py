"""Which runs draw a nonce: 128 bits of the operating system's, kept in their scenario, that key their noise.

What code does is not seen from outside: it may read a file, a global or the clock. So two runs of code that
is not fedsim's never share noise, unless their scenario names one nonce, as that of a run repeated does.
"""

from __future__ import annotations

import secrets

from fedsim.algorithms.registry import shipped
from fedsim.data.arrays import Arrays
from fedsim.data.registry import OWN
from fedsim.problems.glm import BUILT_IN
from fedsim.problems.kinds import problems
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.model import Scenario


def with_nonce(scenario: Scenario) -> Scenario:
    """The scenario, with a nonce where it needs one and has none."""
    if scenario.nonce is not None or _is_shipped(scenario):
        return scenario
    return scenario.model_copy(update={"nonce": secrets.token_hex(16)})


def with_seed(scenario: Scenario) -> Scenario:
    """The scenario, with a seed of the operating system's where it gives none: a known one hides nothing."""
    given = "seed" in scenario.model_fields_set
    return scenario if given else scenario.model_copy(update={"seed": secrets.randbits(63)})


def _is_shipped(scenario: Scenario) -> bool:
    """Whether every part is in fedsim's own tables: by identity, whatever a class says of its module."""
    algorithm, problem = scenario.algorithm, scenario.problem
    parts = [
        (algorithm.kind, shipped().values()),
        (problems()[problem.name], [*BUILT_IN.values(), NeuralNetwork]),
        (type(scenario.data), [*OWN.values(), Arrays]),
    ]
    if isinstance(algorithm, GivenAlgorithm) or isinstance(problem.model, Imported):
        return False
    return all(any(part is own for own in ours) for part, ours in parts)
