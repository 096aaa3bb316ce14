"""Algorithms of other distributions, found by entry point."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
import yaml
from support.distribution import fedsim, install
from support.refusals import refused
from support.scenarios import invoke, once

from fedsim.algorithms.registry import GROUP, algorithms
from fedsim.common.errors import InputError
from fedsim.common.plugins import entry_points, module_of
from fedsim.isolated.confine import unavailable
from fedsim.testing import PROPERTIES
from fedsim.testing.check import check, examples

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

FRESH = {"sampler": "fresh", "fraction": 0.2}
SCENARIO = once(algorithm={"name": "sign_sgd", "num_rounds": 5, "step_size": 0.1, "batch": FRESH})


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


# `fedsim check` on somebody's file: a right algorithm, a wrong one, and what is not an algorithm.

SGD = """
from dataclasses import dataclass
from typing import ClassVar

import fedsim
from fedsim.testing import AlgorithmTests, Example


@dataclass(frozen=True)
class Plain:
    linear: ClassVar[bool] = True
    num_rounds: int
    step_size: float
    clip_norm: float
    batch: fedsim.Batch = fedsim.FULL

    def server(self, w, problem, public, rng):
        for _ in range(self.num_rounds):
            g = (yield fedsim.Round({"w": w}, answer=w))["g"]
            w = problem.project(w - self.step_size * (g + problem.public_gradient(w)))
        return w

    def silo(self, problem, broadcast, ask, memory):
        return {"g": ask(fedsim.Query("gradient", (broadcast["w"],), self.clip_norm, self.batch))}
"""
MEAN = SGD.replace("self.batch))}", "self.batch)).mean(0)}")
FORGETFUL = SGD.replace(" + problem.public_gradient(w)", "")
TESTED = (
    SGD
    + """

class TestPlain(AlgorithmTests):
    example = Example(
        short=lambda batch: Plain(4, 0.1, 1.0, batch),
        convergent=lambda step: Plain(500, step, 1.0),
        tolerance=1e-6,
        left_out={"softmax": "one case is enough here"},
    )
"""
)


def outcomes(tmp_path: Path, source: str) -> dict[str, tuple[str, str]]:
    path = tmp_path / "somebodys_file.py"
    path.write_text(source)
    ((_, example),) = examples(str(path), {}, {}).items()
    return {each.name: (each.outcome, each.reason) for each in check(example)}


@pytest.mark.slow
def test_an_example_in_the_file_gives_the_numbers(tmp_path: Path) -> None:
    pace = SGD.replace("step_size", "pace").replace("num_rounds", "length")
    example = TESTED.removeprefix(SGD).replace("class TestPlain(AlgorithmTests):\n    example", "its_numbers")
    assert {outcome for outcome, _ in outcomes(tmp_path, pace + example).values()} == {"passed", "left out"}


def test_every_field_that_needs_a_number_is_named_at_once(tmp_path: Path) -> None:
    """The fields that the check sets are not among them, and no example is tried before all are given."""
    (tmp_path / "own.py").write_text(
        SGD.replace("    clip_norm: float\n", "    clip_norm: float\n    pace: float\n    drag: float\n")
    )
    with refused("algorithm.pace", None, "--set pace=", "--set drag="):
        examples(str(tmp_path / "own.py"), {}, {})
    given = {"pace": 0.5, "drag": 1.0, "num_rounds": 7}
    ((title, example),) = examples(str(tmp_path / "own.py"), given, {}).items()
    made: Any = example.convergent(0.25)
    assert (made.num_rounds, made.step_size, made.pace, made.drag) == (7, 0.25, 0.5, 1.0)
    assert "num_rounds=7" in title


def test_what_is_given_takes_the_place_of_a_default(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SGD.replace("step_size: float", "step_size: float = 3.0").replace(
        "clip_norm: float", "clip_norm: float = 1.0"))  # fmt: skip
    ((_, example),) = examples(str(tmp_path / "own.py"), {}, {}).items()
    assert example.convergent(0.25).step_size == 0.25
    ((_, example),) = examples(str(tmp_path / "own.py"), {"step_size": 0.5}, {}).items()
    assert example.convergent(0.25).step_size == 0.5


def test_numbers_beside_an_example_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TESTED)
    with refused("--set", {"num_rounds": 3}):
        examples(str(tmp_path / "own.py"), {"num_rounds": 3}, {})


@pytest.mark.slow
def test_a_right_algorithm_passes_by_its_fields_alone(tmp_path: Path) -> None:
    found = outcomes(tmp_path, SGD)
    assert list(found) == [each.name for each in PROPERTIES]
    assert {outcome for outcome, _ in found.values()} == {"passed"}


@pytest.mark.slow
def test_what_does_not_hold_is_named_with_its_reason(tmp_path: Path) -> None:
    """Without f1's gradient it finds another optimum where there is an f1, and nowhere else."""
    found = outcomes(tmp_path, FORGETFUL)
    failed = {name: reason for name, (outcome, reason) in found.items() if outcome == "failed"}
    assert set(failed) == {
        f"{what} the optimum: {case}" for what in ("reaches", "stays at") for case in ("logistic", "softmax")
    }
    assert "from the optimum" in failed["reaches the optimum: logistic"]


def test_without_a_dry_run_nothing_else_is_tried(tmp_path: Path) -> None:
    found = outcomes(tmp_path, MEAN)
    (first, reason), *rest = found.values()
    assert first == "failed"
    assert "the message's 'g' is another for a silo alone" in reason
    assert {outcome for outcome, _ in rest} == {"not tried"}


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_the_methods_run_in_a_confined_process(tmp_path: Path) -> None:
    """The same file passes beside records and not without them: it needs the caller's process."""
    path = tmp_path / "at_home.py"
    path.write_text(SGD.replace("return {", f"assert os.getpid() == {os.getpid()}\n        return {{"))
    path.write_text("import os\n" + path.read_text())
    for isolated, outcome in ((False, "passed"), (True, "failed")):
        ((_, example),) = examples(str(path), {}, {}, isolated).items()
        assert next(check(example)).outcome == outcome


@pytest.mark.slow
@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_a_right_algorithm_passes_in_a_confined_process(tmp_path: Path) -> None:
    path = tmp_path / "confined.py"
    path.write_text(SGD)
    invoke("check", path, "--isolated")


def test_the_command_prints_a_table_and_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "averaged.py"
    path.write_text(MEAN)
    output = invoke("check", path, code=1)
    assert all(each.name in output for each in PROPERTIES)
    assert "reduce over the last axis only" in output


def test_a_file_with_tests_is_taken_at_their_example(tmp_path: Path) -> None:
    path = tmp_path / "test_plain_file.py"
    path.write_text(TESTED)
    ((title, example),) = examples(str(path), {}, {"linear in a ball": "nor here"}).items()
    assert title == "TestPlain"
    assert example.tolerance == 1e-6
    assert {each.name for each in PROPERTIES if each.left_out(example)} == {
        f"{what} the optimum: {case}"
        for what in ("reaches", "stays at")
        for case in ("softmax", "linear in a ball")
    }


def test_what_is_left_out_is_a_property(tmp_path: Path) -> None:
    ((_, example),) = examples("noisy_minibatch_sgd", {}, {"balls": "no"}).items()
    with refused("left out", "balls", "must be one of dry run"):
        next(check(example))


@pytest.mark.parametrize(
    ("named", "numbers", "expected"),
    [
        ("noisy_minibatch_sg", {}, "did you mean 'noisy_minibatch_sgd'"),
        ("fractions:Fraction", {}, "must name a dataclass with methods server and silo"),
        ("no_such_module:X", {}, "cannot be imported: raised ModuleNotFoundError"),
        ("nowhere.py", {}, "cannot be read"),
        ("noisy_minibatch_sgd", {"steps": 3}, "--set: 'steps': must be a field of NoisyMinibatchSGD"),
        (
            "prox_svrg",
            {"epochs": 1, "inner_steps": 1},
            "algorithm.difference_clip: None: needs --set difference_clip=",
        ),
        (
            "prox_svrg",
            {"epochs": 1, "inner_steps": 1, "difference_clip": 2.0},
            "algorithm.inner_steps: 1: at least 2",
        ),
    ],
)
def test_what_cannot_be_checked_is_named(named: str, numbers: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        examples(named, numbers, {})


def test_pytest_runs_the_properties_of_a_class(tmp_path: Path) -> None:
    path = tmp_path / "test_their_file.py"
    path.write_text(TESTED)
    examples(str(path), {}, {})
    kind = module_of(str(path), "ALGORITHM").TestPlain
    tests = [name for name in dir(kind) if name.startswith("test_")]
    assert len(tests) == len(PROPERTIES)
    kind().test_messages_may_be_scaled()
    with pytest.raises(SkipTest, match="one case is enough here"):
        kind().test_reaches_the_optimum_softmax()
