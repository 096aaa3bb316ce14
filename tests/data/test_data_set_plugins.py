"""Data sets of other distributions, found by entry point."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support.distribution import fedsim, install

from fedsim.common.errors import InputError
from fedsim.data.registry import GROUP, data_sets

COINS = '''
from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.source import Design, Labels, Ranges, Source


class Coins(Dataset):
    """Coins, of which the heavy ones are false."""

    name: Literal["coins"] = Field("coins", description="The data set's name.")
    rows: int = Field(60, ge=1, description="Coins.")

    def open(self):
        return Weights(self.rows)


class Weights(Source):
    target, columns = "false", ("weight", "false")
    num_features, num_classes = 1, 2

    def __init__(self, rows):
        self.num_rows = rows
        self.weight = np.linspace(1.0, 3.0, rows)

    def keys(self, column, field):
        return self.weight if column == "weight" else (self.weight > 2).astype(float)

    def labels(self, column, field):
        return Labels((self.weight > 2).astype(np.int64), ("no", "yes"))

    def design(self, rows):
        ranges = Ranges(np.array([1.0]), np.array([3.0]), np.array([False]), np.array([True]))
        weight = self.weight[rows]
        return Design(weight[:, None], ranges, (weight > 2).astype(np.int64), None)


class Unnamed(Dataset):
    """No name."""

    def open(self):
        return Weights(3)


class Closed(Dataset):
    """No records."""

    name: Literal["closed"] = "closed"
'''

SCENARIO = {
    "name": "coins",
    "data": {"name": "coins", "rows": 80},
    "partition": {"name": "pathological", "num_partitions": 4, "num_classes_per_partition": 2},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 30, "step_size": 4.0, "clip_norm": 1.0},
    "privacy": {"epsilon": 8.0, "delta": 0.001},
    "runtime": "inprocess",
}


@pytest.mark.slow
def test_a_distribution_adds_a_data_set(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "tiny-data", {"tiny_coins": COINS}, {GROUP: {"coins": "tiny_coins:Coins"}})
    listed = fedsim("list", site=site)
    assert "Coins, of which the heavy ones are false." in listed.stdout, listed.stderr
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    done = fedsim("simulate", path, "--out", tmp_path / "run", site=site)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert sum(silo["n"] for silo in summary["privacy"]["silos"]) == 64
    assert summary["metrics"]["error"] < 0.35
    wrong = fedsim("simulate", path, "--set", "data.row=3", "--out", tmp_path / "wrong", site=site)
    assert wrong.returncode == 2
    assert "scenario.data.row" in wrong.stderr
    without = fedsim("simulate", path, site=tmp_path)
    assert without.returncode == 2
    assert "scenario.data.name: 'coins'" in without.stderr


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("digits", "Coins", "the name is built in"),
        ("money", "Coins", "name: Literal['money']"),
        ("unnamed", "Unnamed", "name: Literal['unnamed']"),
        ("closed", "Closed", "a class with the method open"),
        ("weights", "Weights", "derived from Dataset"),
    ],
)
def test_what_cannot_be_registered_is_named(
    name: str, kind: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "tiny-data", {"tiny_coins": COINS}, {GROUP: {name: f"tiny_coins:{kind}"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError) as caught:
        data_sets.__wrapped__()
    assert f"{GROUP}:{name}" in str(caught.value)
    assert said in str(caught.value)
