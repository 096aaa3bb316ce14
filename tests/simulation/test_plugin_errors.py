"""What another package's part raises in a run is one line that names it; the traceback comes with --debug."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import yaml
from torch import Tensor
from typer.testing import CliRunner

import fedsim
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.cli.main import app
from fedsim.common.errors import PluginError
from fedsim.data.builtin import Synthetic
from fedsim.problems.glm import LogisticRegression
from fedsim.problems.registry import problems
from fedsim.protocol.contract import Query, Round
from fedsim.simulation.failures import failure

SCENARIO = {
    "name": "errors",
    "data": {"name": "synthetic", "rows": 100, "features": 3},
    "partition": {"name": "iid", "num_partitions": 2},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.1, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0},
    "runtime": "inprocess",
    "report": {"baselines": False},
    "trials": 1,
}


@dataclass(frozen=True)
class Failing:
    """Right in the dry run; a half raises in the run."""

    linear: ClassVar[bool] = False
    half: str
    num_rounds: int = 3

    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        for _ in range(self.num_rounds):
            mean = yield Round({"w": w}, answer=w)
            if self.half == "server" and max(public.noise_multipliers) not in (1.0, 7.0):
                raise ValueError("the server method fails")
            w = w - 0.1 * mean["g"]
        return w

    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Mapping[str, Tensor]:
        answer = ask(Query("gradient", (broadcast["w"],), 1.0))
        if self.half == "silo" and type(getattr(ask, "__self__", None)).__name__ == "OpenRound":
            raise ValueError("the silo method fails")
        return {"g": answer}


@pytest.mark.parametrize(
    ("half", "expected"),
    [
        ("silo", "silo method, round 0: raised ValueError: the silo method fails (test_plugin_errors.py:"),
        (
            "server",
            "server method, before round 1: raised ValueError: the server method fails (test_plugin_errors",
        ),
    ],
)
def test_a_half_that_raises_in_the_run_is_named(half, expected):
    with pytest.raises(PluginError) as caught:
        fedsim.simulate(SCENARIO, algorithm=Failing(half), progress=False)
    assert str(caught.value).startswith(f"algorithm Failing (test_plugin_errors.py), {expected}")
    assert isinstance(caught.value.__cause__, ValueError)
    assert failure(caught.value).message == str(caught.value)


@dataclass(frozen=True)
class Fussy(LogisticRegression):
    """A problem that cannot be projected where four silos share a process."""

    def project(self, w: Tensor) -> Tensor:
        if w.dim() == 2 and len(w) == 4:
            raise ValueError("four are too many")
        return w


@dataclass(frozen=True)
class Unmade(LogisticRegression):
    def __post_init__(self) -> None:
        raise ValueError("cannot be made")


LOCAL = {"name": "local_sgd", "num_rounds": 2, "local_steps": 2, "step_size": 0.1, "clip_norm": 1.0}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            Fussy,
            r"problem Fussy \(test_plugin_errors.py\), silo method, round 0: raised ValueError: four are too",
        ),
        (Unmade, r"problem Unmade \(test_plugin_errors.py\): raised ValueError: cannot be made \(test_plug"),
    ],
)
def test_a_problem_that_raises_is_named(kind, expected, monkeypatch):
    monkeypatch.setattr(problems(), "_load", lambda name: kind)
    four = {"name": "iid", "num_partitions": 4}
    with pytest.raises(PluginError, match=expected):
        fedsim.simulate(SCENARIO | {"algorithm": LOCAL, "partition": four}, progress=False)


class Gone(Synthetic):
    """A data set whose records are not there."""

    def open(self) -> Any:
        raise ConnectionError("no such server")


def test_a_data_set_that_raises_is_named():
    expected = (
        r"data set Gone \(test_plugin_errors.py\): raised ConnectionError: no such server \(test_plugin"
    )
    with pytest.raises(PluginError, match=expected):
        fedsim.simulate(SCENARIO, data=Gone(rows=100, features=3), progress=False)


@pytest.mark.parametrize("debug", [False, True])
def test_the_command_line_shows_the_traceback_only_with_debug(debug, tmp_path, monkeypatch):
    def fails(self, *args):
        raise ValueError("never mind")

    monkeypatch.setattr(NoisyMinibatchSGD, "silo", fails)
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    done = CliRunner().invoke(app, [*(["--debug"] if debug else []), "privacy", str(path)])
    assert done.exit_code == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "error: algorithm NoisyMinibatchSGD (fedsim), silo method, round 0: raised ValueError"
    )
    assert (len(done.stderr.strip().splitlines()) > 1) == debug
    assert ("Traceback" in done.stderr) == debug


def test_a_constructor_that_raises_is_named(monkeypatch):
    def fails(self):
        raise ValueError("odd numbers")

    monkeypatch.setattr(NoisyMinibatchSGD, "__post_init__", fails, raising=False)
    with pytest.raises(
        PluginError, match=r"algorithm NoisyMinibatchSGD .*its numbers: raised ValueError: odd"
    ):
        fedsim.price(SCENARIO)
