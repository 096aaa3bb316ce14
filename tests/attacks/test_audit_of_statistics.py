"""Every statistic's worst pair of records: the audit attains most of what it claims, and no more."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.scenarios import once

import fedsim
from fedsim.privacy.exponential import epsilon_of
from fedsim.privacy.gaussian import epsilon as epsilon_of_mu
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Query, Round
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Plan, QueryShape, Terms
from fedsim.protocol.statistics import statistic
from fedsim.simulation.host import MemoryLedger
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out

EPSILON = 2.0


@dataclass(frozen=True)
class AskOnce:
    """One query, at w and, of two models, at -w / 2; the model that it returns is noise."""

    statistic: str
    options: tuple[float, ...] = ()
    clip: float = 1.0
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def server(self, w: Any, problem: Any, public: Any, rng: Any) -> Any:
        answer = (yield Round({"w": w}, answer=w))["g"]
        drawn = torch.as_tensor(rng.standard_normal((*answer.shape[:-1], len(w)))).to(w.dtype)
        return w + answer.sum(-1, keepdim=True) * drawn

    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        points = tuple(broadcast["w"] * (-0.5) ** k for k in range(statistic(self.statistic).points))
        if self.statistic == "longer":
            points = points[0], torch.full_like(points[0][..., :1], 0.25)
        return {"g": ask(Query(self.statistic, points, self.clip, options=self.options))}


CASES = {
    "second_moment": ((1.0,), 2.0),
    "sum": ((0.0, -1.0, 1.0), 1.0),
    "capped_sum": ((0.0, 0.0, 1.0, 1.0), 1.0),
    "presence": ((0.0, 0.0, 2.0), 1.0),
    "histogram": ((1.0, 0.0, -1.0, -0.5, 0.0, 0.5, 1.0), 1.0),
    "score_histogram": ((10.0,), 1.0),
    "mistakes": ((), 1.0),
    "longer": ((), 1.0),
    "log_loss": ((0.01,), 1.0),
    "minimiser": ((0.5, 40.0, 2.0), 0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_worst_pair_attains_most_of_the_epsilon(name):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (120, 3))
    y = (x[:, 0] + 0.3 * rng.standard_normal(120) > 0).astype(int)
    scenario = once(seed=1, partition={"name": "iid", "num_partitions": 2}, privacy={"epsilon": EPSILON})
    found = fedsim.audit(scenario, algorithm=AskOnce(name, *CASES[name]), data=fedsim.Arrays(x, y))
    assert not found.broken
    for row in found.silos:
        assert row["sensitivity_ratio"] <= 1 + 1e-6
        assert row["noise_ratio"] == pytest.approx(1, abs=0.1)
    assert 0.7 * EPSILON <= max(row["attained"] for row in found.silos) <= EPSILON


@pytest.mark.slow
def test_a_run_that_finds_its_clip_attains_its_epsilon_and_no_more():
    clip = {"quantile": 0.75, "rounds": 6, "share": 0.3}
    scenario = once(
        seed=3,
        data={"link": "linear", "rows": 600},
        problem="linear_regression",
        algorithm={"num_rounds": 12, "step_size": 0.3, "clip_norm": clip},
        privacy={"epsilon": [1, 3, 8]},
    )
    found = fedsim.audit(scenario)
    assert not found.broken
    for row, epsilon in zip(found.silos, (1, 3, 8), strict=True):
        assert row["sensitivity_ratio"] <= 1 + 1e-6
        assert 0.7 * epsilon <= row["attained"] <= epsilon


DRAWS, DELTA = 30_000, 1e-5


def drawn(name: str, options: tuple[float, ...], data: Any, clip: float) -> tuple[np.ndarray, float]:
    """How often many silos with the same records choose each index, and the epsilon that each claims."""
    problem = LogisticRegression(1)
    known = statistic(name)
    plan = Plan(((Ask(FULL, (QueryShape(name, known.points, 1.0, options),)),),))
    terms = [Terms(f"s{i}", len(data[1]), EPSILON, DELTA, [0]) for i in range(DRAWS)]
    names = [own.name for own in terms]
    gate = Served(
        Gate(
            lay_out([data] * DRAWS, problem, torch.float64),
            problem,
            plan,
            terms,
            GAUSSIAN,
            SeededEntropy(7, 0, names, [name] * DRAWS),
            [MemoryLedger() for _ in names],
            LIMITS,
            torch.float64,
        ),
        AskOnce(name, options, clip),
    )
    answers = gate.answer(0, {"w": torch.tensor([50.0], dtype=torch.float64)})["g"]
    z = gate.admitted[0].noise_multiplier
    return np.bincount(answers.flatten().long().numpy(), minlength=2) / DRAWS, 1 / z


PAIRS = {  # the first record differs: it moves the scores of the first and the last by 1 each, oppositely
    "quantile": (
        (0.0, 0.5, -1.0, 0.4, 0.6, 3.0),
        [[0.0], [0.5], [0.5]],
        [0, 0, 0],
        [[2.0], [0.5], [0.5]],
        [0, 0, 0],
    ),
    "choice": ((), [[1.0]], [1], [[1.0]], [0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_the_exponential_mechanism_attains_its_price_and_no_more(name):
    options, x, y, other_x, other_y = PAIRS[name]
    odds, error = [], 0.0
    for world in ((x, y), (other_x, other_y)):
        share, mu = drawn(name, options, tuple(map(np.array, world)), 25.0 if name == "choice" else 1.0)
        odds.append(math.log(share[0] / share[-1]))
        error += 5 * math.sqrt((1 / share[0] + 1 / share[-1]) / DRAWS)
    allowed = float(epsilon_of(mu))
    assert abs(odds[0] - odds[1]) == pytest.approx(allowed, abs=error)
    assert error < allowed / 5
    assert float(epsilon_of_mu(mu, DELTA)) == pytest.approx(EPSILON, rel=1e-6)
