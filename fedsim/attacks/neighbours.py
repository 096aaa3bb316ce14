"""The two worlds of an attack on daemons: a silo's records, and its neighbours', as a daemon would hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
        InputError: a sampler or an algorithm by which daemons are not audited.
    """
    kind = others(setting, silo)
    if kind == "silent":
        expected = "daemons are audited by full, fresh, subsample or with_replacement batches"
        raise InputError("scenario.algorithm.batch", "poisson", expected)
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


def write(setting: Setting, found: Neighbours, folder: Path, policy: dict[str, Any]) -> list[Path]:
    """A folder for each world, with records and configuration of a daemon that is yet to be enrolled."""
    return [
        _write(setting, found.silo, data, folder / world, policy)
        for world, data in zip(WORLDS, found.data, strict=True)
    ]


def _write(setting: Setting, silo: int, data: Data, folder: Path, policy: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    classes = setting.resolved.outline.num_classes
    target = data[1].astype(np.int64) if classes else data[1]
    with whole_file(folder / RECORDS) as draft, draft.open("wb") as file:
        np.savez(file, features=data[0], target=target)
    records = {"name": "npz", "path": RECORDS, "scaling": "none", "intercept": False}
    tree = {
        "name": setting.resolved.names[silo],
        "records": records | ({"classes": classes} if classes else {}),
        "state": STATE,
        "listen": {"socket": SOCKET},
        "policy": policy,
    }
    with whole_file(folder / CONFIG) as draft:
        draft.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return folder / CONFIG
