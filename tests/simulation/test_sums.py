"""Simulated secure aggregation: who sees what, which noise, and the same model as without sums."""

import json
from typing import Any

import pytest
import torch
from support.refusals import refused

from fedsim.common.errors import InputError, Refused
from fedsim.privacy import gaussian
from fedsim.protocol.pool import Share
from fedsim.report.outcome import Results
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview
from fedsim.simulation.trial import execute

SUMS = {"mechanism": "summed_gaussian", "honest_fraction": 1.0, "epsilon": 1.0, "delta": 1e-5}
BASE: dict[str, Any] = {
    "name": "sums",
    "data": {"name": "breast_cancer", "scaling": "declared"},
    "partition": {"name": "size", "partition_sizes": [75, 113, 150]},
    "problem": {"name": "logistic_regression", "silo_weights": "equal"},
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 6, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": SUMS,
    "runtime": "inprocess",
    "report": {"baselines": False},
}


def made(**privacy: Any) -> Resolved:
    return resolve(
        parse(BASE | {"privacy": {key: v for key, v in (SUMS | privacy).items() if v is not None}})
    )


def model(resolved: Resolved) -> torch.Tensor:
    results = Results()
    execute(resolved, results, lambda _: None)
    return results.trials[0].models["private"]


def test_equal_budgets_share_one_noise_that_the_heaviest_record_needs():
    silos = preview(made())
    assert silos[0].epsilon_guaranteed == pytest.approx(1.0, rel=1e-6)  # 60 records: each weighs most
    assert silos[0].epsilon_guaranteed > silos[1].epsilon_guaranteed > silos[2].epsilon_guaranteed
    assert len({silo.terms.noise_multiplier for silo in silos}) == 1
    mu = 6**0.5 / silos[0].noise_multiplier
    assert float(gaussian.epsilon(mu, 1e-5)) == pytest.approx(1.0, rel=1e-3)


def test_a_stricter_silo_takes_a_smaller_clip_and_the_others_keep_theirs():
    loose = preview(made())
    silos = preview(made(epsilon=[1.0, 1.0, 0.3]))
    assert silos[2].epsilon_guaranteed <= 0.3
    assert [silo.terms.share.clip == 1.0 for silo in silos if silo.terms.share] == [True, True, False]
    assert silos[0] == loose[0]


def test_a_budget_that_no_clip_keeps_raises_the_noise():
    silos = preview(made(epsilon=[8.0, 8.0, 0.05]))
    assert all(silo.epsilon_guaranteed <= own for silo, own in zip(silos, (8.0, 8.0, 0.05), strict=True))


def test_the_model_is_near_the_one_that_each_silo_answers_for():
    """At next to no noise both are the same estimator, whatever sizes, weights and participation are."""
    for participation in ({"name": "all"}, {"name": "uniform", "num_silos": 2}):
        tree = BASE | {"participation": participation}
        tree["problem"] = BASE["problem"] | {"silo_weights": [0.2, 0.5, 0.3]}
        quiet = {"epsilon": "unlimited", "calibration": "sigma", "noise_multiplier": 1e-4}
        sums = model(resolve(parse(tree | {"privacy": quiet | {k: SUMS[k] for k in SUMS if k not in quiet}})))
        alone = model(resolve(parse(tree | {"privacy": quiet})))
        assert float((sums - alone).abs().max()) < 1e-3 * float(alone.abs().max())


def test_few_silos_of_a_round_are_refused():
    tree = BASE | {"participation": {"name": "uniform", "num_silos": 2}}
    with refused("scenario.privacy.min_silos", 3, "at most 2"):
        resolve(parse(tree | {"privacy": SUMS | {"min_silos": 3}}))


def test_the_page_and_the_summary_say_both_guarantees(tmp_path):
    from fedsim.api.simulate import simulate

    run = simulate(BASE, out=tmp_path / "run")
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert "two aggregators do not collude" in privacy["guarantee"]
    assert all(row["epsilon_colluding"] > row["epsilon_guaranteed"] for row in privacy["silos"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert privacy["guarantee_colluding"] in page
    assert "if they collude" in page
    assert run.summary.privacy.silos[0].epsilon_guaranteed <= 1.0


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("honest_fraction", None, "is required"),
        ("honest_fraction", 0.0, "greater than 0"),
        ("min_silos", 9, "at most 3"),
        ("calibration", "theorem", "accountant or sigma"),
        ("noise_by", "aggregators", "honest_fraction"),
        ("mechanism", "gaussian", "honest_fraction"),
    ],
)
def test_a_wrong_field_is_named(field, value, said):
    with pytest.raises(InputError, match=said):
        made(**{field: value})


def test_a_silo_method_that_is_not_linear_is_refused_with_the_reason():
    algorithm = {"name": "local_sgd", "num_rounds": 2, "local_steps": 2, "step_size": 0.1, "clip_norm": 1.0}
    with refused("scenario.privacy.mechanism", "summed_gaussian", "each silo's own noisy answers"):
        resolve(parse(BASE | {"algorithm": algorithm}))


def test_a_silo_is_given_no_noise_of_its_own():
    resolved = made()
    from fedsim.protocol.limits import LIMITS
    from fedsim.protocol.plan import Terms
    from silos.vault.admission import admit

    with pytest.raises(Refused, match="noise and pool"):
        admit(resolved.trace.plan, [Terms("a", 60, 1.0, 1e-5, range(6))], resolved.mechanism, LIMITS)


@pytest.mark.parametrize("way", ["shares", "envelopes"])
def test_the_real_protocol_gives_the_same_model(way):
    played = resolve(parse(BASE | {"privacy": SUMS, "runtime": {"name": "inprocess", "shuffler": way}}))
    assert torch.equal(model(played), model(made()))


def test_aggregators_noise_is_twice_a_full_share():
    """Its variance in the total, against the common multiplier; and a run with it repeats itself."""
    import numpy as np

    from fedsim.simulation.secure_aggregation import TrialSums

    resolved = made(noise_by="aggregators", honest_fraction=None)
    (common,) = {silo.terms.noise_multiplier for silo in preview(resolved)}
    assert common is not None
    run = TrialSums(resolved, 0, "0" * 64, common)
    drawn = np.array([noise for r in range(6) for party in (0, 1) for noise in run.noise(r, party)])
    (scale,) = set(run.scales(0)[1])
    assert drawn.std() == pytest.approx(scale, rel=5 / (2 * drawn.size) ** 0.5)
    assert len({row.tobytes() for row in drawn}) == len(drawn)
    assert torch.equal(model(resolved), model(made(noise_by="aggregators", honest_fraction=None)))


@pytest.mark.slow
def test_the_second_aggregator_is_an_actor_of_its_own(tmp_path):
    from fedsim.api.simulate import simulate

    on_ray = BASE | {
        "runtime": {"name": "ray", "shuffler": "envelopes"},
        "report": {"nonprivate_baseline": False},
    }
    assert simulate(on_ray, out=tmp_path / "run").summary.status == "finished"


@pytest.mark.parametrize(
    ("position", "clip"), [(-1, 1.0), (3, 1.0), (0, -5.0), (0, 0.0), (0, 1.1), (0, float("nan"))]
)
def test_a_part_that_no_price_is_right_for_is_refused(position, clip):
    sums = made().sums
    assert sums is not None
    with pytest.raises(InputError, match="share"):
        Share(sums.pool, position, clip)
