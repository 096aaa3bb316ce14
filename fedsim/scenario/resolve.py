"""From a scenario to the objects of a run, with every check that needs the data's outline.

A run of code that is not fedsim's draws a nonce: 128 bits of the operating system's, kept in its scenario,
that key its noise. What such code does is not seen from outside: it may read a file, a global or the clock.
So two of those runs never share noise, unless their scenario names one nonce, as that of a run repeated does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, cast

import torch

from fedsim.algorithms.preconditioned_sgd import PreconditionedSGD
from fedsim.algorithms.prepared import Contributions, Prepared, StageKind
from fedsim.algorithms.quantile_clip import QuantileClip
from fedsim.algorithms.registry import shipped, shipped_names
from fedsim.algorithms.with_public import WithPublic
from fedsim.common.errors import InputError
from fedsim.common.plugins import file_of
from fedsim.data.arrays import Arrays
from fedsim.data.federation import outline
from fedsim.data.frame import Frame
from fedsim.data.registry import OWN
from fedsim.data.source import Outline
from fedsim.isolated.parts import Isolated, of_objects, recipe_of, trace_of
from fedsim.privacy.calibrate import noise_ratios
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.registry import GAUSSIAN, MECHANISMS
from fedsim.problems.composite import SERVES
from fedsim.problems.kinds import Problem, gives_probabilities
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported
from fedsim.problems.registry import PROBLEMS, is_shipped, problem_class
from fedsim.problems.section import ProblemSection, problem_of
from fedsim.protocol.blame import blaming
from fedsim.protocol.clashes import check
from fedsim.protocol.contract import Algorithm, Public
from fedsim.protocol.dryrun import F1, Trace
from fedsim.protocol.facts import Facts
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.links import Variant
from fedsim.protocol.plan import Admitted
from fedsim.protocol.statistics import COSTED_GRADIENT
from fedsim.protocol.unit import Protects
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.automatic import step_warning, with_automatic
from fedsim.scenario.by_theorem import claims, constants, need_privacy, with_numbers, with_stated_noise
from fedsim.scenario.contributions import lines, with_h
from fedsim.scenario.facts import facts_of
from fedsim.scenario.metric import NO_GROUPS, check_metric
from fedsim.scenario.model import PrivacySection, Scenario
from fedsim.scenario.participation import participants, per_silo
from fedsim.scenario.precision import PRECISION, precision_weights
from fedsim.scenario.preparation import checked
from fedsim.scenario.public import FIELD, with_public
from fedsim.secagg.agreement import Sums
from fedsim.theory.participants import Participants, effective_m
from fedsim.theory.stated_noise import Prescribed
from fedsim.theory.symbols import Premises, Symbols, symbols
from fedsim.theory.theorem import Derived


@dataclass(frozen=True)
class Resolved:
    """A scenario and everything that follows from it without reading feature values."""

    scenario: Scenario  # with the numbers that theorems supplied
    outline: Outline
    problem: Problem
    algorithm: Algorithm  # with all its numbers
    names: tuple[str, ...]  # silos in canonical order; every per-silo list is in this order
    sizes: tuple[int, ...]  # n_i, training records
    epsilons: tuple[float, ...]  # budgets; infinity with mechanism `none`
    deltas: tuple[float, ...]
    weights: tuple[float, ...]  # p_i, summing to 1
    active: Participants  # participation: None for all silos, M for M at random, or another law
    premises: Premises  # what theorems start from
    derived: Derived | None  # numbers that a theorem or `auto` chose; None where all are given
    prescribed: Prescribed | None  # the silos' noise where the scenario fixes it; else each finds its own
    stages: tuple[StageKind | Contributions, ...]  # of private preparation, with their clips
    inner: Problem  # the problem on the features that these make
    public_silos: tuple[bool, ...]  # whether a silo's records are public
    of_unit: Sequence[str]  # what a report says of the unit

    @property
    def mechanism(self) -> Mechanism:
        """The privacy mechanism."""
        return MECHANISMS[self.scenario.privacy.mechanism] if self.sums is None else self.sums.mechanism

    @cached_property
    def sums(self) -> Sums | None:
        """The terms of secure aggregation; None where each silo answers for itself."""
        privacy = self.scenario.privacy
        if not MECHANISMS[privacy.mechanism].sums_only:
            return None
        answers = self.trace.plan.extent(self.problem.dimension, self.problem.num_features)
        return privacy.sums(answers, self.sizes, self.weights, self.active)

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
        """The theorems' symbols; InputError for a scenario without noise."""
        need_privacy(self.scenario.privacy)
        return symbols(self.premises)

    def public(self, noise_multipliers: Sequence[float] | None = None) -> Public:
        """The federation's public numbers; noise is unknown (zero) before admission."""
        noise = noise_multipliers or [0.0] * len(self.names)
        sizes, weights = torch.tensor(self.sizes), torch.tensor(self.weights, dtype=self.dtype)
        privacy = self.scenario.privacy
        about = MECHANISMS[privacy.mechanism].sums_only, privacy.unit
        return Public(self.names, sizes, weights, torch.tensor(noise, dtype=self.dtype), *about)

    @property
    def protects(self) -> Protects:
        """What of a unit's records the guarantee is about."""
        if self.mechanism.of_groups:
            return "group"
        return "label" if self.trace.plan.protects_labels_alone else "record"

    @property
    def facts(self) -> Facts:
        """What is known of the run to the table of clashes."""
        trace, mechanism = self.trace, self.mechanism
        known = facts_of(
            self.scenario,
            **{
                "noise that is not Gaussian": mechanism != GAUSSIAN,
                "an algorithm that is not linear or has memory": trace.remembers or not self.algorithm.linear,
                "memory": trace.remembers,
                "messages of several sizes": trace.uneven,
                "preconditioned_sgd": mechanism.private and isinstance(self.algorithm, PreconditionedSGD),
                "no budget": mechanism.private and inf in self.epsilons,
                "a plug-in's problem": not is_shipped(self.problem),
                "held-out records": False,
            },
        )
        return Facts(trace.plan, known.more)

    @cached_property
    def trace(self) -> Trace:
        """The plan, by dry run."""
        algorithm, problem = self.gate_algorithm, self.gate_problem
        trace = trace_of(algorithm, problem, self.public(), self.scenario.seed, LIMITS)
        return trace.of(self.scenario.privacy.unit)

    def warnings(self, admitted: Sequence[Admitted]) -> list[str]:
        """Lines on numbers that are allowed and hardly intended."""
        problem = self.weighed(admitted)
        return [] if self.stages else step_warning(self.algorithm, problem, self.outline.squared_norms)

    def weighed(self, admitted: Sequence[Admitted]) -> Problem:
        """The problem, with the weight of public records that follows from the silos' noise."""
        if not admitted or not isinstance(served := self.served, WithPublic):
            return self.problem
        found = served.weighed(self.problem, self.public([silo.noise_multiplier for silo in admitted]))
        return cast(Problem, found)

    @property
    def gate_algorithm(self) -> Algorithm:
        """The algorithm that the gates and the server's loop run.

        With `runtime.plug_ins: isolated` it is a confined process's, where a part is not fedsim's.
        """
        if self.stages:
            return self._prepared
        return self.served if self._isolated is None else cast(Algorithm, self._isolated)

    @property
    def served(self) -> Algorithm:
        """The algorithm, with a server that preconditions and weighs public records where it is to."""
        records = self.problem.composite.records
        if records is None or not records.by_server:
            return self.algorithm
        return cast(Algorithm, WithPublic(self.algorithm, records, self.effective_m / len(self.names)))

    def algorithm_of(self, variant: Variant) -> Algorithm:
        """`gate_algorithm`, or what a run's own models are compared with."""
        return self.beside.get(variant, self.gate_algorithm)

    @property
    def beside(self) -> Mapping[str, Algorithm]:
        """Algorithms of the same plan that own models are compared with, by variant; empty for most."""
        return getattr(self.gate_algorithm, "beside", dict)() if self.own else {}

    @property
    def own(self) -> str | None:
        """The entry of memory that is a silo's own part of its model; None where there are no own models."""
        return None if self.stages else getattr(self.algorithm, "own", None)

    @property
    def gate_problem(self) -> Problem:
        """The problem that the gates apply to records; a plug-in's as a confined process described it."""
        return self.problem if self._isolated is None or is_shipped(self.problem) else self._isolated.problem

    @cached_property
    def _prepared(self) -> Algorithm:
        """The algorithm after its stages, whose noise ratios follow from its own plan and the budgets."""
        own = trace_of(self.algorithm, self.inner, self.public(), self.scenario.seed, LIMITS)
        census = own.of(self.scenario.privacy.unit).plan.census()
        ratios = noise_ratios([stage.share for stage in self.stages], census, self.premises.claims)
        return cast(Algorithm, Prepared(self.stages, ratios, self.algorithm))

    @property
    def _isolated(self) -> Isolated | None:
        """The child process that runs plug-in code; None where nothing is isolated."""
        if self.scenario.runtime.plug_ins == "in_process" or self._recipe is None:
            return None
        return of_objects(self._recipe)

    @cached_property
    def _recipe(self) -> str | None:
        """The recipe for a child process; None where all parts are shipped."""
        own = getattr(self.algorithm, "inner", self.algorithm)
        if type(own) in shipped().values() and is_shipped(self.problem):
            return None
        return recipe_of(self.algorithm, self.problem, self.scenario.runtime.dtype)


def resolve(scenario: Scenario, known: Outline | None = None) -> Resolved:
    """Check the scenario and make its objects, with the numbers and the noise that theorems supply. `known`
    is its data's outline, if at hand; else the data is opened. InputError names a field that does not fit the
    data or the others.
    """
    scenario.check()
    with blaming("data set", type(scenario.data)):
        shape = known or outline(scenario.data, scenario.partition, scenario.seed, scenario.privacy.unit)
    scenario = with_nonce(_with_smoothness(scenario))
    privacy, mechanism = scenario.privacy, MECHANISMS[scenario.privacy.mechanism]
    names, sizes = tuple(shape.sizes), sizes_of(privacy, shape)
    with blaming("problem", problem_class(scenario.problem.name)):
        features, classes, groups = shape.num_features, shape.num_classes, len(shape.groups)
        problem = problem_of(scenario.problem, features, classes, dtype_of(scenario), groups)
    scenario, problem = with_public(scenario, shape, _on_device(scenario, problem), dtype_of(scenario))
    stages, inner, norms = checked(scenario, shape, problem)
    report = scenario.report
    for field, metric in (("metric", report.metric), ("against", report.against or report.metric)):
        check_metric(metric, report.threshold, problem, shape.num_classes, shape.groups, field)
    given: Any = inf if not mechanism.private or privacy.epsilon == "unlimited" else privacy.epsilon
    budgets: tuple[Any, ...] = per_silo("scenario.privacy.epsilon", given, names)
    public_silos = tuple(each == "public" for each in budgets)
    epsilons = tuple(inf if each == "public" else each for each in budgets)
    deltas = _deltas(privacy, names, sizes)
    weights = _weights(scenario.problem, names, sizes)
    active = participants(scenario.participation, names)
    claimed, given_unit = claims(privacy, names, sizes, epsilons, deltas), privacy.unit
    scenario, stages = with_h(scenario, stages, problem.dimension, claimed)
    premises = Premises(names, claimed, weights, active, problem.dimension, constants(scenario), privacy.unit)
    scenario, automatic = with_automatic(scenario, premises, problem, norms)
    premises = replace(premises, constants=constants(scenario))
    scenario, derived = with_numbers(scenario, premises)
    prescribed = None
    if mechanism.private and privacy.calibration == "theorem":
        scenario, prescribed = with_stated_noise(scenario, premises)
    resolved = Resolved(
        scenario=scenario,
        outline=shape,
        problem=problem,
        algorithm=scenario.algorithm.build(),
        names=names,
        sizes=sizes,
        epsilons=epsilons,
        deltas=deltas,
        weights=weights,
        active=active,
        premises=premises,
        derived=automatic if derived is None else derived.beside(automatic),
        prescribed=prescribed,
        stages=stages,
        inner=inner,
        public_silos=public_silos,
        of_unit=lines(given_unit, scenario.privacy.unit, shape, sizes),
    )
    if (rule := scenario.algorithm.private_clip) is not None:
        resolved = _with_count_noise(resolved, rule)
        scenario = resolved.scenario
    if mechanism.private and privacy.calibration == "sigma":
        resolved = replace(resolved, prescribed=Prescribed(_given_noise(resolved)))
    if scenario.problem.silo_weights == PRECISION:
        fixed = public_silos, resolved.noise_multipliers, resolved.derived is not None
        weights = precision_weights(scenario, premises, resolved.trace.plan, *fixed)
        resolved = replace(resolved, weights=weights, premises=replace(premises, weights=weights))
    alone = mechanism.of_groups
    if alone and (not shape.groups or getattr(scenario.data, "attribute_is_feature", False)):
        hint = "publishes features, and protects groups that are none: name data.attribute, and set "
        raise InputError("scenario.privacy.mechanism", mechanism.name, hint + "attribute_is_feature: false")
    check(resolved.facts, "scenario", scenario.value)
    fairness = scenario.problem.fairness
    if fairness and COSTED_GRADIENT.name not in {query.statistic for query in resolved.trace.plan.queries}:
        hint = "asks for no costs of groups: use fair_minibatch_sgd, or leave it out"
        raise InputError("scenario.problem.fairness", fairness.notion, f"{scenario.algorithm.name} {hint}")
    _check_public(resolved)
    _check_sums(resolved)
    _check_evaluation(resolved)
    if scenario.report.own_models and resolved.own is None:
        hint = "needs an algorithm that has own models, as mean_regularised, and no `prepare`"
        raise InputError("scenario.report.own_models", True, hint)
    return resolved


def _with_count_noise(resolved: Resolved, rule: QuantileClip) -> Resolved:
    """With the noise of counts that take their share of the plan's cost."""
    privacy = resolved.scenario.privacy
    if privacy.calibration == "theorem" or privacy.sigma is not None:
        field = "sigma" if privacy.sigma is not None else "calibration"
        hint = "calibration accountant or a noise_multiplier: clip_norm changes as the run goes"
        raise InputError(f"scenario.privacy.{field}", getattr(privacy, field), hint)
    records = resolved.problem.composite.records
    if records is not None and records.by_server:
        hint = "a number where the server weighs public records or preconditions by them"
        raise InputError("scenario.algorithm.clip_norm", {"quantile": rule.quantile}, hint)
    if rule.noise_ratio is not None:
        return resolved
    section = resolved.scenario.algorithm.having(clip_norm=rule.priced(resolved.trace.plan))
    scenario = resolved.scenario.model_copy(update={"algorithm": section})
    return replace(resolved, scenario=scenario, algorithm=section.build())


def sizes_of(privacy: PrivacySection, shape: Outline) -> tuple[int, ...]:
    """The silos' numbers of units; where these are private, the numbers that stand for them."""
    return privacy.stated(tuple(shape.sizes)) or tuple(shape.sizes.values())


def _check_sums(resolved: Resolved) -> None:
    """Check that the sums can be made, and that a given noise is one for all silos."""
    given = resolved.noise_multipliers
    if resolved.sums is not None and given is not None:
        if resolved.scenario.privacy.sigma is not None:
            hint = "noise_multiplier: with secure aggregation the noise is the sum's"
            raise InputError("scenario.privacy.sigma", resolved.scenario.privacy.sigma, hint)
        if len(set(given)) > 1:
            hint = "one number: the noise of secure aggregation is common to all silos"
            raise InputError("scenario.privacy.noise_multiplier", given, hint)


def _on_device(scenario: Scenario, problem: Problem) -> Problem:
    """The problem with the runtime's device, where that can serve it."""
    runtime = scenario.runtime
    if runtime.device == "cpu":
        return problem
    from fedsim.problems.network_layers import Layers

    runtime.on_host("networks only", isinstance(problem, NeuralNetwork))
    assert isinstance(problem, NeuralNetwork)
    chained = isinstance(problem.form(dtype_of(scenario)), Layers)
    runtime.on_host("networks that are chains of torch's layers", chained)
    sums = MECHANISMS[scenario.privacy.mechanism].sums_only
    runtime.on_host("noise of real numbers, not the exact, discrete noise of secure aggregation", not sums)
    runtime.on_host("runs without prepare", not scenario.prepare)
    return replace(problem, device=runtime.device)


def _check_public(resolved: Resolved) -> None:
    """Check that the algorithm takes gradients of public records, and where the server alone has to."""
    records, trace = resolved.problem.composite.records, resolved.trace
    if records is None or not records.in_f1:
        return
    if records.variance is not None and resolved.scenario.report.excess_risk:
        hint = "false: with weight optimal what is minimised follows from the noise"
        raise InputError("scenario.report.excess_risk", True, hint)
    name, asked = resolved.scenario.algorithm.name, resolved.scenario.problem.public
    assert asked is not None
    by_server, by_silo = (bool(each & F1) for each in trace.asked)
    if not (by_server or by_silo):
        raise InputError(f"{FIELD}.weight", asked.weight, f"0: {name} takes no gradient of f1; {SERVES} do")
    gradients = {("g", resolved.problem.dimension)} == {each for sent in trace.messages for each in sent}
    gradients &= not hasattr(resolved.algorithm, "phases")  # which adds a regulariser of its own to them
    if records.by_server and (by_silo or trace.remembers or not gradients):
        field = "precondition" if asked.precondition else "weight"
        hint = f"is for algorithms whose silos send a gradient alone, as noisy_minibatch_sgd, not for {name}"
        raise InputError(f"{FIELD}.{field}", getattr(asked, field), hint)


def _check_evaluation(resolved: Resolved) -> None:
    """Check that the model can be evaluated on held-out records, and within a budget."""
    evaluate, classes = resolved.scenario.evaluate, resolved.outline.num_classes
    if evaluate is None:
        return
    kinds, fit = ("two classes", classes == 2) if evaluate.asked_bins else ("classes", classes > 0)
    needs = {
        f"a target of {kinds}, not {classes or 'a number'}": fit,
        "problems that give probabilities, as logistic_regression": gives_probabilities(resolved.problem),
    }
    for what, fits in needs.items():
        if not fits:
            raise InputError("scenario.evaluate", evaluate.model_dump(), f"is for {what}")
    if evaluate.by_group and not resolved.outline.groups:
        raise InputError("scenario.evaluate.by_group", True, NO_GROUPS)
    for name in resolved.names:
        if (held_out := resolved.outline.held_out.get(name, 0)) < 2:
            hint = f"needs 2 held-out records a silo, and silo {name!r} has {held_out}: data.test_fraction"
            raise InputError("scenario.evaluate", evaluate.model_dump(), f"{hint}, or the silo's own holdout")


def _given_noise(resolved: Resolved) -> tuple[float, ...]:
    """z_i, given as such or as the standard deviation of a mean gradient."""
    privacy, names = resolved.scenario.privacy, resolved.names
    if privacy.noise_multiplier is not None:
        return per_silo("scenario.privacy.noise_multiplier", privacy.noise_multiplier, names)
    sigmas = per_silo("scenario.privacy.sigma", privacy.sigma, names)
    clip = getattr(resolved.algorithm, "clip_norm", None)
    if clip is None:
        hint = f"{type(resolved.algorithm).__qualname__} has no clip_norm; use noise_multiplier"
        raise InputError("scenario.privacy.sigma", privacy.sigma, hint)
    # A gradient comes first in every algorithm's plan; the anchors of prox-SVRG use every record.
    plan = resolved.trace.plan
    batch, query = plan.rounds[0][0].batch, plan.rounds[0][0].queries[0]
    moved = plan.spread(query) * clip
    return tuple(sigma * batch.size(n) / moved for sigma, n in zip(sigmas, resolved.sizes, strict=True))


def _with_smoothness(scenario: Scenario) -> Scenario:
    """A Moreau envelope's beta is the smoothness that theorems ask for: it is stated once."""
    smoothing, stated = scenario.problem.smoothing, scenario.assumptions
    if smoothing is None:
        return scenario
    if stated.beta is not None and stated.beta < smoothing.beta:
        hint = f"at least problem.smoothing.beta = {smoothing.beta:g}, or left out to be that"
        raise InputError("scenario.assumptions.beta", stated.beta, hint)
    beta = smoothing.beta if stated.beta is None else stated.beta
    return scenario.model_copy(update={"assumptions": stated.model_copy(update={"beta": beta})})


def dtype_of(scenario: Scenario) -> torch.dtype:
    """Type of parameters and features."""
    return torch.float64 if scenario.runtime.dtype == "float64" else torch.float32


def _deltas(privacy: PrivacySection, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    if privacy.delta != "1/n^2":
        return per_silo("scenario.privacy.delta", privacy.delta, names)
    for name, n in zip(names, sizes, strict=True):
        if n < 2 and MECHANISMS[privacy.mechanism].private:
            hint = f"below 1: silo {name} has {n} training record, so 1/n^2 is {1 / n**2:g}"
            raise InputError("scenario.privacy.delta", privacy.delta, hint)
    return tuple(1 / n**2 for n in sizes)


def _weights(section: ProblemSection, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    rule: Any = 1.0 if section.silo_weights in ("equal", PRECISION) else section.silo_weights
    raw = sizes if rule == "size" else per_silo("scenario.problem.silo_weights", rule, names)
    total = sum(raw)
    return tuple(share / total for share in raw)


def with_nonce(scenario: Scenario) -> Scenario:
    """The scenario, with a nonce where it needs one and has none."""
    if scenario.nonce is not None or _is_shipped(scenario):
        return scenario
    return scenario.model_copy(update={"nonce": secrets.token_hex(16)})


def with_seed(scenario: Scenario) -> Scenario:
    """The scenario, with a seed of the operating system's where it gives none: a known one hides nothing."""
    given = "seed" in scenario.model_fields_set
    return scenario if given else scenario.model_copy(update={"seed": secrets.randbits(63)})


def is_known(scenario: Scenario) -> bool:
    """Whether the code of every part is fedsim's or a file's, of which the scenario's digests say all."""
    return _is_shipped(scenario, lambda name: file_of(name) is not None)


def _is_shipped(scenario: Scenario, besides: Callable[[str], bool] = lambda name: False) -> bool:
    """Whether fedsim ships every part; names cannot be taken by another distribution."""
    algorithm, problem = scenario.algorithm, scenario.problem
    sets = [data for data in (scenario.data, scenario.public) if data is not None]
    return (
        not isinstance(algorithm, GivenAlgorithm)
        and (algorithm.name in shipped_names() or besides(algorithm.name))
        and (problem.name in PROBLEMS or besides(problem.name))
        and not isinstance(problem.model, Imported)
        and all(type(data) in (*OWN.values(), Arrays, Frame) for data in sets)
    )
