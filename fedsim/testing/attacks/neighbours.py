"""Neighbouring records for two daemons, the broadcasts to send them, and what their replies tell.

The server sees messages and nothing else, and the silo method is public code. Where its message of a round
is the unchanged answer to the round's only query, a server hears what the plan is priced for. (A message that
is made of several answers tells less, and its likelihood is not worked out here.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import yaml
from torch import Tensor

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.common.seeds import generator
from fedsim.privacy.grid import STEPS
from fedsim.protocol.contract import Asker, Query
from fedsim.protocol.copies import CohortMemory
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import RECORD
from fedsim.testing.attacks.cohorts import Heard, sensitivity
from fedsim.testing.attacks.likelihood import InRuns, Knowledge, Places, Scores, narrowed
from fedsim.testing.attacks.search import Attack, held, search
from fedsim.testing.attacks.setting import Broadcast, Others, Setting, others

WORLDS = ("world-0", "world-1")
_COORDINATES = 66


@dataclass(frozen=True)
class Line:
    """One round of the attack."""

    round: int
    broadcast: Broadcast
    name: str  # of the reply's array
    query: Query  # what that array answers
    places: Places  # where it lies in each world
    dtype: torch.dtype


def lines(setting: Setting, silo: int, chosen: Attack, kind: Others) -> list[Line]:
    """The plan's rounds as a malicious server asks them; InputError if a reply is not one query's answer."""
    knowledge = InRuns(Knowledge(setting, silo, chosen.first, chosen.second, kind), 1)
    memory = CohortMemory(1, setting.resolved.problem.dimension, setting.resolved.dtype)
    found = []
    for r in setting.rounds(silo):
        if (k := setting.kind_of.get(r)) is None:  # no honest run has this round, so its broadcast is unknown
            continue
        name, query = _answered(setting, chosen.broadcasts[k], memory)
        (places,) = knowledge.places(Heard((query,), ()), (r, 0), (k, 0))
        found.append(Line(r, chosen.broadcasts[k], name, narrowed(query), places, setting.resolved.dtype))
    return found


def _answered(setting: Setting, broadcast: Broadcast, memory: CohortMemory) -> tuple[str, Query]:
    """The name of the reply's array and the query that it answers, found with a random answer."""
    resolved = setting.resolved
    asked: list[Query] = []
    probe = torch.as_tensor(generator("audit probe").standard_normal(resolved.problem.dimension))
    probe = probe.to(resolved.dtype)[None]

    def ask(*queries: Query) -> Tensor | tuple[Tensor, ...]:
        asked.extend(queries)
        return probe.clone() if len(queries) == 1 else (probe.clone(),) * len(queries)

    message = resolved.gate_algorithm.silo(resolved.problem, broadcast, cast(Asker, ask), memory)
    plain = len(asked) == len(message) == 1
    if not plain or not torch.equal(next(iter(message.values())).reshape(-1), probe[0]):
        hint = "a daemon is audited by algorithms whose reply is the answer to one query a round"
        raise InputError("scenario.algorithm.name", resolved.scenario.algorithm.name, hint)
    return next(iter(message)), asked[0]


def scores(plan: Sequence[Line], replies: Sequence[Tensor], n: int, noise_multiplier: float) -> np.ndarray:
    """Log-likelihood ratios of runs, (runs,), from what each line was answered, (runs, d) each."""
    runs = Scores(len(replies[0]), n, noise_multiplier)
    for line, answers in zip(plan, replies, strict=True):
        runs.add(line.query.batch, Heard((line.query,), (answers,)), [line.places])
    return runs.ratios()


def noise(
    plan: Sequence[Line], replies: Sequence[Tensor], n: int, noise_multiplier: float
) -> tuple[np.ndarray, float]:
    """The first world's replies' noise over its stated standard deviation, (lines, runs, coordinates).

    Where a batch is not full, of the coordinates that no draw of it moves: the part across both worlds'
    places. And the step of the noise, in standard deviations: that of the grid, or of the answer's type.
    """
    found, steps = [], [0.0]
    for line, answers in zip(plan, replies, strict=True):
        query, places = line.query, line.places
        size = query.batch.size(n)
        left = (answers - places.base)[:, :_COORDINATES]
        if query.batch.sampler == "full":
            left = left - places.first[:, :_COORDINATES]
        else:
            moved = torch.cat([places.first, places.second]).T[:_COORDINATES]
            left = left @ torch.linalg.qr(moved, mode="complete").Q[:, moved.shape[1] :]
        sigma = query.noise_ratio * noise_multiplier * float(sensitivity(query)) / size
        if sigma > 0 and left.shape[1]:
            found.append((left / sigma).numpy())
            grain = max(1 / (2 * STEPS), torch.finfo(line.dtype).eps * size)
            steps.append(grain / (query.noise_ratio * noise_multiplier))
    width = min((rows.shape[1] for rows in found), default=0)
    rows = [rows[:, :width] for rows in found]
    return np.stack(rows) if rows else np.empty((0, 0, 0)), max(steps)


CONFIG, RECORDS, STATE, SOCKET = "silo.yaml", "records.npz", "state", "silo.sock"


@dataclass(frozen=True)
class Neighbours:
    """A daemon's records in each world, and what the malicious server sends to both."""

    silo: int
    data: tuple[Rows, Rows]
    lines: list[Line]


def neighbours(setting: Setting, silo: int) -> Neighbours:
    """The records and broadcasts that tell most, of records that a daemon accepts. InputError for a
    mechanism, a sampler or an algorithm by which daemons are not audited.
    """
    privacy = setting.resolved.scenario.privacy
    if setting.resolved.sums is not None:
        hint = "daemons are audited by answers of their own; leave --daemons out to audit secure aggregation"
        raise InputError("scenario.privacy.mechanism", privacy.mechanism, hint)
    if setting.unit != RECORD:
        hint = "daemons are audited by records; leave --daemons out to audit persons"
        raise InputError("scenario.privacy.unit", setting.unit.name, hint)
    kind = others(setting, silo)
    if kind == "silent":
        hint = "daemons are audited by full, fresh, subsample or with_replacement batches"
        raise InputError("scenario.algorithm.batch", "poisson", hint)
    chosen = search(setting, silo, held(setting))
    return Neighbours(silo, chosen.worlds(setting, silo), lines(setting, silo, chosen, kind))


def write(setting: Setting, found: Neighbours, folder: Path) -> list[Path]:
    """A folder for each world, with records and configuration of a daemon that is yet to be enrolled."""
    classes = setting.resolved.outline.num_classes
    records = {"name": "npz", "path": RECORDS, "scaling": "none", "intercept": False}
    tree = {
        "name": setting.resolved.names[found.silo],
        "records": records | ({"classes": classes} if classes else {}),
        "state": STATE,
        "listen": {"socket": SOCKET},
        "policy": _policy(setting, found.silo),
    }
    places = [folder / world for world in WORLDS]
    for place, data in zip(places, found.data, strict=True):
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = data.target.astype(np.int64) if classes else data.target
        with atomic_file(place / RECORDS) as draft:
            np.savez(draft, features=data.features, target=target)
        with atomic_file(place / CONFIG) as draft:
            draft.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return [place / CONFIG for place in places]


def _policy(setting: Setting, silo: int) -> dict[str, Any]:
    """A lifetime for as many runs as an account has room for: no promise, the records are thrown away."""
    sampled = any(release.batch.random for release, _ in setting.census(silo))
    share = {"epsilon": 450.0, "delta": 0.49} if sampled else {"epsilon": 0.0, "delta": 0.0}
    epsilon = 500.0 if sampled else 30.0  # above, the distance of discrete noise counts too much
    expires = datetime.now(UTC).date() + timedelta(days=30)
    return {
        "lifetime": {"epsilon": epsilon, "delta": 0.99, "expires": expires, "sampled": share},
        "min_noise_multiplier": 1e-3,
        "max_rounds": max(1, len(setting.resolved.trace.plan.rounds)),
        "max_dimension": max(1, setting.resolved.problem.dimension),
    }
