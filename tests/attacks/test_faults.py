"""Broken copies of a gate are caught, and a right one is not: the audit's own test.

What is stated is the alarm rate (a right gate is called broken with a probability of at most ALARM) and the
power: the probability that a fault is found, computed below where chance has a part in it and 1 elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from scipy import stats
from support.audit_settings import assert_sound, power
from torch import Tensor

import silos.vault.entropy
import silos.vault.releases
from fedsim.privacy import gaussian
from fedsim.protocol.contract import Algorithm, Asker, Query
from fedsim.protocol.plan import Plan, Terms
from fedsim.simulation.host import MemoryLedger
from fedsim.simulation.side_by_side import SideBySide
from fedsim.testing.attacks import cohorts, estimate, noise, probes, sensitivity, servers
from fedsim.testing.attacks.audit import ALARM
from fedsim.testing.attacks.setting import Setting
from silos.front.served import Served
from silos.vault.gate import Gate, OpenRound
from silos.vault.records import Records, clipped_sum

SILO, TESTS = 2, 10  # of the noise
SAMPLERS: list[Any] = [
    "full",
    {"sampler": "part", "start": 0.25, "stop": 0.5},
    *({"sampler": name, "fraction": 0.25} for name in ("fresh", "subsample", "poisson", "with_replacement")),
]
ALGORITHMS: dict[str, dict[str, Any]] = {
    "local_sgd": {"num_rounds": 2, "local_steps": 2, "step_size": 0.5, "clip_norm": 1.0},
    "prox_svrg": {
        "epochs": 2,
        "inner_steps": 2,
        "step_size": 0.5,
        "clip_norm": 1.0,
        "difference_clip": 2.0,
    },
    "prox_spider": {"num_rounds": 4, "period": 2, "step_size": 0.5, "clip_norm": 1.0, "smoothness": 1.0},
    "spider_alternate": {"num_rounds": 3, "step_size": 0.5, "clip_norm": 1.0},
    "falling noise": {
        "name": "noisy_minibatch_sgd",
        "num_rounds": 4,
        "step_size": 0.5,
        "clip_norm": 1.0,
        "last_iterate": True,
        "noise_decay": 0.4,
    },
}


def _id(batch: Any) -> str:
    return batch if isinstance(batch, str) else batch["sampler"]


# A gate that keeps its promise.


@pytest.mark.parametrize("batch", SAMPLERS, ids=_id)
def test_a_right_gate_is_not_flagged_whatever_the_sampler(attacked, batch):
    setting, chosen = attacked(algorithm={"batch": batch})
    _assert_sound(setting, chosen)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_right_gate_is_not_flagged_whatever_the_algorithm(attacked, name):
    setting, chosen = attacked(algorithm={"name": name, **ALGORITHMS[name]})
    _assert_sound(setting, chosen)
    assert min(chosen.ratios) > 0.99  # and the worst points are found: nearly all that a clip allows


def _assert_sound(setting: Setting, chosen: Any) -> None:
    measured = assert_sound(setting, chosen, SILO, 400, least=0.9)
    assert measured.ratio == pytest.approx(1.0, abs=5 / math.sqrt(2 * 1024 * 3 * 4))


@pytest.mark.slow
def test_a_full_batch_attains_its_claim(attacked):
    """The malicious server's scores have the plan's mu: within five standard errors, so 1e-6 by chance."""
    setting, chosen = attacked()
    first, second = servers.malicious(setting, SILO, chosen, 4000)
    admitted = setting.admitted[SILO]
    mu = float(gaussian.mu(admitted.epsilon_guaranteed, admitted.terms.delta))
    spread = math.hypot(first.std(), second.std()) / math.sqrt(2)
    assert (second.mean() - first.mean()) / spread == pytest.approx(mu, abs=5 * math.sqrt(2 / 4000))
    assert spread == pytest.approx(mu, rel=5 / math.sqrt(2 * 8000))


# Broken copies. Each is the real gate, with one thing changed.


class _Half(Gate):
    """Adds half of the noise that it states."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        terms: Sequence[Terms] = parts[3]
        quiet = [replace(each, noise_multiplier=(each.noise_multiplier or 0.0) / 2) for each in terms]
        super().__init__(*parts[:3], quiet, *parts[4:], **named)


@dataclass(frozen=True)
class _Between:
    """A silo method that asks otherwise than it says."""

    inner: Algorithm
    clip: float = 1.0
    asks: int = 0
    linear: ClassVar[bool] = False

    def server(self, *parts: Any) -> Any:
        raise NotImplementedError

    def silo(self, problem: Any, broadcast: Mapping[str, Tensor], ask: Asker, memory: Any) -> Any:
        made: list[tuple[Query, ...]] = []

        def asked(*queries: Query) -> Any:
            made.append(tuple(replace(query, clip=query.clip * self.clip) for query in queries))
            return ask(*made[-1])

        message = self.inner.silo(problem, broadcast, cast(Asker, asked), memory)
        while len(made) < self.asks:
            asked(*made[-1])
        return message


class _Wide(Served):
    """Clips at twice the bound; with `_Half`, the noise is that of the bound."""

    def __init__(self, gate: Gate, algorithm: Algorithm) -> None:
        super().__init__(gate, _Between(algorithm, clip=2.0))


class _Generous(Gate):
    """Answers one query more than the plan has."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        plan: Plan = parts[2]
        longer = Plan(tuple((*asks, asks[-1]) for asks in plan.rounds))
        super().__init__(*parts[:2], longer, *parts[3:], **named)


class _Twice(Served):
    """Asks for all that such a gate answers."""

    def __init__(self, gate: Gate, algorithm: Algorithm) -> None:
        super().__init__(gate, _Between(algorithm, asks=len(gate.plan.rounds[0])))


def _break(monkeypatch: pytest.MonkeyPatch, kind: type[Gate], driver: type[Served] = Served) -> None:
    monkeypatch.setattr(cohorts, "Gate", kind)
    monkeypatch.setattr(cohorts, "Served", driver)


def test_half_of_the_noise_is_seen_in_the_noise(attacked, monkeypatch):
    """Power: N = 4,096 numbers an answer; half the noise exceeds the chi-square bound with P < 1e-30."""
    setting, chosen = attacked()
    numbers, answers = noise.clones_of(setting, SILO) * setting.resolved.problem.dimension, 4
    assert numbers == 4096
    least = stats.chi2.ppf(ALARM / TESTS / 2 / answers, numbers)
    assert stats.chi2.sf(least / 0.25, numbers) < 1e-30
    _break(monkeypatch, _Half)
    measured = noise.measure(setting, SILO, chosen, ALARM)
    assert measured.ratio == pytest.approx(0.5, rel=0.1)
    assert any("times the noise that is stated" in fault for fault in measured.faults)


@pytest.mark.parametrize("driver", [Served, _Wide], ids=["noise halved", "clip doubled"])
def test_runs_alone_prove_a_claim_broken(attacked, monkeypatch, driver):
    """With 1,000 runs a world, at a true mu of twice the claimed one; power above 1 - 1e-6."""
    setting, chosen = attacked()
    claim, runs = estimate.claim_of(setting, SILO), 1000
    assert power(float(gaussian.mu(claim.epsilon, claim.delta)), runs, ALARM) > 1 - 1e-6
    _break(monkeypatch, _Half, driver)
    above = estimate.violated([servers.malicious(setting, SILO, chosen, runs)], claim, ALARM)
    assert above is not None
    assert above > claim.epsilon


def test_a_clip_that_is_doubled_is_found_by_the_exact_search(attacked, monkeypatch):
    setting, chosen = attacked()
    _break(monkeypatch, _Half, _Wide)
    assert sensitivity.search(setting, SILO, chosen, 2, 20).sensitivity == pytest.approx(2.0)


class _Forgetful(Gate):
    """Answers a round as often as it is asked to."""

    def asked(self, round_index: int, broadcast: Any, members: Any = None) -> OpenRound:
        self._ledgers = [MemoryLedger() for _ in self._ledgers]
        return super().asked(round_index, broadcast, members)


@pytest.mark.parametrize(
    ("kind", "driver", "finding"),
    [
        (_Generous, _Twice, "round 0: a query more than the plan has was answered"),
        (_Forgetful, Served, "round 0: a second broadcast was answered"),
    ],
)
def test_an_answer_outside_the_plan_is_found(attacked, monkeypatch, kind, driver, finding):
    setting, chosen = attacked()
    _break(monkeypatch, kind, driver)
    assert finding in probes.probe(setting, SILO, chosen)


def _mixing(problem: Any, block: Any, points: Any, clip: Any) -> Tensor:
    """Every term depends on the smallest feature of the whole block, as with `x - x.amin()` in a module."""
    total = _HONEST(problem, block, points, clip)
    return total * (1 + block.features.amin().abs().clamp(max=1.0))


_HONEST = clipped_sum


def _raising(problem: Any, block: Any, points: Any, clip: Any) -> Tensor:
    if bool((block.features.abs() > 1e4).any()):
        raise ValueError("too large")
    return _HONEST(problem, block, points, clip)


@pytest.mark.parametrize("function", [_mixing, _raising])
def test_a_sum_in_which_a_record_reaches_others_is_found(attacked, monkeypatch, function):
    """Within a silo and across, also with features in the range [-1, 1] alone, where the mixing is capped."""
    setting, chosen = attacked()
    for records in (Records, SideBySide):
        monkeypatch.setattr(records, "clipped_sum", staticmethod(function))
    found = sensitivity.search(setting, SILO, chosen, 3, 25)
    if function is _mixing:
        assert 1.1 < found.sensitivity < math.inf
        assert found.cross > 0.01
    else:
        assert found.sensitivity == math.inf
        assert "answer in one world and not in the other" in found.where["sensitivity"]


class _Repeated(silos.vault.entropy.Noise):
    """Round 1 has the noise of round 0."""

    def round(self, members: Sequence[int], round_index: int) -> Any:
        return super().round(members, 0 if round_index == 1 else round_index)


def test_noise_that_is_used_twice_is_found(attacked, monkeypatch):
    """Power 1: the correlation is 1, and chance stays below 0.11 but at rate ALARM."""
    setting, chosen = attacked()
    assert stats.beta.isf(ALARM / TESTS / 6, 0.5, 4095 / 2) < 0.11**2
    monkeypatch.setattr(silos.vault.releases, "Noise", _Repeated)
    measured = noise.measure(setting, SILO, chosen, ALARM)
    assert measured.repeated == pytest.approx(1.0)
    assert any("correlation" in fault for fault in measured.faults)


class _Missing(silos.vault.entropy.Noise):
    """Round 2 has none."""

    def round(self, members: Sequence[int], round_index: int) -> Any:
        drawn = super().round(members, round_index)
        if round_index == 2:
            drawn._drawn = np.zeros_like(drawn._drawn)
        return drawn


def test_noise_that_is_missing_in_one_round_is_found(attacked, monkeypatch):
    setting, chosen = attacked()
    monkeypatch.setattr(silos.vault.releases, "Noise", _Missing)
    measured = noise.measure(setting, SILO, chosen, ALARM)
    assert any(fault.startswith("answer 2 has 0 times") for fault in measured.faults)


def test_noise_that_two_silos_share_is_found(attacked, monkeypatch):
    setting, chosen = attacked(data={"name": "synthetic", "rows": 60, "features": 40})
    real = cohorts.randomness
    monkeypatch.setattr(cohorts, "randomness", lambda seed, names: real(seed, ["same"] * len(names)))
    assert any("correlation" in fault for fault in noise.measure(setting, SILO, chosen, ALARM).faults)


def test_an_accountant_that_promises_too_much_is_found_by_runs(attacked):
    """The noise is as stated; what it is said to cost is half of what it does."""
    setting, chosen = attacked()
    claim = replace(estimate.claim_of(setting, SILO), epsilon=estimate.claim_of(setting, SILO).epsilon / 2)
    assert estimate.violated([servers.malicious(setting, SILO, chosen, 2500)], claim, ALARM) is not None


def test_runs_on_falling_noise_keep_to_the_claim_and_show_half_of_it_false(attacked):
    """The last round alone has most of what is paid: mu^2 adds over rounds whatever their order."""
    setting, chosen = attacked(algorithm=ALGORITHMS["falling noise"])
    samples = [servers.malicious(setting, SILO, chosen, 2500)]
    claim = estimate.claim_of(setting, SILO)
    assert estimate.violated(samples, claim, ALARM) is None
    assert estimate.violated(samples, replace(claim, epsilon=claim.epsilon / 2), ALARM) is not None


def test_members_draw_alike_only_where_they_are_told_to():
    entropy = cohorts.randomness(0, ["a", "a", "b"])
    drawn = [stream.standard_normal() for stream in entropy.streams(range(3), 0, 0)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert torch.tensor(drawn).isfinite().all()
