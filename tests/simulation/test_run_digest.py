"""A run's digest: complete, and the same in every process."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from support.run_keys import TREE, changed

from fedsim.common.errors import InputError
from fedsim.protocol.batch import Poisson
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation import installed
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.text import text_of
from fedsim.simulation.trial import read

PROGRAM = """
import sys, yaml
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.trial import read
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
resolved = resolve(parse(yaml.safe_load(sys.stdin.read())))
print(run_digest(resolved, read(resolved, 0).digest, "private"))
"""


def test_a_digest_is_the_same_in_every_process() -> None:
    groups = {"weight": 0.1, "groups": {"size": 2}}
    tree = changed(
        TREE,
        {
            "problem": {
                "name": "neural_network",
                "model": {"name": "mlp", "hidden": [3]},
                "regulariser": {"group_lasso": groups},
            },
            "participation": {"name": "availability", "probability": [0.5, 0.6, 0.7]},
            "algorithm": {
                "name": "local_sgd",
                "local_steps": 2,
                "num_rounds": 2,
                "step_size": 0.1,
                "clip_norm": 1.0,
                "batch": {"sampler": "poisson", "fraction": 0.3},
            },
        },
    )
    resolved = resolve(parse(tree))
    here = run_digest(resolved, read(resolved, 0).digest, "private")
    environment = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=yaml.safe_dump(tree),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == here


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Numbers:
    """As a plug-in may have them."""

    shown: float
    hidden: object = field(default=None, repr=False)


def test_a_text_says_everything_and_nothing_twice() -> None:
    values: list[object] = [
        None, True, 1, 1.0, "1", b"1", math.nan, -0.0, 0.0, 1 + 2**-52, Path("a"), {1, 2},
        (1, 2), (12,), ("1, 2",), {"a": 1}, {"a": "1"}, Colour.RED, Colour.BLUE, Numbers, Poisson(0.5),
        Numbers(1.0), Numbers(1.0, 2), Numbers(1.0, (Numbers(2.0),)), torch.float32, torch.float64,
        np.zeros(2), np.zeros((2, 1)), np.zeros(2, dtype=np.float32), np.float64(1.0), torch.zeros(2),
        np.arange(5000.0), np.where(np.arange(5000) == 2500, 0.5, np.arange(5000.0)),
    ]  # fmt: skip
    texts = [text_of(value) for value in values]
    assert len(set(texts)) == len(values)
    assert texts == [text_of(copy.deepcopy(value)) for value in values]
    assert text_of({"a": 1, "b": 2}) == text_of({"b": 2, "a": 1})


def test_what_has_no_lasting_text_is_refused() -> None:
    """Such a text is a place in memory: another in every process, and silent on what is there."""
    with pytest.raises(InputError, match="must be made of numbers"):
        text_of(Numbers(1.0, object()))


def test_code_that_others_bring_is_part_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in that was edited, at the same numbers, answers at other points."""
    model = {"name": "module", "path": "torch.nn:Linear"}
    tree = changed(TREE, {"problem": {"name": "neural_network", "model": model}})
    resolved, asked = resolve(parse(tree)), set[str]()
    digests = set()
    for version in ("first", "second"):
        monkeypatch.setattr(
            "fedsim.simulation.run_digest.packages",
            lambda found: [asked.update(found), version],  # noqa: B023
        )
        digests.add(run_digest(resolved, "data", "private"))
    assert len(digests) == 2
    assert {"torch.nn", type(resolved.algorithm).__module__, type(resolved.problem).__module__} <= asked
    monkeypatch.undo()
    assert installed.packages(asked - {"torch.nn"}) == []  # ours is not in it, nor Python's
