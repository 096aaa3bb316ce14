"""An algorithm or a problem that is a class of one's own file, by `name: my.py:MyAlgorithm`."""

import importlib
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from support.refusals import refused

import fedsim
from fedsim.common.errors import PluginError, Refused
from fedsim.common.plugins import file_of, short
from fedsim.isolated.confine import unavailable
from fedsim.scenario.load import load

ALGORITHM = '''
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedsim import FULL, Batch, Query, Round


@dataclass(frozen=True)
class Mine:
    """Projected steps along noisy mean gradients."""

    linear: ClassVar[bool] = True
    num_rounds: Annotated[int, Field(ge=1)]
    pace: Annotated[float, Field(gt=0)] = 1.0
    batch: Batch = FULL
    elsewhere: str = ""

    def server(self, w, problem, public, rng):
        for _ in range(self.num_rounds):
            mean = yield Round({"w": w}, answer=w)
            w = problem.project(w - self.pace * mean["g"])
        return w

    def silo(self, problem, broadcast, ask, memory):
        if self.elsewhere == str(os.getpid()):
            raise RuntimeError("in the process that holds records")
        return {"g": ask(Query("gradient", (broadcast["w"],), 1.0, self.batch))}
'''
PROBLEM = '''
from dataclasses import dataclass

from fedsim.problems.glm import GeneralisedLinear


@dataclass(frozen=True)
class Smooth(GeneralisedLinear):
    """sqrt(1 + (s - y)^2) - 1 of a real target."""

    error_name = "mean absolute error"

    @classmethod
    def suits(cls, classes):
        return classes == 0

    def accepts(self, target):
        return target.isfinite()

    def coefficient(self, scores, target, inverse_norm):
        residual = scores - target
        return residual / (1 + residual.square()).sqrt()

    def losses(self, scores, target):
        return (1 + (scores - target).square()).sqrt() - 1

    def error(self, scores, target):
        return (scores - target).abs().mean()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with mine.py, smooth.py and study.yaml, which names the first."""
    (tmp_path / "mine.py").write_text(ALGORITHM)
    (tmp_path / "smooth.py").write_text(PROBLEM)
    write(tmp_path, {"name": "mine.py:Mine", "num_rounds": 3})
    return tmp_path


def write(folder: Path, algorithm: dict[str, Any], **more: Any) -> Path:
    tree = {
        "name": "study",
        "seed": 5,
        "data": {"name": "synthetic", "rows": 120, "features": 3},
        "partition": {"name": "iid", "num_partitions": 3},
        "problem": "logistic_regression",
        "algorithm": algorithm,
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "runtime": "inprocess",
        "report": {"baselines": False},
        **more,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(tree))
    return folder / "study.yaml"


def ran(place: Path | str, **more: Any) -> fedsim.Run:
    return fedsim.simulate(place, progress=False, **more)


def test_a_name_of_a_file_and_how_it_is_shown() -> None:
    assert [file_of(name) for name in ("a/my.py:A", "my.py", "prox_sgd", "package.py.x:A", None)] == [
        "a/my.py", "my.py", None, None, None,
    ]  # fmt: skip
    assert short("/home/me/my.py:A") == "my.py:A"


def test_a_run_names_the_file_from_its_directory_and_runs_again(folder: Path) -> None:
    first = ran(folder / "study.yaml", out=folder / "runs" / "first")
    kept = yaml.safe_load((folder / "runs" / "first" / "scenario.yaml").read_text())
    assert kept["algorithm"]["name"] == "../../mine.py:Mine"
    assert kept["files"]["algorithm.name"] == sha256(ALGORITHM.encode()).hexdigest()
    assert first.summary.algorithm == "mine.py:Mine"
    for file in (folder / "runs" / "first").rglob("*"):
        assert file.is_dir() or str(folder).encode() not in file.read_bytes(), file.name
    again = ran(folder / "runs" / "first" / "scenario.yaml")
    np.testing.assert_array_equal(first.model, again.model)
    assert fedsim.load_run(folder / "runs" / "first").summary.algorithm == "mine.py:Mine"


def test_noise_follows_the_contents_and_not_the_place(folder: Path) -> None:
    nonce = "0" * 32
    (folder / "sub").mkdir()
    first = ran(folder / "study.yaml", nonce=nonce)
    for name in ("mine.py", "study.yaml"):
        (folder / "sub" / name).write_text((folder / name).read_text())
    np.testing.assert_array_equal(ran(folder / "sub" / "study.yaml", nonce=nonce).model, first.model)
    (folder / "mine.py").write_text(ALGORITHM + "\n# edited\n")
    assert not np.array_equal(ran(folder / "study.yaml", nonce=nonce).model, first.model)


def test_two_runs_of_a_file_share_no_noise(folder: Path) -> None:
    assert not np.array_equal(ran(folder / "study.yaml").model, ran(folder / "study.yaml").model)


def test_a_run_whose_file_has_changed_is_refused(folder: Path) -> None:
    ran(folder / "study.yaml", out=folder / "run")
    (folder / "mine.py").write_text(ALGORITHM + "\n# edited\n")
    with refused("scenario.files.algorithm.name"):
        ran(folder / "run" / "scenario.yaml")
    ran(folder / "run" / "scenario.yaml", files=None)


def test_an_edit_is_seen_by_the_next_call(folder: Path) -> None:
    assert ran(folder / "study.yaml").summary.rounds == 3
    (folder / "mine.py").write_text(ALGORITHM.replace("range(self.num_rounds)", "range(2 * self.num_rounds)"))
    assert ran(folder / "study.yaml").summary.rounds == 6


def test_a_shipped_scenario_takes_a_file_of_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    cost = fedsim.price("quickstart", {"algorithm": {"name": "mine.py", "num_rounds": 2}})
    assert cost.statement.rounds == 2


@pytest.mark.parametrize("given", [{"pace": 0.5}, {"algorithm.pace": 0.5}])
def test_a_field_of_the_file_can_be_overridden(folder: Path, given: dict[str, Any]) -> None:
    write(folder, {"name": "mine.py:Mine", "num_rounds": 3, "pace": 2.0})
    assert "pace: 0.5" in ran(folder / "study.yaml", overrides=given).scenario


def test_the_class_of_a_problem_goes_with_its_run(folder: Path) -> None:
    data = {"name": "synthetic", "rows": 120, "features": 3, "link": "linear"}
    algorithm = {"name": "mine.py", "num_rounds": 3}
    place = write(folder, algorithm, data=data, problem="smooth.py:Smooth")
    run = ran(place, out=folder / "run")
    assert run.summary.problem == "smooth.py:Smooth"
    (folder / "smooth.py").unlink()
    (folder / "run").rename(folder / "moved")
    table = pd.DataFrame({f"x{j}": [0.0, 1.0] for j in range(3)})
    pd.testing.assert_frame_equal(fedsim.load_run(folder / "moved").predict(table), run.predict(table))


def test_the_class_of_a_problem_stands_for_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    kind = importlib.import_module("smooth").Smooth
    algorithm = {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.1, "clip_norm": 1.0}
    place = write(folder, algorithm, data={"name": "synthetic", "link": "linear", "rows": 60, "features": 2})
    by_class, by_name = (ran(place, problem=each, nonce="0" * 32) for each in (kind, "smooth.py:Smooth"))
    assert by_class.summary.problem == by_name.summary.problem == "smooth.py:Smooth"
    assert np.array_equal(by_class.model, by_name.model)
    swept = fedsim.sweep(place, {"sweep": {"grid": {"problem.name": [kind, "linear_regression"]}}}, workers=0)
    assert not swept.interrupted
    assert len(swept.combinations) == 2 * 2
    with refused("problem", "Smooth", "give its class"):
        ran(place, problem=kind(2))
    for module, qualified in (("__main__", "Odd"), ("smooth", "Outer.Odd"), ("smooth", "make.<locals>.Odd")):
        odd = type("Odd", (kind,), {"__module__": module, "__qualname__": qualified})
        with refused("problem", "Odd", "my.py:Odd"):
            ran(place, problem=odd)


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
@pytest.mark.parametrize("problem", ["logistic_regression", "smooth.py:Smooth"])
def test_its_methods_run_in_a_confined_process(folder: Path, problem: str) -> None:
    link = "logistic" if problem == "logistic_regression" else "linear"
    data = {"name": "synthetic", "rows": 120, "features": 3, "link": link}
    algorithm = {"name": "mine.py", "num_rounds": 3, "elsewhere": str(os.getpid())}
    place = write(folder, algorithm, data=data, problem=problem)
    with pytest.raises(PluginError, match="in the process that holds records"):
        ran(place, nonce="0" * 32)
    isolated = ran(place, overrides={"runtime.plug_ins": "isolated"}, nonce="0" * 32)
    algorithm["elsewhere"] = ""
    assert isolated.model.shape == ran(write(folder, algorithm, data=data, problem=problem)).model.shape


@pytest.mark.parametrize(
    ("content", "name", "word"),
    [
        (ALGORITHM + ALGORITHM.replace("class Mine", "class Other").replace(
            "from __future__ import annotations", ""), "file.py", "file.py:Other"),
        ("x = 1\n", "file.py", "holds no dataclass"),
        (ALGORITHM, "file.py:Other", "file.py:Mine"),
        ("import neighbour\n", "file.py", "line 1"),
        ("raise SystemExit(3)\n", "file.py", "SystemExit"),
        ("def f(:\n", "file.py", "SyntaxError"),
        (None, "file.py", "cannot be read"),
    ],
)  # fmt: skip
def test_a_file_without_one_algorithm_is_one_line(
    folder: Path, content: str | None, name: str, word: str
) -> None:
    if content is not None:
        (folder / "file.py").write_text(content)
    with refused("scenario.algorithm.name") as caught:
        load(folder / "study.yaml", [f"algorithm.name={name}"])
    assert word in caught.value.hint
    assert "\n" not in str(caught.value)


def test_wrong_numbers_of_a_file_are_named_as_any(folder: Path) -> None:
    for field, value in (("pace", -1.0), ("pase", 1.0)):
        with refused(f"scenario.algorithm.{field}", value):
            load(folder / "study.yaml", [f"algorithm.{field}={value}"])


def test_a_process_that_loads_no_code_of_others_imports_no_file(folder: Path) -> None:
    """A silo's daemon."""
    program = (
        "from fedsim.common.plugins import load_none; load_none()\n"
        "from fedsim.algorithms.section import algorithm_of\n"
        f"algorithm_of({{'name': {str(folder / 'mine.py')!r}, 'num_rounds': 3}})\n"
    )
    (folder / "mine.py").write_text("print('imported')\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert Refused.__name__ in done.stderr
    assert "imported" not in done.stdout


SWEPT = {
    "grid": {"privacy.epsilon": [1.0, 2.0]},
    "cells": [
        {"algorithm": {"name": "mine.py", "num_rounds": 2, "tune": {"pace": [0.5, 1.0]}}},
        {"algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 1.0, "clip_norm": 1.0}},
    ],
    "tune": {"repetitions": 1},
}


@pytest.mark.parametrize("seed", [5, None])
def test_cells_of_a_file_are_used_again_until_it_changes(folder: Path, seed: int | None) -> None:
    place = write(folder, {"name": "mine.py", "num_rounds": 2}, sweep=SWEPT, seed=seed)
    if seed is None:
        place.write_text(place.read_text().replace("seed: null\n", ""))

    def swept() -> Any:
        return fedsim.sweep(place, out=folder / "sweep", progress=False).summary

    first, second = swept(), swept()
    assert (first.runs.failed, second.runs.made, second.runs.from_cache) == (0, 0, first.runs.made)
    labels = {row.varied["algorithm"] for row in first.combinations}
    assert labels == {"mine.py", "noisy_minibatch_sgd"}
    (folder / "mine.py").write_text(ALGORITHM + "\n# edited\n")
    third = swept()
    assert 0 < third.runs.made < first.runs.made
    assert third.runs.made + third.runs.from_cache == first.runs.made


def test_private_tuning_takes_a_file(folder: Path) -> None:
    tune = {"grid": {"algorithm.pace": [0.5, 1.0]}, "private": {"fraction": 0.3}, "repetitions": 1}
    place = write(folder, {"name": "mine.py", "num_rounds": 2}, sweep={"tune": tune})
    swept = fedsim.sweep(place, {"privacy.epsilon": 50.0}, progress=False)
    assert swept.summary.runs.failed == 0


def test_an_audit_takes_a_run_of_a_file(folder: Path) -> None:
    ran(folder / "study.yaml", out=folder / "run")
    assert not fedsim.audit(fedsim.load_run(folder / "run"), effort=0.01, progress=False).broken
