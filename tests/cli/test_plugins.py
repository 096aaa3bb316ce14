"""Algorithms of other distributions, found by entry point."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support.distribution import fedsim, install

from fedsim.algorithms.registry import GROUP, algorithms
from fedsim.common.errors import InputError
from fedsim.common.plugins import entry_points

SIGN = '''
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.contract import Query, Round


@dataclass(frozen=True)
class SignSGD:
    """Steps by the sign."""

    linear: ClassVar[bool] = True
    num_rounds: Annotated[int, Field(ge=1, description="R: communication rounds")]
    step_size: Annotated[float, Field(gt=0, description="eta: step size")]
    batch: Annotated[Batch, Field(description="which records")] = FULL

    def server(self, w, problem, public, rng):
        for _ in range(self.num_rounds):
            g = (yield Round({"w": w}, answer=w))["g"]
            w = problem.project(w - self.step_size * g.sign())
        return w

    def silo(self, problem, broadcast, ask, memory):
        return {"g": ask(Query("gradient", (broadcast["w"],), 1.0, self.batch))}


class Nothing:
    pass
'''

SCENARIO = {
    "name": "signs",
    "trials": 2,
    "data": {"name": "synthetic", "rows": 200, "features": 3},
    "partition": {"name": "iid", "num_partitions": 4},
    "problem": "logistic_regression",
    "algorithm": {
        "name": "sign_sgd",
        "num_rounds": 5,
        "step_size": 0.1,
        "batch": {"sampler": "fresh", "fraction": 0.2},
    },
    "privacy": {"epsilon": 1.0},
}


def installed(site: Path, **points: str) -> Path:
    install(site, "tiny-algorithms", {"tiny_signs": SIGN, "tiny_broken": "1 / 0\n"}, {GROUP: points})
    return site


@pytest.mark.slow
def test_a_distribution_adds_an_algorithm(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", sign_sgd="tiny_signs:SignSGD")
    listed = fedsim("list", site=site)
    assert listed.returncode == 0, listed.stderr
    assert "sign_sgd" in listed.stdout
    assert "Steps by the sign." in listed.stdout
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    done = fedsim("simulate", path, "--runtime", "inprocess", "--out", tmp_path / "run", site=site)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 5
    assert all(0.97 <= silo["epsilon_guaranteed"] <= 1 for silo in summary["privacy"]["silos"])
    without = fedsim("simulate", path, site=tmp_path)
    assert without.returncode == 2
    assert "scenario.algorithm.name: 'sign_sgd'" in without.stderr


@pytest.mark.slow
def test_the_actors_of_a_simulation_find_it_too(tmp_path: Path) -> None:
    """They are processes of the same environment, and each loads the entry point for itself."""
    site = installed(tmp_path / "site", sign_sgd="tiny_signs:SignSGD")
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    runtime = ["--runtime", "ray", "--set", "runtime.silo_hosts=2"]
    done = fedsim("simulate", path, *runtime, "--out", tmp_path / "run", site=site)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["trials"]["finished"] == 2


def test_a_broken_distribution_is_one_line_and_leaves_help_alone(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", broken="tiny_broken:Anything")
    listed = fedsim("list", site=site)
    assert (listed.returncode, listed.stdout) == (2, "")
    assert listed.stderr == (
        "error: entry point fedsim.algorithms:broken: 'tiny_broken:Anything': distribution tiny-algorithms: "
        "cannot be loaded (ZeroDivisionError: division by zero)\n"
    )
    assert fedsim("--help", site=site).returncode == 0


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({"local_sgd": "tiny_signs:SignSGD"}, ["local_sgd", "tiny_signs", "another name"]),
        ({"nothing": "tiny_signs:Nothing"}, ["nothing", "tiny_signs", "a dataclass with methods server"]),
        ({"absent": "tiny_signs:Absent"}, ["absent", "tiny-algorithms", "AttributeError"]),
        ({"no_module": "not_there:Absent"}, ["no_module", "tiny-algorithms", "ModuleNotFoundError"]),
    ],
)
def test_what_cannot_be_registered_is_named(
    points: dict[str, str], message: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path, **points))
    with pytest.raises(InputError) as caught:
        algorithms.__wrapped__()
    for part in (GROUP, *message):
        assert part in str(caught.value)


def test_two_distributions_with_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "one", sign_sgd="tiny_signs:SignSGD"))
    assert list(entry_points(GROUP)) == ["sign_sgd"]
    install(tmp_path / "two", "other-algorithms", {}, {GROUP: {"sign_sgd": "tiny_signs:SignSGD"}})
    monkeypatch.syspath_prepend(tmp_path / "two")
    with pytest.raises(InputError, match=r"sign_sgd.*(tiny|other)-algorithms.*name taken twice"):
        entry_points(GROUP)


def test_a_group_without_entries_is_empty() -> None:
    assert entry_points("fedsim.no_such_group") == {}
