"""From a scenario to the objects of a run, with every check that needs the data's outline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import torch

from fedsim.common.errors import InputError
from fedsim.data.outline import Outline, outline
from fedsim.mechanisms.mechanism import Mechanism
from fedsim.mechanisms.registry import MECHANISMS, check_serves
from fedsim.problems.kinds import Problem
from fedsim.protocol.contract import Algorithm, Public
from fedsim.protocol.dryrun import Trace, dry_run
from fedsim.protocol.limits import Limits
from fedsim.protocol.participants import Participants, effective_m
from fedsim.scenario.calibration import Prescribed, check_calibration
from fedsim.scenario.derived import Derived
from fedsim.scenario.model import Scenario
from fedsim.scenario.participation import (
    participants,
)
from fedsim.scenario.per_silo import per_silo
from fedsim.scenario.problem import ProblemSection, problem_of

LIMITS = Limits()


@dataclass(frozen=True)
class Resolved:
    """A scenario and everything that follows from it without reading feature values.

    Args:
        names: silos in canonical order; every per-silo list is in this order.
        sizes: n_i, training records.
        epsilons: budgets; infinity with mechanism `none`.
        weights: p_i, summing to 1.
        active: who takes part: None for all, M for so many at random, or another way.
        prescribed: the silos' noise, where the scenario fixes it; filled in by `fedsim.theory.resolve`.
        derived: the algorithm's numbers that a theorem chose; filled in there too.
    """

    scenario: Scenario
    outline: Outline
    problem: Problem
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    weights: tuple[float, ...]
    active: Participants
    prescribed: Prescribed | None = None
    derived: Derived | None = None

    @cached_property
    def algorithm(self) -> Algorithm:
        """The scenario's algorithm with its numbers."""
        return self.scenario.algorithm.build()

    @property
    def mechanism(self) -> Mechanism:
        """What protects the run."""
        return MECHANISMS[self.scenario.privacy.mechanism]

    @property
    def noise_multipliers(self) -> tuple[float, ...] | None:
        """z_i where the scenario fixes them, None where each silo finds its own."""
        if self.scenario.privacy.calibration != "accountant" and self.prescribed is None:
            raise RuntimeError("resolve this scenario by fedsim.theory.resolve, which prescribes its noise")
        return None if self.prescribed is None else self.prescribed.noise_multipliers

    @property
    def dtype(self) -> torch.dtype:
        """Type of parameters and features."""
        return dtype_of(self.scenario)

    @property
    def effective_m(self) -> float:
        """M of the theorems, 1 / E[1 / M_r] (thesis Assumption 1.4)."""
        return effective_m(self.active, len(self.names))

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
    scenario = _with_smoothness(scenario)
    names = tuple(shape.sizes)
    sizes = tuple(shape.sizes.values())
    _check_runtime(scenario)
    mechanism = MECHANISMS[scenario.privacy.mechanism]
    if mechanism.private and scenario.privacy.epsilon is None:
        expected = f"is required with mechanism {mechanism.name}"
        raise InputError("scenario.privacy.epsilon", None, expected)
    check_serves(mechanism, scenario.algorithm.name, scenario.algorithm.kind)
    check_calibration(scenario.privacy)
    unlimited = not mechanism.private or scenario.privacy.epsilon == "unlimited"
    epsilon = inf if unlimited else scenario.privacy.epsilon
    return Resolved(
        scenario,
        shape,
        problem_of(scenario.problem, shape, dtype_of(scenario)),
        names,
        sizes,
        per_silo("scenario.privacy.epsilon", epsilon, names),
        _deltas(scenario, names, sizes),
        _weights(scenario.problem, names, sizes),
        participants(scenario.participation, names),
    )


def _with_smoothness(scenario: Scenario) -> Scenario:
    """A Moreau envelope's beta is the smoothness that theorems ask for: it is stated once."""
    smoothing, stated = scenario.problem.smoothing, scenario.assumptions
    if smoothing is None:
        return scenario
    if stated.beta is not None and stated.beta < smoothing.beta:
        expected = f"at least problem.smoothing.beta = {smoothing.beta:g}, or left out to be that"
        raise InputError("scenario.assumptions.beta", stated.beta, expected)
    beta = smoothing.beta if stated.beta is None else stated.beta
    return scenario.model_copy(update={"assumptions": stated.model_copy(update={"beta": beta})})


def _check_runtime(scenario: Scenario) -> None:
    runtime = scenario.runtime
    if runtime.name == "ray":
        return
    for field, value in (("address", runtime.address), ("silo_hosts", runtime.silo_hosts)):
        if value:
            raise InputError(f"scenario.runtime.{field}", value, "needs runtime ray, not inprocess")


def dtype_of(scenario: Scenario) -> torch.dtype:
    """Type of parameters and features."""
    return torch.float64 if scenario.runtime.dtype == "float64" else torch.float32


def _deltas(scenario: Scenario, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    rule = scenario.privacy.delta
    if rule != "1/n^2":
        return per_silo("scenario.privacy.delta", rule, names)
    for name, n in zip(names, sizes, strict=True):
        if n < 2 and MECHANISMS[scenario.privacy.mechanism].private:
            expected = f"below 1: silo {name} has {n} training record, so 1/n^2 is {1 / n**2:g}"
            raise InputError("scenario.privacy.delta", rule, expected)
    return tuple(1 / n**2 for n in sizes)


def _weights(section: ProblemSection, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    rule = section.silo_weights
    simple: dict[str, Callable[[], Sequence[float]]] = {
        "equal": lambda: [1.0] * len(names),
        "size": lambda: sizes,
    }
    raw = simple[rule]() if isinstance(rule, str) else per_silo("scenario.problem.silo_weights", rule, names)
    total = sum(raw)
    return tuple(share / total for share in raw)
