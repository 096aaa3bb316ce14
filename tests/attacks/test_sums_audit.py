"""The audit of secure aggregation: each party attains at most its claim, and broken copies are caught.

Alarm rate and power as in `test_faults`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.audit_settings import power, setting_of
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.privacy import gaussian
from fedsim.privacy.summed_gaussian import SummedGaussian
from fedsim.protocol.pool import Share
from fedsim.report.audit import AuditPart, audit_figure, audit_table
from fedsim.scenario.resolve import Resolved
from fedsim.testing.attacks import cohorts, estimate, noise, parties, probes, sensitivity, servers
from fedsim.testing.attacks.audit import ALARM, attack
from fedsim.testing.attacks.neighbours import neighbours
from fedsim.testing.attacks.parties import Party
from fedsim.testing.attacks.search import Attack
from fedsim.testing.attacks.setting import Setting
from silos.vault.gate import Gate

LOOSE, STRICT = 2, 0
"""The silo that the attack is made for, which has the whole clip, and one that has a quarter of it."""
SUMS: dict[str, Any] = {"mechanism": "summed_gaussian", "honest_fraction": 0.6}
UNEQUAL = {"name": "size", "partition_sizes": [12, 16, 32]}
SVRG = {"name": "prox_svrg", "epochs": 2, "inner_steps": 2, "difference_clip": 2.0}
WHO: list[dict[str, Any]] = [SUMS, {"mechanism": "summed_gaussian", "noise_by": "aggregators"}]


def _claim(setting: Setting, silo: int) -> estimate.Claim:
    admitted = setting.admitted[silo]
    return estimate.Claim(
        setting.census(silo), admitted.terms.n, admitted.epsilon_guaranteed, admitted.terms.delta
    )


def _above(setting: Setting, silo: int, chosen: Attack, party: Party, runs: int) -> float | None:
    """What runs prove beyond the claim against a party."""
    own = setting.read_by(party)
    return estimate.violated([servers.malicious(own, silo, chosen, runs)], _claim(own, silo), ALARM)


# Sums that keep their promise.


RIGHT: dict[str, dict[str, Any]] = {
    "full": {"privacy": SUMS, "partition": UNEQUAL},
    "subsample": {"algorithm": {"batch": {"sampler": "subsample", "fraction": 0.25}}},
    "poisson": {"algorithm": {"batch": {"sampler": "poisson", "fraction": 0.25}}},
    "prox_svrg": {"algorithm": SVRG | {"step_size": 0.5, "clip_norm": 1.0}},
    "shuffled_binomial": {"privacy": SUMS | {"mechanism": "shuffled_binomial"}},
    "shuffled_gaussian": {"privacy": SUMS | {"mechanism": "shuffled_gaussian"}},
    "noise by aggregators": {"privacy": WHO[1], "partition": {"name": "iid", "num_partitions": 3}},
}


@pytest.mark.parametrize(
    "name", [name if name == "full" else pytest.param(name, marks=pytest.mark.slow) for name in RIGHT]
)
def test_right_sums_are_not_flagged(attacked, name):
    setting, chosen = attacked(**({"privacy": SUMS, "partition": UNEQUAL} | RIGHT[name]))
    parties = setting.parties
    if name == "noise by aggregators":
        assert setting.read_by("both").admitted[LOOSE].epsilon_guaranteed == math.inf  # nothing is claimed
        parties = ("server", "shuffler")
    _assert_sound(setting, chosen, parties)


def _assert_sound(setting: Setting, chosen: Attack, parties: Sequence[Party]) -> None:
    for silo in (LOOSE, STRICT):
        found = sensitivity.search(setting, silo, chosen, 2, 20)
        assert 0.9 < found.sensitivity <= 1 + sensitivity.TOLERANCE
        assert found.cross <= sensitivity.TOLERANCE
        assert noise.measure(setting, silo, chosen, ALARM).faults == ()
    assert not list(probes.probe(setting, LOOSE, chosen))
    for party in parties:
        assert _above(setting, LOOSE, chosen, party, 300) is None


ONE_EACH = {
    "data": {"name": "synthetic", "rows": 160, "features": 3, "test_fraction": 0.5},
    "partition": {"name": "iid", "num_partitions": 80},
    "algorithm": {"num_rounds": 1},
}


@pytest.mark.slow
def test_messages_without_names_attain_less_than_is_claimed(attacked):
    """Where each silo is a record; the same messages with names attain more than that."""
    privacy = {"mechanism": "shuffled_gaussian", "honest_fraction": 1.0, "epsilon": 0.5}
    setting, chosen = attacked(privacy=privacy, **ONE_EACH)
    claim, named = _claim(setting, LOOSE), setting.read_by("both")
    assert setting.together == 80
    assert named.admitted[LOOSE].epsilon_guaranteed > 2 * claim.epsilon
    found = estimate.bounds(*servers.malicious(setting, LOOSE, chosen, 250), claim)
    assert max(found.assumption_free, found.mean_difference) <= claim.epsilon
    told = estimate.bounds(*servers.malicious(named, LOOSE, chosen, 250), claim)
    assert told.mean_difference > claim.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("party", ["server", "both"])
def test_each_party_attains_its_claim(attacked, party):
    """Scores have the claim's own mu: within five standard errors, and 2 % for rounding and whole silos.

    ceil(gamma M_min) = gamma M_min here, so that the noise is what is priced, to a relative 2e-4.
    """
    setting, chosen = attacked(privacy=SUMS | {"honest_fraction": 1.0})
    setting = setting.read_by(party)
    first, second = servers.malicious(setting, LOOSE, chosen, 4000)
    admitted = setting.admitted[LOOSE]
    mu = float(gaussian.mu(admitted.epsilon_guaranteed, admitted.terms.delta))
    spread = math.hypot(first.std(), second.std()) / math.sqrt(2)
    assert (second.mean() - first.mean()) / spread == pytest.approx(mu, abs=5 * math.sqrt(2 / 4000) + 1e-3)


def test_one_aggregator_alone_cannot_tell_worlds_apart_by_any_word(attacked):
    """Kolmogorov and Smirnov on its words along the record's own direction; alarm 1e-6."""
    setting, chosen = attacked(privacy=SUMS)
    own = setting.read_by("shuffler")
    first, second = servers.malicious(own, LOOSE, chosen, 300)
    assert stats.ks_2samp(first, second).pvalue > 1e-6
    told, other = servers.malicious(setting.read_by("both"), LOOSE, chosen, 300)
    assert stats.ks_2samp(told, other).pvalue < 1e-12  # what the same runs tell of the contributions


# Broken copies.


def _break_gate(monkeypatch: pytest.MonkeyPatch, kind: type[Gate]) -> None:
    monkeypatch.setattr(cohorts, "Gate", kind)


def _halved(real: Callable[..., float]) -> Callable[..., float]:
    return lambda *given: real(*given) / 2


def test_half_of_the_noise_is_found_by_the_noise_and_by_runs(attacked, monkeypatch):
    setting, chosen = attacked(privacy=SUMS | {"honest_fraction": 1.0})
    claim = _claim(setting, LOOSE)
    assert power(float(gaussian.mu(claim.epsilon, claim.delta)), 1000, ALARM) > 1 - 1e-6
    monkeypatch.setattr(SummedGaussian, "_scale", _halved(SummedGaussian._scale))
    measured = noise.measure(setting, LOOSE, chosen, ALARM)
    assert measured.ratio == pytest.approx(0.5, rel=0.1)
    assert any("times the noise that is stated" in fault for fault in measured.faults)
    assert _above(setting, LOOSE, chosen, "both", 1000) is not None


def test_a_forgotten_honest_fraction_is_found(attacked, monkeypatch):
    """Two of three silos add a third each of the variance, and not a half: power above 1 - 1e-9."""
    setting, chosen = attacked(privacy=SUMS)
    numbers = 4 * noise.clones_of(setting, LOOSE) * setting.resolved.problem.dimension
    least = stats.chi2.ppf(ALARM / 10 / 2, numbers)
    assert stats.chi2.sf(least * 1.5, numbers) < 1e-9
    assert noise.measure(setting, LOOSE, chosen, ALARM).faults == ()
    monkeypatch.setattr(SummedGaussian, "sharers", property(lambda self: self.pool_min))
    measured = noise.measure(setting, LOOSE, chosen, ALARM)
    assert measured.ratio == pytest.approx(math.sqrt(2 / 3), rel=0.05)
    assert any("times the noise that is stated" in fault for fault in measured.faults)


def test_an_aggregator_with_half_of_its_noise_is_found(attacked, monkeypatch):
    setting, chosen = attacked(privacy=WHO[1])
    monkeypatch.setattr(SummedGaussian, "_scale", _halved(SummedGaussian._scale))
    assert noise.measure(setting, LOOSE, chosen, ALARM).faults


class _WholeClip(Gate):
    """Forgets that a stricter silo's terms are shortened."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        releases = self.releases
        releases.shares = [replace(share, clip=1.0) for share in releases.shares]


class _Twice(Share):
    def weight(self, batch: Any) -> float:
        return 2 * super().weight(batch)


class _Heavy(Gate):
    """Weighs every silo twice."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        releases = self.releases
        releases.shares = [_Twice(own.pool, own.position, own.clip) for own in releases.shares]


def test_a_clip_that_is_not_shortened_is_found(attacked, monkeypatch):
    setting, chosen = attacked(privacy=SUMS)
    share = setting.admitted[STRICT].terms.share
    assert share is not None
    assert share.clip < 0.5
    _break_gate(monkeypatch, _WholeClip)
    found = sensitivity.search(setting, STRICT, chosen, 2, 20)
    assert found.sensitivity == pytest.approx(1 / share.clip, rel=1e-3)
    assert sensitivity.search(setting, LOOSE, chosen, 2, 20).sensitivity <= 1 + sensitivity.TOLERANCE


def test_a_weight_above_one_is_found(attacked, monkeypatch):
    setting, chosen = attacked(privacy=SUMS, partition=UNEQUAL)
    _break_gate(monkeypatch, _Heavy)
    assert sensitivity.search(setting, LOOSE, chosen, 2, 20).sensitivity == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("bits", [0, 16])
def test_shares_that_are_not_uniform_are_found(attacked, monkeypatch, bits):
    """The second aggregator's claim is 0: at a true epsilon near 6, 500 runs tell with power 1 - 1e-9."""
    setting, chosen = attacked(privacy=SUMS)

    def split(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mask = np.random.default_rng(0).integers(0, 2**bits, counts.shape)
        return mask, counts - mask

    monkeypatch.setattr(parties, "split", split)
    assert (_above(setting, LOOSE, chosen, "shuffler", 500) or 0.0) > 0.1


# The whole audit.


@pytest.fixture(scope="module")
def audited():
    return attack(_resolved(), 0.01).tree()


def _resolved() -> Resolved:
    return setting_of(privacy=SUMS).resolved


def test_the_audit_has_a_row_for_each_party(audited):
    assert not audited["broken"]
    part = AuditPart.model_validate(audited)
    assert part.sums
    table = audit_table(part)
    assert [row[1] for row in table.rows[:3]] == ["server", "shuffler", "both together"]
    assert [row[2] for row in table.rows[:3]] == ["1", "0", table.rows[2][2]]
    assert float(table.rows[2][2]) > 1.0
    for silo in audited["silos"]:
        assert silo["both"]["claimed"] > silo["worst_server"]["claimed"] > silo["shuffler"]["claimed"] == 0
        assert "honest_server" not in silo
    assert audit_figure(part).axes


def test_a_broken_claim_says_what_was_proven(monkeypatch):
    monkeypatch.setattr(SummedGaussian, "_scale", _halved(SummedGaussian._scale))
    found = attack(_resolved(), 0.01)
    assert found.broken
    assert all(any("noise that is stated" in line for line in silo.findings) for silo in found.silos)


def test_daemons_are_not_audited_by_sums():
    with pytest.raises(InputError, match="leave --daemons out"):
        neighbours(setting_of(privacy=SUMS), LOOSE)


def test_what_is_read_is_the_mean_that_contributions_are_worth(attacked):
    """Without noise, to a step of the grid: the same as a gate of the silo's own answers says."""
    summed, _ = attacked(privacy=SUMS | {"epsilon": 1.0}, partition=UNEQUAL)
    alone, _ = attacked(privacy={"epsilon": 1.0}, partition=UNEQUAL)
    point = summed.kinds[0].seen[-1]
    assert (_heard(summed, point) - _heard(alone, point)).abs().max() < 1e-5


def _heard(setting: Setting, point: Any) -> Tensor:
    tap = cohorts.Tap()
    gate = setting.gate(tap, range(len(setting.data)), setting.data, ["x"] * 3, noisy=False)
    gate.answer(0, point)
    return torch.cat([answer for heard in tap.take() for answer in heard.answers])
