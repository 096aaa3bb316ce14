"""A run's digest: complete, and the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import yaml
from support.run_keys import TREE, changed

from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.run_digest import run_digest
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
