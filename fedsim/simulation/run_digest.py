"""What a simulated run is, as the digest that its silos' noise, batches and permutations are keyed by.

Runs on the same records add up only if their noise is independent. A seed alone does not make it so: with
equal bits, twice the one model minus the other may be a gradient without noise. So the key holds everything
that affects what a silo releases: the plan; class and numbers of algorithm and problem; the type of numbers;
the mechanism; and of *every* silo the records, n, budget, delta, given noise, weight and rounds. Of every
one, since another silo's budget or records change what is broadcast, and two answers at different points with
equal noise differ by what the noise should hide. (Noise that a silo finds itself follows from these.)

It does not hold where silos live (process, host, runtime), nor what is measured and never sent. Of code it
holds the packages of others that bring algorithm, problem or network, and the code of an algorithm that is in
none (`fedsim.simulation.code`). An edit of fedsim itself is not seen: a run after it takes another seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from fedsim.algorithms.registry import algorithms
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.links import Variant
from fedsim.protocol.participants import Recorded
from fedsim.protocol.plan import Plan
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.code import Code, is_installed
from fedsim.simulation.installed import packages
from fedsim.simulation.text import described, text_of


def run_digest(resolved: Resolved, data: str, variant: Variant, selection: str = "") -> str:
    """Of a whole run: no other run shares its noise.

    Args:
        resolved: the run.
        data: `Federation.digest` of the trial's records.
        variant: the run itself or its twin, which has no budgets.
        selection: `Selection.digest`, where it is a candidate of private tuning.
    """
    private = variant == "private"
    budgets = (resolved.epsilons, resolved.noise_multipliers) if private else None
    return _sha256("run", _common(resolved, data, private), budgets, described(resolved.algorithm), selection)


def shared_digest(resolved: Resolved, data: str, varied: Collection[str]) -> str:
    """Of what cells of sweeps that fold have in common: all but epsilon and the algorithm's `varied`.

    They share noise, as common random numbers, and so carry no guarantee together.
    """
    algorithm = described(resolved.algorithm, varied)
    return _sha256("cells that fold", _common(resolved, data, resolved.mechanism.private), algorithm)


def _common(resolved: Resolved, data: str, private: bool) -> list[object]:
    active, trace = resolved.active, resolved.trace
    return [
        data,
        private,
        resolved.deltas if private else None,
        [resolved.names, resolved.sizes, resolved.weights],
        replace(active, source="") if isinstance(active, Recorded) else active,  # wherever the file lies
        [_rounds(trace.plan), np.array(trace.holds)],
        described(resolved.problem),
        resolved.dtype,
        [*packages(_modules(resolved)), *_by_value(resolved.algorithm)],
        *([described(resolved.mechanism)] if private and resolved.sums is not None else []),
    ]


def _rounds(plan: Plan) -> list[object]:
    """Its different rounds, and which one comes when: plans are long, and repeat themselves."""
    kinds: dict[object, int] = {}
    order = [kinds.setdefault(asks, len(kinds)) for asks in plan.rounds]
    return [list(kinds), np.array(order)]


def _modules(resolved: Resolved) -> set[str]:
    """Where the code of algorithm, problem and network comes from."""
    problem, algorithm = resolved.problem, type(resolved.algorithm)
    found = {kind.__module__ for kind in type(problem).__mro__}
    found |= {
        kind.__module__ for kind in algorithm.__mro__ if _known(algorithm) or is_installed(kind.__module__)
    }
    if isinstance(problem, NeuralNetwork) and isinstance(problem.model, Imported):
        found.add(problem.model.path.partition(":")[0])
    return found


def _by_value(algorithm: Algorithm) -> list[str]:
    """The code of an algorithm that was given as an object, and of what it holds, that is not installed."""
    return [] if _known(type(algorithm)) else [Code(algorithm).text]


def _known(algorithm: type) -> bool:
    return algorithm in algorithms().values()


def _sha256(*parts: object) -> str:
    return hashlib.sha256(text_of(parts).encode()).hexdigest()
