"""Problems by the name that a scenario uses: ours, and those of the entry point group `fedsim.problems`."""

from __future__ import annotations

from functools import cache

from fedsim.common.plugins import extended
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem
from fedsim.problems.linear_records import BUILT_IN
from fedsim.problems.network import NeuralNetwork


@cache
def problems() -> dict[str, type[Problem]]:
    """{scenario name: dataclass}; another distribution's class derives from `GeneralisedLinear`.

    Raises:
        InputError: names the distribution whose entry point does not load, or takes a name twice.
    """
    linear = extended("fedsim.problems", BUILT_IN, GeneralisedLinear)  # type: ignore[type-abstract]
    return {**linear, "neural_network": NeuralNetwork}
