"""The two worlds of an attack on daemons: a silo's records and a neighbouring set, each for a daemon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from fedsim.attacks.bench import Record
from fedsim.attacks.gates import Data
from fedsim.attacks.reading import Line, lines
from fedsim.attacks.search import search
from fedsim.attacks.setting import Setting
from fedsim.attacks.two_worlds import WORLDS
from fedsim.attacks.worst import beside, others, replaced
from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
from fedsim.protocol.batch import Fresh, Full

CONFIG, RECORDS, STATE, SOCKET = "silo.yaml", "records.npz", "state", "silo.sock"


@dataclass(frozen=True)
class Neighbours:
    """What a daemon holds in each world, and what the worst server sends to both."""

    silo: int
    data: tuple[Data, Data]
    lines: list[Line]


def neighbours(setting: Setting, silo: int) -> Neighbours:
    """The records and broadcasts that tell most, of records that a daemon accepts.

    Raises:
        InputError: a mechanism, a sampler or an algorithm by which daemons are not audited.
    """
    privacy = setting.resolved.scenario.privacy
    if setting.resolved.sums is not None:
        hint = "daemons are audited by answers of their own; leave --daemons out to audit sums over silos"
        raise InputError("scenario.privacy.mechanism", privacy.mechanism, hint)
    kind = others(setting, silo)
    if kind == "silent":
        hint = "daemons are audited by full, fresh, subsample or with_replacement batches"
        raise InputError("scenario.algorithm.batch", "poisson", hint)
    chosen = search(setting, silo, _held(setting))
    data = beside(setting, silo, kind, chosen.first)
    worlds = replaced(data, chosen.first), replaced(data, chosen.second)
    return Neighbours(silo, worlds, lines(setting, silo, chosen, kind))


def _held(setting: Setting) -> Callable[[Record], bool]:
    """Whether a silo may hold a record at all: finite, with a target that the loss is defined for."""
    problem, classes = setting.resolved.problem, setting.resolved.outline.num_classes

    def held(record: Record) -> bool:
        features, target = record
        if not np.isfinite(features).all() or not isfinite(target):
            return False
        named = classes == 0 or (target == int(target) and 0 <= target < classes)
        return named and bool(problem.accepts(torch.tensor(target, dtype=torch.float64)))

    return held


def write(setting: Setting, found: Neighbours, folder: Path) -> list[Path]:
    """A folder for each world, with records and configuration of a daemon that is yet to be enrolled."""
    return [
        _write(setting, found.silo, data, folder / world)
        for world, data in zip(WORLDS, found.data, strict=True)
    ]


def _write(setting: Setting, silo: int, data: Data, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    classes = setting.resolved.outline.num_classes
    target = data[1].astype(np.int64) if classes else data[1]
    with whole_file(folder / RECORDS) as draft:
        np.savez(draft, features=data[0], target=target)
    records = {"name": "npz", "path": RECORDS, "scaling": "none", "intercept": False}
    tree = {
        "name": setting.resolved.names[silo],
        "records": records | ({"classes": classes} if classes else {}),
        "state": STATE,
        "listen": {"socket": SOCKET},
        "policy": _policy(setting, silo),
    }
    with whole_file(folder / CONFIG) as draft:
        draft.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return folder / CONFIG


def _policy(setting: Setting, silo: int) -> dict[str, Any]:
    """A lifetime for as many runs as an account has room for: no promise, the records are thrown away."""
    sampled = any(not isinstance(release.batch, Full | Fresh) for release, _ in setting.census(silo))
    share = {"epsilon": 450.0, "delta": 0.49} if sampled else {"epsilon": 0.0, "delta": 0.0}
    epsilon = 500.0 if sampled else 30.0  # above, the distance of discrete noise counts too much
    expires = datetime.now(UTC).date() + timedelta(days=30)
    return {
        "lifetime": {"epsilon": epsilon, "delta": 0.99, "expires": expires, "sampled": share},
        "min_noise_multiplier": 1e-3,
        "max_rounds": max(1, len(setting.resolved.trace.plan.rounds)),
        "max_dimension": max(1, setting.resolved.problem.dimension),
    }
