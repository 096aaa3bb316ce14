"""The names of problems in scenarios: those that fedsim ships, and other distributions'."""

from __future__ import annotations

from functools import cache
from inspect import isabstract

import torch

from fedsim.common.plugins import class_of, extended, file_of, named
from fedsim.common.registry import Registry
from fedsim.problems.glm import BUILT_IN, OWN, GeneralisedLinear
from fedsim.problems.kinds import GROUP as GROUP
from fedsim.problems.kinds import NETWORK, Problem

FITTED_AT_HOME = ("logistic_regression", "softmax_regression", "linear_regression")
NETWORKS_AT_HOME = ("mlp", "paired_mlp", "lenet")
"""The losses, and the networks by their last layer, that are fitted at home (`fedsim.problems.at_home`)."""
_PLACES = {name: f"glm:{kind.__name__}" for name, kind in BUILT_IN.items()}
PROBLEMS: Registry[type[Problem]] = Registry.of(
    "fedsim.problems", {**_PLACES, NETWORK: "network:NeuralNetwork"}
)
"""{scenario name: dataclass} of the problems that fedsim ships."""


@cache
def problems() -> Registry[type[Problem]]:
    """{scenario name: dataclass}; another distribution's class derives from `GeneralisedLinear`. InputError
    names the distribution whose entry point does not load, or takes a name twice.
    """
    if named(GROUP):
        import fedsim.problems.operations  # noqa: F401  what torch has, before code of others runs
    linear = extended(GROUP, BUILT_IN, GeneralisedLinear)  # type: ignore[type-abstract]
    return Registry([*linear, NETWORK], lambda name: linear[name] if name in linear else PROBLEMS[name])


def problem_class(name: str) -> type[Problem]:
    """The problem of this scenario name; InputError as `problems`, or as `class_of` for a file's."""
    if file_of(name):
        what = f"class derived from {GeneralisedLinear.__name__} with all of its methods"
        kind: type[Problem] = class_of(name, "scenario.problem.name", _is_problem, what)
        return kind
    return problems()[name]


def dtype_of(name: str) -> torch.dtype:
    """The type of parameters and features by its name."""
    return {"float64": torch.float64, "float32": torch.float32}[name]


def _is_problem(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, GeneralisedLinear) and not isabstract(thing)


def is_shipped(problem: Problem) -> bool:
    """Whether fedsim ships all of its code, by identity with the table of its classes."""
    if isinstance(problem, GeneralisedLinear):
        return type(problem) in OWN
    from fedsim.problems.network_models import Lenet, Mlp, PairedMlp  # where there is a network

    return type(problem) is PROBLEMS[NETWORK] and type(problem.model) in (Mlp, PairedMlp, Lenet)
