"""Fair runs are attacked by records that differ in features, label and group, and by groups alone."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from support.audit_settings import assert_sound, assert_sums_not_flagged
from support.refusals import refused

import fedsim
import silos.vault.terms
from fedsim.api.given import one_run, resolved_of
from fedsim.common.errors import InputError
from fedsim.privacy import attribute
from fedsim.protocol.plan import Plan
from fedsim.protocol.rows import Rows
from fedsim.testing.attacks import estimate, noise, sensitivity, servers
from fedsim.testing.attacks.audit import ALARM
from fedsim.testing.attacks.search import _hear, search
from fedsim.testing.attacks.setting import prepare

SILO, CLIP, DELTA = 1, 1.5, 1e-3
ONE = {"demographic_parity": 0.05, "equalized_odds": 0.02}  # weights of the penalty, by notion


def people(classes=2, groups="ab", seed=0):
    """Records of two silos; one in ten has no group."""
    rng = np.random.default_rng(seed)
    x, group = (
        rng.uniform(-1, 1, (120, 3)),
        rng.choice([*groups, ""], 120, p=[*[0.9 / len(groups)] * len(groups), 0.1]),
    )
    y = np.digitize(x[:, 0] + 0.3 * rng.standard_normal(120), np.linspace(-1, 1, classes + 1)[1:-1])
    return fedsim.Arrays(x, y, np.arange(120) % 2, group=group, ranges=(-1.0, 1.0))


def fair(notion="demographic_parity", weight=1.0, mechanism="gaussian", problem=None, epsilon=2.0, **numbers):
    fairness = {"notion": notion, "weight": weight}
    return {
        "name": "fair",
        "seed": 1,
        "problem": {"name": "logistic_regression", "silo_weights": "size", "fairness": fairness}
        | (problem or {}),
        "algorithm": {
            "name": "fair_minibatch_sgd",
            "num_rounds": 3,
            "step_size": 1.0,
            "clip_norm": CLIP,
            **numbers,
        },
        "privacy": {"epsilon": epsilon, "delta": DELTA, "mechanism": mechanism},
    }


def set_up(tree, alone=False, data=None):
    setting = prepare(resolved_of(one_run(tree, {}), None, data or people()))
    setting = setting.by_groups() if alone else setting
    return setting, search(setting, SILO)


@cache
def attacked(notion="demographic_parity", weight=1.0, mechanism="gaussian", alone=False):
    return set_up(fair(notion, weight, mechanism), alone)


def moved(setting, chosen):
    """How far the chosen pair moves the sum of each statistic."""
    kind = setting.kinds[0]
    ((_, (heard,)),) = _hear(setting, SILO, kind, chosen.broadcasts, [chosen.first, chosen.second], 0)
    apart = [float(torch.linalg.vector_norm(answer[0] - answer[1])) for answer in heard.answers]
    return dict(zip([query.statistic for query in heard.queries], apart, strict=True))


@pytest.mark.parametrize("notion", ONE)
def test_one_pair_moves_both_statistics_as_far_as_is_stated_and_no_further(notion):
    setting, chosen = attacked(notion)
    apart = moved(setting, chosen)
    for name, stated in {"joint": math.sqrt(2), "costed_gradient": 2 * CLIP}.items():
        assert 0.99 * stated <= apart[name] <= stated * (1 + 1e-9)
    assert_sound(setting, chosen, effort=(5, 40))


@pytest.mark.parametrize("mechanism", ["gaussian", "attribute_gaussian"])
@pytest.mark.parametrize("notion", ONE)
def test_a_group_alone_moves_answers_as_far_as_is_stated_and_no_further(notion, mechanism):
    setting, chosen = attacked(notion, ONE[notion], mechanism, alone=True)
    assert np.array_equal(chosen.first.features, chosen.second.features)
    assert np.array_equal(chosen.first.target, chosen.second.target)
    assert chosen.first.groups != chosen.second.groups
    assert_sound(setting, chosen, effort=(5, 40))


def test_the_claim_for_a_group_alone_is_that_of_the_table_of_silos():
    tree = fair(weight=0.05)
    found = fedsim.audit(tree, data=people(), groups=True, effort=0.01)
    priced = fedsim.price(tree, data=people()).statement.silos
    assert found.tree["unit"] == "group"
    assert not found.broken
    for row, silo in zip(found.tree["silos"], priced, strict=True):
        assert row["claimed"] == silo.epsilon_attribute < silo.epsilon_guaranteed
        assert row["sensitivity_ratio"] <= 1 + 1e-6
    assert found.verdict[-1] == "claimed and attained is epsilon_attribute: of a record's group alone"


def test_noise_for_the_group_alone_publishes_features_and_the_audit_is_of_the_group():
    setting, _ = attacked(weight=0.05, mechanism="attribute_gaussian")
    assert setting.groups_alone
    setting = replace(setting, groups_alone=False)
    chosen = search(setting, SILO)
    assert sensitivity.search(setting, SILO, chosen, 1, 4).sensitivity == math.inf
    samples = servers.malicious(setting, SILO, chosen, 50)
    assert all(map(math.isfinite, np.concatenate(samples)))
    assert estimate.violated([samples], estimate.claim_of(setting, SILO), ALARM) > 3
    found = fedsim.audit(fair(mechanism="attribute_gaussian"), data=people(), effort=0.01)
    assert (found.tree["unit"], found.broken) == ("group", False)
    with refused("person", 5, "protects records' groups alone"):
        fedsim.audit(fair(mechanism="attribute_gaussian"), data=people(), person=5)


def test_records_that_may_change_places_by_groups_alone():
    setting, _ = attacked(alone=True)
    one, same, other = (
        Rows(np.full((1, 2), x), np.zeros(1), np.array([code]), np.zeros(1, dtype=int))
        for x, code in ((0.5, 0), (0.5, -1), (0.25, 0))
    )
    assert setting.related([one, same, other]).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


PLAIN = {
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 1, "clip_norm": 1},
}


@pytest.mark.parametrize(
    ("changed", "privacy"),
    [
        ({}, {"mechanism": "summed_gaussian", "honest_fraction": 1.0}),
        ({}, {"unit": "person"}),
        (PLAIN, {}),
    ],
    ids=["sums", "persons", "no answer by group"],
)
def test_groups_alone_are_attacked_where_a_claim_is_made_about_them(changed, privacy):
    tree, data = fair() | changed, people()
    tree["privacy"] |= privacy
    data = fedsim.Arrays(data.features, data.target, data.silo, group=data.group, person=np.arange(120))
    with pytest.raises(InputError, match="needs answers by group"):
        fedsim.audit(tree, data=data, groups=True)


# Faults.


def test_costs_that_are_added_after_the_clip_are_found(monkeypatch):
    setting, _ = attacked()
    real = silos.vault.terms.costed_sum

    def after(gradients, options, problem, block, points, clip):
        plain = [gradients(problem, block, points[:1], bound) for bound in (clip, None)]
        return plain[0] + real(gradients, options, problem, block, points, None) - plain[1]

    monkeypatch.setitem(silos.vault.terms._OF_GRADIENTS, "costed_gradient", after)
    chosen = search(setting, SILO)
    assert sensitivity.search(setting, SILO, chosen, 5, 40).sensitivity > 1.2


def _as_counts(plan, query):
    """As if a joint moved by 1 as a count does."""
    return 1.0 if query.statistic == "joint" else 2.0


def test_noise_of_a_joint_for_the_spread_of_a_count_is_found(monkeypatch):
    setting, chosen = attacked()
    monkeypatch.setattr(Plan, "spread", _as_counts)
    faults = noise.measure(setting, SILO, chosen, ALARM).faults
    assert any("times the noise that is stated" in fault for fault in faults)


def test_runs_prove_that_a_joint_has_too_little_noise(monkeypatch):
    setting, chosen = set_up(fair(epsilon=4.0, joint_noise_ratio=0.1))
    claim = estimate.claim_of(setting, SILO)
    assert estimate.violated([servers.malicious(setting, SILO, chosen, 2000)], claim, ALARM) is None
    monkeypatch.setattr(Plan, "spread", _as_counts)
    assert estimate.violated([servers.malicious(setting, SILO, chosen, 2000)], claim, ALARM) is not None


def test_a_bound_on_what_a_group_moves_that_is_too_small_is_found(monkeypatch):
    setting, chosen = attacked(weight=0.05, alone=True)
    real = attribute.distance
    monkeypatch.setattr(attribute, "distance", lambda *given: 0.9 * real(*given))
    assert sensitivity.search(setting, SILO, chosen, 5, 40).sensitivity == pytest.approx(1 / 0.9, rel=0.01)


# What is attained.

NETWORK = {"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}
PUBLISHED = "noise for groups alone"
CASES = {
    "parity": (fair(), people()),
    "odds": (fair("equalized_odds"), people()),
    "opportunity, weak": (fair("equal_opportunity", 0.02), people()),
    "three classes and groups": (fair(problem={"name": "softmax_regression"}), people(3, "abc")),
    "a network": (fair(problem=NETWORK), people()),
    PUBLISHED: (fair("equalized_odds", 0.02, mechanism="attribute_gaussian"), people()),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "alone"),
    [(case, alone) for case in CASES for alone in (False, True) if alone or case != PUBLISHED],
)
def test_runs_attain_half_of_the_claim_and_no_more_than_it(case, alone):
    tree, data = CASES[case]
    setting, chosen = set_up(tree, alone, data)
    found, claim = sensitivity.search(setting, SILO, chosen, 5, 40), estimate.claim_of(setting, SILO)
    assert found.sensitivity <= 1 + sensitivity.TOLERANCE
    first, second = servers.malicious(setting, SILO, chosen, 3000)
    bounds = estimate.bounds(first, second, claim)
    assert bounds.estimator == "mean difference"
    assert bounds.attained <= claim.epsilon
    assert bounds.attained >= 0.5 * claim.epsilon
    assert estimate.violated([(first, second)], claim, ALARM) is None


@pytest.mark.slow
def test_sums_of_joints_and_costed_gradients_are_not_flagged():
    assert_sums_not_flagged(fair(), people())
