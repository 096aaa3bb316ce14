"""Small scenarios to attack."""

from typing import Any

import pytest
from scipy import stats
from support.scenarios import BASE, changed, over

import fedsim
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.testing.attacks import estimate, noise, probes, sensitivity, servers
from fedsim.testing.attacks.audit import ALARM
from fedsim.testing.attacks.search import Attack
from fedsim.testing.attacks.setting import Setting, prepare

SMALL = changed(
    BASE,
    {"data.rows": 60, "algorithm.step_size": 1.0, "privacy": {"epsilon": [1.0, 2.0, 4.0], "delta": 1e-3}},
)


def setting_of(**changes: Any) -> Setting:
    """SMALL with whole sections replaced, and numbers of the algorithm changed by `algorithm`."""
    return prepare(resolve(parse(over(SMALL, **changes))))


def power(mu: float, runs: int, alarm: float) -> float:
    """P(runs prove a claim of mu broken where 2 mu is true), from below: both rates within six deviations.

    Errors in each world are binomial with p = Phi(-mu). With the bound of Clopper and Pearson at the largest
    likely count in both, Gaussian differential privacy gives mu' = -2 Phi^-1(rate); enough if mu' > mu.
    """
    p = stats.norm.cdf(-mu)
    likely = int(stats.binom.isf(2e-7, runs, p))
    bound = stats.beta.ppf(1 - alarm / 2, likely + 1, runs - likely)
    return 1 - 4e-7 if -2 * stats.norm.ppf(bound) > 1.02 * mu else 0.0


def assert_sound(
    setting: Setting,
    chosen: Attack,
    silo: int = 1,
    runs: int = 300,
    least: float = 0.99,
    effort: tuple[int, int] = (3, 25),
) -> noise.Measured:
    """No check flags the silo's gate: a record moves an answer as far as is stated, `least` of it or more."""
    found = sensitivity.search(setting, silo, chosen, *effort)
    assert least <= found.sensitivity <= 1 + sensitivity.TOLERANCE
    assert found.cross <= sensitivity.TOLERANCE
    assert not list(probes.probe(setting, silo, chosen))
    measured = noise.measure(setting, silo, chosen, ALARM)
    assert measured.faults == ()
    samples = servers.malicious(setting, silo, chosen, runs)
    assert estimate.violated([samples], estimate.claim_of(setting, silo), ALARM) is None
    return measured


def assert_sums_not_flagged(tree: dict[str, Any], data: Any) -> None:
    """Audit a scenario's sums under secure aggregation: sensitivity and noise are those that are priced."""
    tree["privacy"] |= {"mechanism": "summed_gaussian", "honest_fraction": 1.0}
    found = fedsim.audit(tree, data=data, effort=0.03)
    assert not found.broken
    for row in found.tree["silos"]:
        assert row["sensitivity_ratio"] == pytest.approx(1.0, abs=1e-3)
        assert row["noise_ratio"] == pytest.approx(1.0, abs=0.05)
