"""The linear problems that fedsim brings, by the name that a scenario uses."""

from __future__ import annotations

from fedsim.problems.glm import (
    ClippedLogisticRegression,
    GeneralisedLinear,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from fedsim.problems.nonsmooth import AbsoluteError, HingeLoss

BUILT_IN: dict[str, type[GeneralisedLinear]] = {
    "logistic_regression": LogisticRegression,
    "softmax_regression": SoftmaxRegression,
    "linear_regression": LinearRegression,
    "hinge_loss": HingeLoss,
    "absolute_error": AbsoluteError,
}

OWN = frozenset({*BUILT_IN.values(), ClippedLogisticRegression})
"""Every linear problem of ours, those too that a field of another makes."""
