"""What a simulated run is, as the digest that its silos' noise, batches and permutations are keyed by.

Runs on the same records add up only if their noise is independent. A seed alone does not make it so: with
equal bits, twice the one model minus the other may be a gradient without noise. So the key holds everything
that decides what a silo releases: the plan; class and numbers of algorithm and problem; the type of numbers;
the mechanism; and of *every* silo the records, n, budget, delta, given noise, weight and rounds. Of every
one, since another silo's budget or records change what is broadcast, and two answers at different points with
equal noise differ by what the noise should hide. (Noise that a silo finds itself follows from these.)

It does not hold where silos live (process, host, runtime), nor what is measured and never sent. Of code it
holds the packages of others that bring algorithm, problem or network. An edit of fedsim itself is not seen: a
run after it takes another seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

from fedsim.common.errors import InputError
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported
from fedsim.protocol.links import Variant
from fedsim.protocol.participants import Recorded
from fedsim.protocol.plan import Plan
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.installed import packages


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
    return _sha256(
        "run", _common(resolved, data, private), budgets, _described(resolved.algorithm), selection
    )


def shared_digest(resolved: Resolved, data: str, varied: Collection[str]) -> str:
    """Of what cells of sweeps that fold have in common: all but epsilon and the algorithm's `varied`.

    They share noise, as common random numbers, and so carry no guarantee together.
    """
    algorithm = _described(resolved.algorithm, varied)
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
        _described(resolved.problem),
        resolved.dtype,
        packages(_modules(resolved)),
    ]


def _rounds(plan: Plan) -> list[object]:
    """Its different rounds, and which one comes when: plans are long, and repeat themselves."""
    kinds: dict[object, int] = {}
    order = [kinds.setdefault(asks, len(kinds)) for asks in plan.rounds]
    return [list(kinds), np.array(order)]


def _modules(resolved: Resolved) -> set[str]:
    """Where the code of algorithm, problem and network comes from."""
    problem = resolved.problem
    found = {kind.__module__ for part in (resolved.algorithm, problem) for kind in type(part).__mro__}
    if isinstance(problem, NeuralNetwork) and isinstance(problem.model, Imported):
        found.add(problem.model.path.partition(":")[0])
    return found


def _sha256(*parts: object) -> str:
    return hashlib.sha256(text_of(parts).encode()).hexdigest()


def text_of(value: object) -> str:
    """A value in full: equal in every process for equal values, and for no others.

    Raises:
        InputError: it is or holds something of which that cannot be said.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, Enum | type | PurePath | torch.dtype | np.generic):
        return f"{_name(type(value))}({_simple(value)!r})"
    if isinstance(value, torch.Tensor | np.ndarray):
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        content = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
        return f"{_name(type(value))}({array.dtype.str!r}, {array.shape}, {content})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{text_of(k)}: {text_of(v)}' for k, v in value.items()))}}}"
    if isinstance(value, list | tuple | range):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(text_of, value)))}}}"
    if isinstance(value, BaseModel) or is_dataclass(value):
        return _described(value)
    kinds = "numbers, texts, lists, mappings, arrays or dataclasses of these, so that noise can be repeated"
    raise InputError(f"a number of a run ({_name(type(value))})", value, f"must be made of {kinds}")


def _described(value: Any, without: Collection[str] = ()) -> str:
    """A dataclass or model: its class and all its fields, shown by `repr` or not."""
    names = type(value).model_fields if isinstance(value, BaseModel) else [f.name for f in fields(value)]
    held = {name: getattr(value, name) for name in names if name not in without}
    return f"{_name(type(value))}({text_of(held)})"


def _simple(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, type):
        return _name(value)
    return value.item() if isinstance(value, np.generic) else str(value)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
