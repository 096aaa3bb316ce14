"""Problems by the name that a scenario uses."""

from __future__ import annotations

from fedsim.problems.glm import (
    GeneralisedLinear,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)

PROBLEMS: dict[str, type[GeneralisedLinear]] = {
    "logistic_regression": LogisticRegression,
    "softmax_regression": SoftmaxRegression,
    "linear_regression": LinearRegression,
}
