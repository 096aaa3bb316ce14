"""From a scenario to the objects of a run, with every check that needs the data's outline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import torch

from fedsim.data.outline import Outline, outline
from fedsim.problems.composite import Box, Composite, Constraint, L2Ball, WholeSpace
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.registry import PROBLEMS
from fedsim.protocol.contract import Algorithm, Public
from fedsim.protocol.dryrun import Trace, dry_run
from fedsim.protocol.errors import InputError
from fedsim.protocol.limits import Limits
from fedsim.scenario.model import BallConstraint, BoxConstraint, ProblemSection, Scenario, UniformSilos

LIMITS = Limits()


@dataclass(frozen=True)
class Resolved:
    """A scenario and everything that follows from it without reading feature values.

    Args:
        names: silos in canonical order; every per-silo list is in this order.
        sizes: n_i, training records.
        epsilons: budgets; infinity with mechanism `none`.
        weights: p_i, summing to 1.
    """

    scenario: Scenario
    outline: Outline
    problem: GeneralisedLinear
    algorithm: Algorithm
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Type of parameters and features."""
        return torch.float64 if self.scenario.runtime.dtype == "float64" else torch.float32

    @property
    def active(self) -> int | None:
        """M, or None where all take part."""
        chosen = self.scenario.participation
        return chosen.num_silos if isinstance(chosen, UniformSilos) else None

    def public(self, noise_multipliers: Sequence[float] | None = None) -> Public:
        """The federation's public numbers; noise is unknown (zero) before admission."""
        noise = [0.0] * len(self.names) if noise_multipliers is None else list(noise_multipliers)
        return Public(
            self.names,
            torch.tensor(self.sizes),
            torch.tensor(self.weights, dtype=self.dtype),
            torch.tensor(noise, dtype=self.dtype),
        )

    @cached_property
    def trace(self) -> Trace:
        """The plan, by dry run."""
        return dry_run(self.algorithm, self.problem, self.public(), self.scenario.seed, LIMITS)


def resolve(scenario: Scenario, shape: Outline | None = None) -> Resolved:
    """Check the scenario against the outline of its data, which is made here unless it is known.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    shape = shape or outline(scenario.data, scenario.partition, scenario.seed)
    names = tuple(shape.sizes)
    sizes = tuple(shape.sizes.values())
    _check_participants(scenario, len(names))
    _check_runtime(scenario)
    private = scenario.privacy.mechanism == "gaussian"
    if private and scenario.privacy.epsilon is None:
        raise InputError("scenario.privacy.epsilon", None, "is required with mechanism gaussian")
    epsilon = scenario.privacy.epsilon if private else inf
    return Resolved(
        scenario,
        shape,
        _problem(scenario.problem, shape),
        scenario.algorithm.build(),
        names,
        sizes,
        _per_silo("scenario.privacy.epsilon", epsilon, names),
        _deltas(scenario, names, sizes),
        _weights(scenario.problem, names, sizes),
    )


def _check_participants(scenario: Scenario, silos: int) -> None:
    chosen = scenario.participation
    if isinstance(chosen, UniformSilos) and chosen.num_silos > silos:
        expected = f"at most {silos}, the number of silos"
        raise InputError("scenario.participation.num_silos", chosen.num_silos, expected)


def _check_runtime(scenario: Scenario) -> None:
    runtime = scenario.runtime
    if runtime.name == "ray":
        return
    for field, value in (("address", runtime.address), ("silo_hosts", runtime.silo_hosts)):
        if value:
            raise InputError(f"scenario.runtime.{field}", value, "needs runtime ray, not inprocess")


def _problem(section: ProblemSection, shape: Outline) -> GeneralisedLinear:
    classes = shape.num_classes
    suits = {
        "logistic_regression": classes == 2,
        "softmax_regression": classes >= 2,
        "linear_regression": classes == 0,
    }
    if not suits[section.name]:
        target = f"{classes} classes" if classes else "a number"
        right = [name for name, fits in suits.items() if fits]
        expected = f"the target is {target}; use {' or '.join(right) or 'data with at least two classes'}"
        raise InputError("scenario.problem.name", section.name, expected)
    composite = Composite(section.regulariser.l1, section.regulariser.l2, _constraint(section))
    outputs = classes if section.name == "softmax_regression" else 1
    return PROBLEMS[section.name](shape.num_features, outputs, composite)


def _constraint(section: ProblemSection) -> Constraint:
    chosen = section.constraint
    if isinstance(chosen, BallConstraint):
        return L2Ball(chosen.radius)
    if not isinstance(chosen, BoxConstraint):
        return WholeSpace()
    if chosen.lower > chosen.upper:
        raise InputError("scenario.problem.constraint.lower", chosen.lower, f"at most upper, {chosen.upper}")
    return Box(chosen.lower, chosen.upper)


def _per_silo(field: str, value: Any, names: Sequence[str]) -> tuple[float, ...]:
    """One value for all, a list in order of names, or a map by name."""
    if isinstance(value, float | int):
        return (float(value),) * len(names)
    if isinstance(value, dict):
        _check_keys(field, value, names)
        return tuple(value[name] for name in names)
    if len(value) != len(names):
        raise InputError(field, list(value), f"one value a silo: {len(names)}, not {len(value)}")
    return tuple(value)


def _check_keys(field: str, value: dict[str, float], names: Sequence[str]) -> None:
    for name in value:
        if name not in names:
            raise InputError(f"{field}.{name}", value[name], f"no such silo; silos: {_shortened(names)}")
    missing = [name for name in names if name not in value]
    if missing:
        raise InputError(field, value, f"no value for {_shortened(missing)}")


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _deltas(scenario: Scenario, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    rule = scenario.privacy.delta
    if rule != "1/n^2":
        return _per_silo("scenario.privacy.delta", rule, names)
    for name, n in zip(names, sizes, strict=True):
        if n < 2:
            expected = f"below 1: silo {name} has {n} training record, so 1/n^2 is {1 / n**2:g}"
            raise InputError("scenario.privacy.delta", rule, expected)
    return tuple(1 / n**2 for n in sizes)


def _weights(section: ProblemSection, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    rule = section.silo_weights
    simple: dict[str, Callable[[], Sequence[float]]] = {
        "equal": lambda: [1.0] * len(names),
        "size": lambda: sizes,
    }
    raw = simple[rule]() if isinstance(rule, str) else _per_silo("scenario.problem.silo_weights", rule, names)
    return tuple(share / sum(raw) for share in raw)
