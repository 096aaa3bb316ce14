"""A simulated run's digest, which keys its silos' noise, batches and permutations.

Runs on the same records add up only if their noise is independent. A seed alone does not make it so: with
equal bits, twice the one model minus the other may be a gradient without noise. So the key holds everything
that affects what a silo releases: the plan; problem, algorithm and mechanism with all numbers that are not
the default; a network's layers; the type of numbers; the first point; and of *every* silo the records, n,
budget, delta, given noise, weight and rounds. Of every one, since another silo's budget or records change
what is broadcast, and two answers at different points with equal noise differ by what the noise should hide.

It does not hold where silos live (process, host, runtime), nor what is measured and never sent. Nor does it
hold code: what code of others does cannot be read off it. A run with such code, or with an object in place of
a section, has a nonce of 128 bits from the operating system (`fedsim.scenario.resolve`). An edit of fedsim
itself is not seen: a run after it takes another seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from fedsim.common.plugins import digest, file_of, short
from fedsim.common.serialise import canonical
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.registry import is_shipped
from fedsim.protocol.links import Variant
from fedsim.report.outcome import variants
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved
from fedsim.theory.participants import Recorded

_PER_SILO = {"epsilon", "delta", "claimed_epsilon"}  # held as each silo's own number


def run_digest(resolved: Resolved, data: str, variant: Variant, selection: str = "") -> str:
    """The digest of a whole run on the records of this `Federation.digest`: no other run shares its noise.
    Besides the run itself there are its non-private baseline, which has no budgets, its evaluation, and one
    that own models are compared with. `selection` is `Selection.digest` of a candidate's private tuning.
    """
    if variant == "evaluation":  # of all that its model follows from, and of what is asked about it
        run = run_digest(resolved, data, variants(resolved)[0])
        return _sha256(variant, run, evaluation_of(resolved).trace.plan.digest)
    if variant in resolved.beside:
        return _sha256(variant, run_digest(resolved, data, variants(resolved)[0]))
    private = variant == "private"
    budgets = (resolved.epsilons, resolved.noise_multipliers) if private else None
    return _sha256("run", _common(resolved, data, private, ()), budgets, selection)


def shared_digest(resolved: Resolved, data: str, varied: Collection[str]) -> str:
    """The digest of what folded cells of a sweep share: all but epsilon and the algorithm's `varied`.

    They share noise, as common random numbers, and so carry no guarantee together.
    """
    return _sha256("cells that fold", _common(resolved, data, resolved.mechanism.private, varied))


def _common(resolved: Resolved, data: str, private: bool, varied: Collection[str]) -> list[object]:
    scenario, active, trace = resolved.scenario, resolved.active, resolved.trace
    problem = resolved.problem
    # A network of fedsim's own as torch prints it; a run with a module of others has a nonce.
    layers = ""
    if not isinstance(problem, GeneralisedLinear) and is_shipped(problem):
        layers = str(problem.module)
    first = problem.start(scenario.seed)
    if isinstance(active, Recorded):
        active = replace(active, source="")  # wherever the file lies
    return [
        scenario.nonce,
        data,
        resolved.deltas if private else None,
        _given(scenario.privacy, _PER_SILO) if private else None,
        [resolved.names, resolved.sizes, resolved.weights],
        repr(active),
        [trace.plan.digest, trace.holds],
        [_given(scenario.problem, {"silo_weights", "public"}), layers],
        _algorithm(resolved, varied),
        str(resolved.dtype),
        [str(first.dtype), hashlib.sha256(first.numpy().tobytes()).hexdigest()],
        *([repr(resolved.stages)] if resolved.stages else []),
        *(["aggregate"] if scenario.runtime.noise == "aggregate" else []),
        *_public(resolved),
    ]


def _public(resolved: Resolved) -> list[object]:
    """What f1 has of public records; where they start a run, the first point says all."""
    records, section = resolved.problem.composite.records, resolved.scenario.problem.public
    if records is None or not records.in_f1:
        return []
    numbers = (hashlib.sha256(each.numpy().tobytes()).hexdigest() for each in records.pair)
    return [*numbers, _given(section, {"sha256"})]


def _given(section: Any, without: Collection[str]) -> dict[str, Any]:
    """A section's fields, those at their default left out: a field that is added changes no run before it."""
    found: dict[str, Any] = section.model_dump(mode="json", exclude_defaults=True, exclude=set(without))
    if file := file_of(found.get("name")):  # wherever it lies
        found["name"] = [short(found["name"]), digest(file, "name")]
    return found


def _algorithm(resolved: Resolved, varied: Collection[str]) -> dict[str, Any]:
    """Numbers and texts of an object, also in tuples; other values may have another text in each process."""
    section = resolved.scenario.algorithm
    if not isinstance(section, GivenAlgorithm):
        return _given(section, {"parameters", *varied})
    held = vars(resolved.algorithm) if hasattr(resolved.algorithm, "__dict__") else {}
    return {name: value for name, value in held.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _sha256(*parts: object) -> str:
    return hashlib.sha256(canonical(parts).encode()).hexdigest()
