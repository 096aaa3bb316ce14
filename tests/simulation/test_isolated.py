"""A simulation with `runtime.plug_ins: isolated`: the same numbers, and the code in another process."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import fedsim
from fedsim import Query, Round
from fedsim.common.errors import PluginError
from fedsim.isolated.confine import unavailable

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

SCENARIO: dict[str, Any] = {
    "name": "isolated",
    "seed": 5,
    "nonce": "0" * 32,
    "data": {"name": "synthetic", "rows": 120, "features": 4},
    "partition": {"name": "iid", "num_partitions": 3},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 4, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
    "report": {"baselines": False},
}


@dataclass(frozen=True)
class Own:
    """Keeps memory and draws in its server method, so that both travel."""

    num_rounds: int
    where: str = ""
    linear: ClassVar[bool] = False

    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Iterator[Round]:
        for _ in range(self.num_rounds):
            mean = yield Round({"w": w}, answer=w)
            w = problem.project(w - float(rng.uniform(0.4, 0.6)) * mean["g"])
        return w

    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Mapping[str, Tensor]:
        if self.where and str(os.getpid()) == self.where:
            raise RuntimeError("in the process of the caller")
        answer = ask(Query("gradient", (broadcast["w"],), 1.0))
        memory["sum"] = memory["sum"] + answer
        return {"g": (answer + memory["sum"]) / 2}


def _run(plug_ins: str, algorithm: Own, name: str = "inprocess") -> Any:
    runtime = {"name": name, "plug_ins": plug_ins}
    return fedsim.simulate({**SCENARIO, "runtime": runtime}, algorithm=algorithm, progress=False)


def test_the_same_numbers_as_in_one_process():
    one, other = _run("in_process", Own(4)), _run("isolated", Own(4))
    assert torch.equal(torch.as_tensor(one.model), torch.as_tensor(other.model))
    assert one.ledger.to_pylist() == other.ledger.to_pylist()


def test_the_code_runs_in_another_process():
    here = Own(4, where=str(os.getpid()))
    _run("isolated", here)
    with pytest.raises(PluginError, match="in the process of the caller"):
        _run("in_process", here)


@pytest.mark.slow
def test_the_same_numbers_on_ray():
    one, other = _run("in_process", Own(4)), _run("isolated", Own(4), "ray")
    assert torch.equal(torch.as_tensor(one.model), torch.as_tensor(other.model))
