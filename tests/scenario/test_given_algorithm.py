"""An algorithm given as an object: it runs instead of the section's, and errors name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_spider import ProxSPIDER
from fedsim.common.errors import InputError
from fedsim.protocol.contract import Asker, Memory, Public, PublicProblem, Query, Round, ServerHalf
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve


@dataclass(frozen=True)
class OneStep:
    """A gradient step."""

    linear: ClassVar[bool] = True
    step_size: float

    def server(
        self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        mean = yield Round({"w": w}, answer=w)
        return w - self.step_size * mean["g"]

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, torch.Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, torch.Tensor]:
        return {"g": ask(Query("gradient", (broadcast["w"],), 1.0))}


def tree(algorithm: dict[str, Any], **privacy: Any) -> dict[str, Any]:
    return {
        "name": "given",
        "data": {"name": "synthetic", "rows": 100, "features": 5, "test_fraction": 0.2},
        "partition": {"name": "iid", "num_partitions": 2},
        "problem": "logistic_regression",
        "algorithm": algorithm,
        "privacy": {"epsilon": 1.0, "delta": 1e-5, **privacy},
    }


SECTION = {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 0.1, "clip_norm": 2.0}
OTHER = {"name": "local_sgd", "num_rounds": 9, "local_steps": 2, "step_size": 1.0, "clip_norm": 7.0}
STATED = {"epsilon": "unlimited", "calibration": "theorem", "claimed_epsilon": 0.5}


def given(algorithm: Any, section: dict[str, Any], **privacy: Any) -> Resolved:
    scenario = parse(tree(section, **privacy))
    return resolve(scenario.model_copy(update={"algorithm": GivenAlgorithm.of(algorithm)}))


def test_it_runs_instead_of_the_sections() -> None:
    resolved = given(OneStep(0.5), SECTION)
    assert resolved.algorithm == OneStep(0.5)
    assert len(resolved.trace.plan.rounds) == 1


def test_the_sections_numbers_count_for_nothing() -> None:
    section = {"name": "prox_sgd", "parameters": "theorem"}  # without the constants that it would need
    resolved = given(NoisyMinibatchSGD(3, 0.1, 2.0), section)
    assert resolved.derived is None
    assert resolved.symbols.L == 2.0  # its clip


def test_the_theorem_of_a_shipped_one_states_its_noise() -> None:
    by_name = resolve(parse(tree(SECTION, **STATED)))
    assert given(NoisyMinibatchSGD(3, 0.1, 2.0), OTHER, **STATED).prescribed == by_name.prescribed


def test_a_shipped_one_gets_the_theorems_ratio_of_its_two_noises() -> None:
    numbers = {"num_rounds": 6, "period": 3, "step_size": 0.1, "clip_norm": 2.0}
    by_name = resolve(parse(tree({"name": "prox_spider", **numbers}, **STATED)))
    resolved = given(ProxSPIDER(**numbers), OTHER, **STATED)  # type: ignore[arg-type]
    assert resolved.algorithm == by_name.algorithm
    assert by_name.algorithm.difference_noise_ratio != 1  # type: ignore[attr-defined]
    assert resolved.trace == by_name.trace


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a class": (OneStep, {}, r"algorithm: .*is a class"),
    "anything": (object(), {}, r"algorithm: .*object.*with methods server and silo"),
    "no theorem": (OneStep(1.0), STATED, r"privacy\.calibration: 'theorem': no theorem speaks of .*OneStep"),
    "another of a shipped one's name": (
        type("prox_sgd", (OneStep,), {})(1.0),
        STATED,
        r"privacy\.calibration: 'theorem': no theorem speaks of .*\.prox_sgd, only",
    ),
    "no clip": (
        OneStep(1.0),
        {"epsilon": "unlimited", "calibration": "sigma", "sigma": 1.0},
        r"privacy\.sigma: 1\.0: OneStep has no clip_norm; use noise_multiplier",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named(case: str) -> None:
    algorithm, privacy, expected = BAD[case]
    with pytest.raises(InputError, match=expected):
        given(algorithm, SECTION, **privacy)
