"""Problems by the name that a scenario uses: ours, and those of the entry point group `fedsim.problems`."""

from __future__ import annotations

from functools import cache

from fedsim.problems.glm import (
    GeneralisedLinear,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.nonsmooth import AbsoluteError, HingeLoss
from fedsim.protocol.plugins import extended

LINEAR: dict[str, type[GeneralisedLinear]] = {
    "logistic_regression": LogisticRegression,
    "softmax_regression": SoftmaxRegression,
    "linear_regression": LinearRegression,
    "hinge_loss": HingeLoss,
    "absolute_error": AbsoluteError,
}


@cache
def problems() -> dict[str, type[Problem]]:
    """{scenario name: dataclass}; another distribution's class derives from `GeneralisedLinear`.

    Raises:
        InputError: names the distribution whose entry point does not load, or takes a name twice.
    """
    linear = extended("fedsim.problems", LINEAR, GeneralisedLinear)  # type: ignore[type-abstract]
    return {**linear, "neural_network": NeuralNetwork}
