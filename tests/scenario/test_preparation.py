"""`prepare`: a stage's share of mu^2, what it is printed as, what is refused before records are read."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.refusals import refused
from support.scenarios import changed, once

import fedsim
from fedsim.common.errors import InputError
from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget, noise_ratios
from fedsim.protocol.batch import Poisson
from fedsim.protocol.plan import Release
from fedsim.report.outcome import Results
from fedsim.report.privacy_statement import how
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.trial import execute

STAGES = [
    {"name": "ranges", "share": 0.05},
    {"name": "standardise", "share": 0.1},
    {"name": "pca", "share": 0.2, "components": 5},
]
BASE = once(
    data={"name": "breast_cancer"},
    partition={"name": "size", "partition_sizes": [75, 113, 150]},
    prepare=STAGES,
    algorithm={"num_rounds": 6},
    report={"baselines": False},
)
SAMPLED = {"sampler": "poisson", "fraction": 0.2}


def made(**changes: Any) -> Resolved:
    return resolve(parse(changed(BASE, {name.replace("__", "."): value for name, value in changes.items()})))


def squares(resolved: Resolved) -> list[list[float]]:
    """mu^2 of each round, for each silo, as its noise makes it."""
    plan = resolved.trace.plan
    return [
        [sum(ask.weight**2 for ask in asks) / silo.noise_multiplier**2 for asks in plan.rounds]
        for silo in preview(resolved)
    ]


def allowed(resolved: Resolved) -> list[float]:
    """mu(epsilon_i, delta_i)^2."""
    pairs = zip(resolved.epsilons, resolved.deltas, strict=True)
    return [float(gaussian.mu(epsilon, delta)) ** 2 for epsilon, delta in pairs]


@pytest.mark.parametrize("batch", [{"sampler": "full"}, {"sampler": "fresh", "fraction": 0.1}])
def test_each_stage_has_its_share_and_training_the_rest(batch: dict[str, Any]) -> None:
    resolved = made(privacy__epsilon=[0.5, 1.0, 4.0], algorithm__batch=batch)
    for found, budget in zip(squares(resolved), allowed(resolved), strict=True):
        assert len(found) == len(STAGES) + 6
        np.testing.assert_allclose(found[:3], [stage["share"] * budget for stage in STAGES], rtol=1e-6)
        training = sum(found[3:]) if batch["sampler"] == "full" else max(found[3:])
        assert training == pytest.approx(0.65 * budget, rel=1e-6)
    for silo, epsilon in zip(preview(resolved), resolved.epsilons, strict=True):
        assert epsilon * (1 - 1e-6) <= silo.epsilon_guaranteed <= epsilon


def test_beside_sampled_batches_a_stage_has_the_mu_of_its_share() -> None:
    """To the tolerance of the search for z; the accountant of the whole plan spends the budget."""
    resolved = made(
        algorithm__batch=SAMPLED, partition={"name": "iid", "num_partitions": 3}, privacy__delta=1e-5
    )
    for found, budget in zip(squares(resolved), allowed(resolved), strict=True):
        np.testing.assert_allclose(found[:3], [stage["share"] * budget for stage in STAGES], rtol=5e-3)
        assert sum(found) > 2 * budget  # sampling amplifies: more than a full plan could have
    assert all(0.999 - 1e-9 <= silo.epsilon_guaranteed <= 1.0 for silo in preview(resolved))


def test_beside_sampled_batches_no_silo_gives_a_stage_more_than_its_share() -> None:
    resolved = made(algorithm__batch=SAMPLED, privacy__epsilon=[0.5, 1.0, 4.0])
    shares = [found[1] / budget for found, budget in zip(squares(resolved), allowed(resolved), strict=True)]
    assert max(shares) == pytest.approx(0.1, rel=5e-3)
    assert min(shares) < 0.095
    silos = zip(preview(resolved), resolved.epsilons, strict=True)
    assert all(silo.epsilon_guaranteed <= epsilon for silo, epsilon in silos)


def test_the_ratio_does_not_depend_on_the_budget_where_nothing_is_sampled() -> None:
    census = ((Release(Poisson(1.0), 1.0), 4),)  # q = 1 is full
    budgets = [Budget(50, epsilon, 1e-6) for epsilon in (0.1, 1.0, 10.0)]
    assert noise_ratios([0.1, 0.2], census, budgets) == pytest.approx(
        [math.sqrt(0.7 / 0.1) / 2, math.sqrt(0.7 / 0.2) / 2]
    )


def test_a_given_noise_has_the_same_shares() -> None:
    """As candidates of private tuning have it."""
    resolved = made(privacy={"epsilon": 100.0, "calibration": "sigma", "noise_multiplier": 3.0})
    for found in squares(resolved):
        np.testing.assert_allclose(np.divide(found[:3], sum(found)), [s["share"] for s in STAGES], rtol=1e-9)


def test_private_tuning_and_a_released_evaluation_go_with_stages() -> None:
    sweep = {"tune": {"grid": {"algorithm.step_size": [0.3, 1.0]}, "private": {"fraction": 0.3}}}
    assert "finished" in str(fedsim.sweep(BASE | {"sweep": sweep, "trials": 1}, progress=False))
    ran = fedsim.simulate(BASE | {"evaluate": {"bins": 10}}, progress=False)
    assert ran.model.shape == (1, 31)


def test_a_run_spends_what_its_plan_costs_and_gives_a_model_of_the_features_as_they_were() -> None:
    ran = fedsim.simulate(BASE, trials=2, progress=False)
    assert [silo.epsilon_spent for silo in ran.summary.privacy.silos] == [
        silo.epsilon_guaranteed for silo in ran.summary.privacy.silos
    ]
    assert ran.model.shape == (2, 31)
    assert ran.summary.privacy.accountant.endswith(
        "; of mu^2 ranges 0.05, standardise 0.1, pca 0.2, training the rest"
    )
    assert ran.summary.metrics is not None


def test_sums_come_to_the_model_of_each_silos_own_noise_where_both_are_small() -> None:
    data = {"name": "synthetic", "rows": 30_000, "features": 3}
    stages = [stage | {"clip": 12.0} for stage in (STAGES[1], STAGES[2] | {"components": 3})]  # a rotation

    def model(**privacy: Any) -> torch.Tensor:
        results, budget = Results(), {"epsilon": 50.0, "delta": 1e-5}
        partition = {"name": "iid", "num_partitions": 3}
        found = made(privacy=budget | privacy, data=data, partition=partition, prepare=stages)
        execute(found, results, lambda _: None)
        return results.trials[0].models["private"]

    each, total = model(), model(mechanism="summed_gaussian", honest_fraction=1.0)
    torch.testing.assert_close(total, each, rtol=0.0, atol=0.01)
    assert each.abs().max() > 0.2


def test_sums_have_the_same_shares() -> None:
    resolved = made(privacy={"epsilon": 1.0, "mechanism": "summed_gaussian", "honest_fraction": 1.0})
    found, budget = squares(resolved)[0], allowed(resolved)[0]
    np.testing.assert_allclose(found[:3], [stage["share"] * budget for stage in STAGES], rtol=1e-3)


def test_a_clip_is_the_declared_norm_then_the_number_of_features() -> None:
    found = made(prepare=[STAGES[2] | {"components": 20}, STAGES[1], STAGES[2] | {"clip": 7.5}]).stages
    assert [stage.clip for stage in found] == [31.0, 31.0, 7.5]  # type: ignore[union-attr]
    assert made(prepare=[STAGES[1], STAGES[2]]).stages[1].clip == 31.0  # type: ignore[union-attr]
    whitened = made(prepare=[STAGES[2], STAGES[1], STAGES[2] | {"components": 2}])
    assert whitened.stages[2].clip == 6.0  # type: ignore[union-attr]
    assert whitened.inner.num_features == 3


def test_silos_are_held_over_an_epoch_as_without_stages() -> None:
    numbers = {"inner_steps": 2, "epochs": 2, "step_size": 0.1, "clip_norm": 0.5, "difference_clip": 0.4}
    svrg = {"name": "prox_svrg", **numbers}
    plain, prepared = made(prepare=[], algorithm=svrg).trace, made(algorithm=svrg).trace
    assert any(plain.holds)
    assert prepared.holds == (False, False, False, *plain.holds)
    weights = [[ask.weight for ask in asks] for asks in plain.plan.rounds]
    assert [[ask.weight for ask in asks] for asks in prepared.plan.rounds[3:]] == weights


def test_automatic_numbers_follow_from_prepared_features() -> None:
    auto = dict.fromkeys(("num_rounds", "step_size", "clip_norm"), "auto")
    given = {"name": "noisy_minibatch_sgd", **auto}
    clip = made(prepare=[STAGES[1]], algorithm=given).algorithm.clip_norm  # type: ignore[attr-defined]
    assert clip == pytest.approx(0.5 * 31**0.5, abs=0.1)


@pytest.mark.parametrize(
    ("changes", "field", "hint"),
    [
        ({"prepare": [STAGES[1] | {"share": 0.5}] * 2}, "prepare: 1.0", "sum to less than 1"),
        ({"prepare": [STAGES[2] | {"components": 31}]}, "prepare.0.components: 31", "at most 30"),
        ({"prepare": [STAGES[2], STAGES[2] | {"components": 6}]}, "prepare.1.components: 6", "at most 5"),
        ({"prepare": [{"name": "pcs", "share": 0.1}]}, "prepare.0.name: 'pcs'", "standardise, ranges, pca"),
        ({"prepare": [{"share": 0.1}]}, "prepare.0.name: None", "standardise, ranges, pca"),
        ({"prepare": [{"name": "pca", "share": 0.1}]}, "prepare.0.components", "is required"),
        ({"prepare": [STAGES[1] | {"share": 0.0}]}, "prepare.0.share", "greater than 0"),
        ({"prepare": [STAGES[1], STAGES[0]]}, "prepare.1", "first stage"),
        ({"prepare": [STAGES[0] | {"quantiles": [0.9, 0.1]}]}, "prepare.0.quantiles", "ascending"),
        ({"data.scaling": "none"}, "prepare.0: 'ranges'", "declared"),
        ({"data.scaling": "none", "prepare": STAGES[1:]}, "prepare.0.clip: 0", "above 0"),
        ({"data.pca": 3, "data.preprocessing_cost": "ignored"}, "data.pca: 3", "left out"),
        (
            {"data.scaling": "silo_statistics", "data.preprocessing_cost": "ignored"},
            "data.scaling: 'silo_statistics'",
            "left out",
        ),
        ({"data.intercept": False}, "data.intercept", "true"),
        (
            {"problem": {"name": "neural_network", "model": {"name": "mlp", "hidden": [3]}}},
            "problem.name: 'neural_network'",
            "a linear model",
        ),
        (
            {"privacy": {"epsilon": "unlimited", "calibration": "sigma", "noise_multiplier": 2}},
            "privacy.calibration: 'sigma'",
            "accountant",
        ),
        (
            {"privacy": {"epsilon": 1.0, "calibration": "theorem", "claimed_epsilon": 1.0}},
            "privacy.calibration: 'theorem'",
            "accountant",
        ),
        ({"runtime": {"name": "inprocess", "plug_ins": "isolated"}}, "runtime.plug_ins", "in_process"),
    ],
)
def test_what_does_not_fit_is_refused_before_records_are_read(
    changes: dict[str, Any], field: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsim.data.source.Matrix.design", refused)
    with pytest.raises(InputError) as caught:
        resolve(parse(changed(BASE, changes)))
    assert str(caught.value).startswith(f"scenario.{field}")
    assert hint in str(caught.value)


def test_a_stage_keys_the_noise() -> None:
    """A clip is in no plan, and yet changes what is released."""
    stage = {"name": "standardise", "share": 0.1, "clip": 2.0}
    resolved = [made(prepare=[stage]), made(prepare=[stage | {"clip": 3.0}])]
    assert resolved[0].trace.plan.digest == resolved[1].trace.plan.digest
    assert len({run_digest(each, "", "private") for each in resolved}) == 2


def test_without_stages_nothing_is_said_of_them() -> None:
    assert "mu^2" not in how(made(prepare=[]))["accountant"]
