"""From a scenario to the objects of a run, with every check that needs the data's outline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import torch

from fedsim.algorithms.registry import IS_ALGORITHM, algorithms, is_algorithm
from fedsim.common.errors import InputError
from fedsim.data.outline import Outline, outline
from fedsim.problems.kinds import Problem, check
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.nonsmooth import KinkedLoss
from fedsim.problems.registry import problems
from fedsim.protocol.contract import Algorithm, Public
from fedsim.protocol.dryrun import Trace, dry_run
from fedsim.protocol.limits import Limits
from fedsim.protocol.participants import Available, Participants, RandomSize, Recorded, effective_m
from fedsim.scenario.attendance import read_attendance
from fedsim.scenario.by_theorem import claims, constants, need_privacy, with_numbers, with_stated_noise
from fedsim.scenario.composite import composite
from fedsim.scenario.mechanism import check_mechanism
from fedsim.scenario.model import PrivacySection, ProblemSection, Scenario
from fedsim.scenario.network import network
from fedsim.scenario.participation import AvailableSilos, RandomSizeSilos, TracedSilos, UniformSilos
from fedsim.scenario.per_silo import per_silo
from fedsim.theory.premises import Premises
from fedsim.theory.stated_noise import Prescribed
from fedsim.theory.symbols import Symbols, symbols
from fedsim.theory.theorem import Derived

LIMITS = Limits()


@dataclass(frozen=True)
class Resolved:
    """A scenario and everything that follows from it without reading feature values.

    Args:
        scenario: with the numbers that theorems supplied.
        algorithm: with all its numbers.
        algorithm_name: as scenarios call it; of a class that none of them knows, its own name.
        names: silos in canonical order; every per-silo list is in this order.
        sizes: n_i, training records.
        epsilons: budgets; infinity with mechanism `none`.
        weights: p_i, summing to 1.
        active: who takes part: None for all, M for so many at random, or another way.
        premises: what theorems start from.
        derived: the algorithm's numbers that a theorem chose; None where all are given.
        prescribed: the silos' noise, where the scenario fixes it; None where each silo finds its own.
    """

    scenario: Scenario
    outline: Outline
    problem: Problem
    algorithm: Algorithm
    algorithm_name: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    weights: tuple[float, ...]
    active: Participants
    premises: Premises
    derived: Derived | None
    prescribed: Prescribed | None

    @property
    def noise_multipliers(self) -> tuple[float, ...] | None:
        """z_i where the scenario fixes them, None where each silo finds its own."""
        return None if self.prescribed is None else self.prescribed.noise_multipliers

    @property
    def dtype(self) -> torch.dtype:
        """Type of parameters and features."""
        return dtype_of(self.scenario)

    @property
    def effective_m(self) -> float:
        """M of the theorems, 1 / E[1 / M_r] (thesis Assumption 1.4)."""
        return effective_m(self.active, len(self.names))

    @property
    def symbols(self) -> Symbols:
        """The theorems' symbols.

        Raises:
            InputError: there is no privacy to speak of.
        """
        need_privacy(self.scenario)
        return symbols(self.premises)

    def public(self, noise_multipliers: Sequence[float] | None = None) -> Public:
        """The federation's public numbers; noise is unknown (zero) before admission."""
        return _public(self.names, self.sizes, self.weights, self.dtype, noise_multipliers)

    @cached_property
    def trace(self) -> Trace:
        """The plan, by dry run."""
        return dry_run(self.algorithm, self.problem, self.public(), self.scenario.seed, LIMITS)


def resolve(
    scenario: Scenario, known: Outline | None = None, *, algorithm: Algorithm | None = None
) -> Resolved:
    """Check the scenario and make what it says, with the numbers and the noise that theorems supply.

    Args:
        scenario: what to run.
        known: its data's outline, if at hand; else the data is opened.
        algorithm: runs instead of the one that the scenario's section names, whose numbers then count for
            nothing.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    shape = known or outline(scenario.data, scenario.partition, scenario.seed)
    scenario = _with_smoothness(scenario)
    name = scenario.algorithm.name if algorithm is None else _name(algorithm)
    _check(scenario, name, algorithms()[name] if algorithm is None else algorithm)
    names, sizes, privacy = tuple(shape.sizes), tuple(shape.sizes.values()), scenario.privacy
    problem = _problem(scenario.problem, shape, dtype_of(scenario))
    epsilons, deltas = _epsilons(privacy, names), _deltas(privacy, names, sizes)
    weights, active = _weights(scenario.problem, names, sizes), _participants(scenario, names)
    premises = Premises(
        names,
        claims(privacy, names, sizes, epsilons, deltas),
        weights,
        active,
        problem.dimension,
        constants(scenario, scenario.algorithm if algorithm is None else algorithm),
    )
    derived = prescribed = None
    if algorithm is None:
        scenario, derived = with_numbers(scenario, premises)
        algorithm = scenario.algorithm.build()
    if privacy.mechanism != "none" and privacy.calibration == "theorem":
        scenario, algorithm, prescribed = with_stated_noise(scenario, premises, name, algorithm)
    elif privacy.mechanism != "none" and privacy.calibration == "sigma":
        public = _public(names, sizes, weights, dtype_of(scenario))
        prescribed = Prescribed(_given_noise(scenario, algorithm, problem, public))
    return Resolved(
        scenario=scenario,
        outline=shape,
        problem=problem,
        algorithm=algorithm,
        algorithm_name=name,
        names=names,
        sizes=sizes,
        epsilons=epsilons,
        deltas=deltas,
        weights=weights,
        active=active,
        premises=premises,
        derived=derived,
        prescribed=prescribed,
    )


def _name(algorithm: Algorithm) -> str:
    """Of an object that a researcher gives."""
    if not is_algorithm(type(algorithm)):
        raise InputError("algorithm", algorithm, f"must be an object of {IS_ALGORITHM}")
    kind = type(algorithm)
    return next((name for name, known in algorithms().items() if known is kind), kind.__qualname__)


def _check(scenario: Scenario, name: str, algorithm: Algorithm | type[Algorithm]) -> None:
    _check_runtime(scenario)
    scenario.privacy.check()
    check_mechanism(scenario.privacy.mechanism, name, algorithm)


def _public(
    names: tuple[str, ...],
    sizes: Sequence[int],
    weights: Sequence[float],
    dtype: torch.dtype,
    noise_multipliers: Sequence[float] | None = None,
) -> Public:
    noise = [0.0] * len(names) if noise_multipliers is None else list(noise_multipliers)
    return Public(
        names, torch.tensor(sizes), torch.tensor(weights, dtype=dtype), torch.tensor(noise, dtype=dtype)
    )


def _given_noise(
    scenario: Scenario, algorithm: Algorithm, problem: Problem, public: Public
) -> tuple[float, ...]:
    """z_i, given as such or as the standard deviation of a mean gradient."""
    privacy, names = scenario.privacy, public.names
    if privacy.noise_multiplier is not None:
        return per_silo("scenario.privacy.noise_multiplier", privacy.noise_multiplier, names)
    sigmas = per_silo("scenario.privacy.sigma", privacy.sigma, names)
    clip = getattr(algorithm, "clip_norm", None)
    if clip is None:
        expected = f"{type(algorithm).__qualname__} has no clip_norm; use noise_multiplier"
        raise InputError("scenario.privacy.sigma", privacy.sigma, expected)
    # A gradient comes first in every algorithm's plan; the anchors of prox-SVRG use every record.
    plan = dry_run(algorithm, problem, public, scenario.seed, LIMITS).plan
    batch = plan.rounds[0][0].batch
    return tuple(
        sigma * batch.size(n) / (2 * clip) for sigma, n in zip(sigmas, public.sizes.tolist(), strict=True)
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


def _participants(scenario: Scenario, names: Sequence[str]) -> Participants:
    chosen = scenario.participation
    if isinstance(chosen, UniformSilos):
        return _at_most_all("num_silos", chosen.num_silos, names)
    if isinstance(chosen, RandomSizeSilos):
        if chosen.min_silos > chosen.max_silos:
            expected = f"at most max_silos, {chosen.max_silos}"
            raise InputError("scenario.participation.min_silos", chosen.min_silos, expected)
        return RandomSize(chosen.min_silos, _at_most_all("max_silos", chosen.max_silos, names))
    if isinstance(chosen, AvailableSilos):
        return Available(per_silo("scenario.participation.probability", chosen.probability, names))
    if isinstance(chosen, TracedSilos):
        attendance = read_attendance(chosen.path, names)
        return Recorded(attendance, chosen.repeat, chosen.known_in_advance, str(chosen.path))
    return None


def _at_most_all(field: str, value: int, names: Sequence[str]) -> int:
    if value > len(names):
        expected = f"at most {len(names)}, the number of silos"
        raise InputError(f"scenario.participation.{field}", value, expected)
    return value


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


def _problem(section: ProblemSection, shape: Outline, dtype: torch.dtype) -> Problem:
    classes, kind = shape.num_classes, problems()[section.name]
    if not kind.suits(classes):
        target = f"{classes} classes" if classes else "a number"
        right = [name for name, other in problems().items() if other.suits(classes)]
        expected = f"the target is {target}; use {' or '.join(right) or 'data with at least two classes'}"
        raise InputError("scenario.problem.name", section.name, expected)
    features, outputs = shape.num_features, kind.outputs(classes)
    public = composite(section, features, outputs)
    if kind is NeuralNetwork:
        problem: Problem = network(section.model, features, outputs, public)
    elif section.model is not None:
        raise InputError("scenario.problem.model", section.model.name, "needs problem.name neural_network")
    else:
        problem = kind(features, outputs, public)
    if section.smoothing is not None:
        problem = _smoothed(problem, section.name, section.smoothing.beta)
    check(problem, dtype)
    return problem


def _smoothed(problem: Problem, name: str, beta: float) -> Problem:
    if isinstance(problem, KinkedLoss):
        return replace(problem, smoothing=beta)
    kinked = [name for name, kind in problems().items() if issubclass(kind, KinkedLoss)]
    expected = f"{name} is smooth already; leave smoothing out, or use {' or '.join(kinked)}"
    raise InputError("scenario.problem.smoothing", {"beta": beta}, expected)


def _epsilons(privacy: PrivacySection, names: Sequence[str]) -> tuple[float, ...]:
    unlimited = privacy.mechanism == "none" or privacy.epsilon == "unlimited"
    return per_silo("scenario.privacy.epsilon", inf if unlimited else privacy.epsilon, names)


def _deltas(privacy: PrivacySection, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    if privacy.delta != "1/n^2":
        return per_silo("scenario.privacy.delta", privacy.delta, names)
    for name, n in zip(names, sizes, strict=True):
        if n < 2 and privacy.mechanism != "none":
            expected = f"below 1: silo {name} has {n} training record, so 1/n^2 is {1 / n**2:g}"
            raise InputError("scenario.privacy.delta", privacy.delta, expected)
    return tuple(1 / n**2 for n in sizes)


def _weights(section: ProblemSection, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    rule = section.silo_weights
    if isinstance(rule, str):
        raw: Sequence[float] = sizes if rule == "size" else [1.0] * len(names)
    else:
        raw = per_silo("scenario.problem.silo_weights", rule, names)
    total = sum(raw)
    return tuple(share / total for share in raw)
