"""Problems by the name that a scenario uses."""

from __future__ import annotations

from fedsim.problems.glm import LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork

PROBLEMS: dict[str, type[Problem]] = {
    "logistic_regression": LogisticRegression,
    "softmax_regression": SoftmaxRegression,
    "linear_regression": LinearRegression,
    "neural_network": NeuralNetwork,
}
