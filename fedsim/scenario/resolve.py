"""From a scenario to the objects of a run, with every check that needs the data's outline.

A run of code that is not fedsim's draws a nonce: 128 bits of the operating system's, kept in its scenario,
that key its noise. What such code does is not seen from outside: it may read a file, a global or the clock.
So two of those runs never share noise, unless their scenario names one nonce, as that of a run repeated does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedsim.algorithms.registry import shipped_names
from fedsim.algorithms.section import AUTO
from fedsim.common.errors import InputError
from fedsim.common.plugins import file_of
from fedsim.data.federation import outline
from fedsim.data.registry import SHIPPED
from fedsim.data.source import Outline
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.composite import SERVES
from fedsim.problems.kinds import Problem, gives_probabilities
from fedsim.problems.registry import PROBLEMS, dtype_of, problem_class
from fedsim.problems.section import problem_of
from fedsim.protocol.blame import blaming
from fedsim.protocol.clashes import check
from fedsim.protocol.contract import traits
from fedsim.protocol.dryrun import F1
from fedsim.protocol.statistics import COSTED_GRADIENT
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.automatic import with_automatic
from fedsim.scenario.by_theorem import constants, with_numbers, with_stated_noise
from fedsim.scenario.contributions import lines, with_h
from fedsim.scenario.metric import NO_GROUPS, check_metric
from fedsim.scenario.model import Scenario
from fedsim.scenario.participation import participants, per_silo
from fedsim.scenario.preparation import checked
from fedsim.scenario.public import FIELD, with_public
from fedsim.scenario.resolved import Resolved as Resolved
from fedsim.theory.symbols import Premises
from fedsim.theory.theorem import Prescribed


def resolve(scenario: Scenario, known: Outline | None = None) -> Resolved:
    """Check the scenario and make its objects, with the numbers and the noise that theorems supply. `known`
    is its data's outline, if at hand; else the data is opened. InputError names a field that does not fit the
    data or the others.
    """
    scenario.check()
    with blaming("data set", type(scenario.data)):
        shape = known or outline(scenario.data, scenario.partition, scenario.seed, scenario.privacy.unit)
    scenario = with_nonce(_with_smoothness(scenario))
    dtype, section = dtype_of(scenario.runtime.dtype), scenario.problem
    with blaming("problem", problem_class(section.name)):
        problem = problem_of(section, shape.num_features, shape.num_classes, dtype, len(shape.groups))
    scenario, problem = with_public(scenario, shape, _on_device(scenario, problem), dtype)
    stages, inner, norms = checked(scenario, shape, problem)
    report, groups = scenario.report, shape.groups
    for field, metric in (("metric", report.metric), ("against", report.against or report.metric)):
        check_metric(metric, report.threshold, problem, shape.num_classes, groups, field)
    budgets, given = scenario.privacy.budgets(shape), scenario.privacy.unit
    premises = _premises(scenario, problem, tuple(shape.sizes), budgets)
    scenario, stages = with_h(scenario, stages, problem.dimension, premises.claims)
    scenario, automatic = with_automatic(scenario, premises, problem, norms)
    premises = replace(premises, constants=constants(scenario))
    scenario, derived = with_numbers(scenario, premises)
    derived = automatic if derived is None else derived.beside(automatic)
    scenario, prescribed = with_stated_noise(scenario, premises)
    of_unit = lines(given, scenario.privacy.unit, shape, [budget.n for budget in budgets])
    algorithm = scenario.algorithm.build()
    resolved = Resolved(
        scenario, shape, problem, algorithm, budgets, premises, derived, prescribed, stages, inner, of_unit
    )
    resolved = _with_precision(_with_given_noise(_with_count_noise(resolved)))
    _check_run(resolved)
    return resolved


def _on_device(scenario: Scenario, problem: Problem) -> Problem:
    runtime = scenario.runtime
    if runtime.device == "cpu":
        return problem
    from fedsim.problems.network import NeuralNetwork
    from fedsim.problems.network_layers import Layers

    runtime.on_host("networks only", isinstance(problem, NeuralNetwork))
    assert isinstance(problem, NeuralNetwork)
    chained = isinstance(problem.form(dtype_of(runtime.dtype)), Layers)
    runtime.on_host("networks that are chains of torch's layers", chained)
    sums = MECHANISMS[scenario.privacy.mechanism].sums_only
    runtime.on_host("noise of real numbers, not the exact, discrete noise of secure aggregation", not sums)
    runtime.on_host("runs without prepare", not scenario.prepare)
    return replace(problem, device=runtime.device)


def _premises(
    scenario: Scenario, problem: Problem, names: tuple[str, ...], budgets: tuple[Budget, ...]
) -> Premises:
    """What theorems start from, with the constants that the scenario states so far."""
    privacy, chosen = scenario.privacy, scenario.problem.silo_weights
    rule: Any = 1.0 if chosen in ("equal", "precision") else chosen
    sizes = [own.n for own in budgets]
    raw = sizes if rule == "size" else per_silo("scenario.problem.silo_weights", rule, names)
    total = sum(raw)
    weights = tuple(share / total for share in raw)
    active = participants(scenario.participation, names)
    found = names, privacy.claims(names, budgets), weights, active, problem.dimension
    return Premises(*found, constants(scenario), privacy.unit)


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


def _with_count_noise(resolved: Resolved) -> Resolved:
    """With the noise of a private clip's counts, which take their share of the plan's cost."""
    privacy, rule = resolved.scenario.privacy, resolved.scenario.algorithm.private_clip
    if rule is None:
        return resolved
    if privacy.calibration == "theorem" or privacy.sigma is not None:
        field = "sigma" if privacy.sigma is not None else "calibration"
        hint = "calibration accountant or a noise_multiplier: clip_norm changes as the run goes"
        raise InputError(f"scenario.privacy.{field}", dict(privacy)[field], hint)
    records = resolved.problem.composite.records
    if records is not None and records.by_server:
        hint = "a number where the server weighs public records or preconditions by them"
        raise InputError("scenario.algorithm.clip_norm", {"quantile": rule.quantile}, hint)
    if rule.noise_ratio is not None:
        return resolved
    section = resolved.scenario.algorithm.having(clip_norm=rule.priced(resolved.trace.plan))
    scenario = resolved.scenario.model_copy(update={"algorithm": section})
    return replace(resolved, scenario=scenario, algorithm=section.build())


def _with_given_noise(resolved: Resolved) -> Resolved:
    """With z_i where the scenario gives it as such, or as the standard deviation of a mean gradient."""
    privacy = resolved.scenario.privacy
    if not MECHANISMS[privacy.mechanism].private or privacy.calibration != "sigma":
        return resolved
    names, given = resolved.names, privacy.noise_multiplier
    if given is not None:
        z = per_silo("scenario.privacy.noise_multiplier", given, names)
        return replace(resolved, prescribed=Prescribed(z))
    sigmas = per_silo("scenario.privacy.sigma", privacy.sigma, names)
    clip = traits(resolved.algorithm).clip_norm
    if clip is None:
        hint = f"{type(resolved.algorithm).__qualname__} has no clip_norm; use noise_multiplier"
        raise InputError("scenario.privacy.sigma", privacy.sigma, hint)
    # A gradient comes first in every algorithm's plan; the anchors of prox-SVRG use every record.
    plan = resolved.trace.plan
    batch, query = plan.rounds[0][0].batch, plan.rounds[0][0].queries[0]
    moved = plan.spread(query) * clip
    z = tuple(sigma * batch.size(n) / moved for sigma, n in zip(sigmas, resolved.sizes, strict=True))
    return replace(resolved, prescribed=Prescribed(z))


def _with_precision(resolved: Resolved) -> Resolved:
    """With weights by the silos' noise, where the objective asks for them."""
    scenario, premises = resolved.scenario, resolved.premises
    if scenario.problem.silo_weights != "precision":
        return resolved
    from fedsim.scenario.precision import precision_weights

    fixed = resolved.public_silos, resolved.noise_multipliers, resolved.derived is not None
    weights = precision_weights(scenario, premises, resolved.trace.plan, *fixed)
    return replace(resolved, premises=replace(premises, weights=weights))


def _check_run(resolved: Resolved) -> None:
    """InputError names the first field that does not fit."""
    mechanism, data, scenario = resolved.mechanism, dict(resolved.scenario.data), resolved.scenario
    if mechanism.of_groups and (not resolved.outline.groups or data.get("attribute_is_feature", False)):
        hint = "publishes features, and protects groups that are none: name data.attribute, and set "
        raise InputError("scenario.privacy.mechanism", mechanism.name, hint + "attribute_is_feature: false")
    check(resolved.facts, "scenario", scenario.value)
    fairness = scenario.problem.fairness
    if fairness and COSTED_GRADIENT.name not in {query.statistic for query in resolved.trace.plan.queries}:
        hint = "asks for no costs of groups: use fair_minibatch_sgd, or leave it out"
        raise InputError("scenario.problem.fairness", fairness.notion, f"{scenario.algorithm.name} {hint}")
    _check_public(resolved)
    given, privacy = resolved.noise_multipliers, scenario.privacy
    if resolved.sums is not None and given is not None:
        if privacy.sigma is not None:
            hint = "noise_multiplier: with secure aggregation the noise is the sum's"
            raise InputError("scenario.privacy.sigma", privacy.sigma, hint)
        if len(set(given)) > 1:
            hint = "one number: the noise of secure aggregation is common to all silos"
            raise InputError("scenario.privacy.noise_multiplier", given, hint)
    _check_evaluation(resolved)
    if scenario.report.own_models and resolved.own is None:
        hint = "needs an algorithm that has own models, as mean_regularised, and no `prepare`"
        raise InputError("scenario.report.own_models", True, hint)
    if scenario.report.at_home and not scenario.report.baselines:
        hint = "needs report.baselines: it is compared with each silo alone"
        raise InputError("scenario.report.at_home", True, hint)


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
        raise InputError(f"{FIELD}.{field}", dict(asked)[field], hint)


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
        and (algorithm.name in (AUTO, *shipped_names()) or besides(algorithm.name))
        and (problem.name in PROBLEMS or besides(problem.name))
        and (problem.model is None or problem.model.name != "module")
        and all(type(data) is SHIPPED.get(data.name) for data in sets)
    )
