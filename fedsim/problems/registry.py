"""Problems by the name that a scenario uses: ours, and those of the entry point group `fedsim.problems`."""

from __future__ import annotations

from functools import cache

from fedsim.common.plugins import extended, named
from fedsim.problems.built_in import BUILT_IN
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork

GROUP = "fedsim.problems"


PROBLEMS: dict[str, type[Problem]] = {**BUILT_IN, "neural_network": NeuralNetwork}
"""{scenario name: dataclass} of the problems that fedsim ships."""


@cache
def problems() -> dict[str, type[Problem]]:
    """{scenario name: dataclass}; another distribution's class derives from `GeneralisedLinear`.

    Raises:
        InputError: names the distribution whose entry point does not load, or takes a name twice.
    """
    if named(GROUP):
        import fedsim.problems.operations  # noqa: F401  what torch has, before code of others runs
    linear = extended(GROUP, BUILT_IN, GeneralisedLinear)  # type: ignore[type-abstract]
    return {**linear, "neural_network": NeuralNetwork}
