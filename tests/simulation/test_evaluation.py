"""A simulated run's evaluation: how near it comes to the truth, what it costs, and which records it reads."""

import math

import numpy as np
import pytest
import torch
from support.helpers import together
from support.scenarios import BASE, changed

import fedsim
from fedsim.api.given import resolved_of, scenario_of
from fedsim.common.errors import InputError, Refused
from fedsim.data.federation import Hosted
from fedsim.measure.evaluator import Evaluator
from fedsim.report.sections.evaluation import Evaluated
from fedsim.report.texts import remarks
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import SiloHost, preview, preview_evaluation
from fedsim.simulation.trial import Trial, read

SILOS, TRAIN, HELD_OUT = 25, 62, 248
TRUE = np.array([3.0, -2.0, 1.5, 0.0, 1.0])
QUIET = {"baselines": False, "nonprivate_baseline": False, "clipping": False, "evaluate_every": 100}
SMALL = changed({**BASE, "report": QUIET, "evaluate": {}, "trials": 1}, {"data.rows": 300})
SUMMED = {"mechanism": "summed_gaussian", "honest_fraction": 1.0, "epsilon": 1.0}


def records() -> fedsim.Arrays:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (SILOS * (TRAIN + HELD_OUT), len(TRUE)))
    y = (x @ TRUE + rng.logistic(0, 1, len(x)) > 0).astype(int)
    silo = np.repeat(np.arange(SILOS), TRAIN + HELD_OUT)
    return fedsim.Arrays(x, y, silo, ranges=(-1.0, 1.0), test_fraction=HELD_OUT / (TRAIN + HELD_OUT))


def federation(**changes: object) -> Resolved:
    tree = {key: value for key, value in SMALL.items() if key not in ("data", "partition")} | changes
    return resolved_of(scenario_of(tree), None, records())


def estimates(resolved: Resolved, repetitions: int) -> dict[str, np.ndarray]:
    """{metric: (repetitions, 2)}, values and standard errors of the true model."""
    data = read(resolved, 0)
    model = torch.zeros(resolved.problem.dimension, dtype=torch.float64)
    model[: len(TRUE)] = torch.as_tensor(TRUE)
    test = Evaluator(resolved.problem, data.silos, resolved.dtype)
    trials = (Trial(resolved, i, SiloHost(resolved, i, data), test, data) for i in range(repetitions))
    found = [trial.estimates(model) for trial in trials]
    return {name: np.array([each[name][:2] for each in found]) for name in ("accuracy", "auc", "brier")}


@pytest.mark.parametrize(
    "privacy",
    [
        {"epsilon": [0.5, 1.0, 4.0] * 8 + [2.0]},
        SUMMED | {"honest_fraction": 0.5, "min_silos": 10},
        {"mechanism": "summed_gaussian", "noise_by": "aggregators", "epsilon": 1.0},
        SUMMED | {"epsilon": [1.0] * 20 + [0.5] * 5},
    ],
)
def test_the_stated_standard_error_is_that_of_all_the_noise_there_is(privacy):
    value, error = estimates(federation(privacy=privacy), 120)["accuracy"].T
    assert np.std(value) == pytest.approx(error[0], rel=0.15)


@pytest.mark.parametrize("way", ["shares", "envelopes"])
def test_the_parts_of_the_protocol_give_the_same_sums(way):
    totals = {"name": "inprocess", "shuffler": "total"}
    one, other = (
        estimates(federation(privacy=SUMMED, runtime=runtime), 2)
        for runtime in (totals, totals | {"shuffler": way})
    )
    for name, values in one.items():
        np.testing.assert_allclose(other[name], values, atol=1e-9)


@pytest.mark.slow
def test_silos_in_other_processes_release_the_same():
    ray = {"name": "ray", "silo_hosts": 2}
    one, other = (
        fedsim.simulate(SMALL | {"privacy": SUMMED, "runtime": runtime}, progress=False)
        for runtime in ("inprocess", ray)
    )
    assert one.summary.evaluation == other.summary.evaluation


def test_without_privacy_it_is_the_exact_accuracy_of_held_out_records():
    run = fedsim.simulate(SMALL | {"privacy": {"mechanism": "none"}}, progress=False)
    found = {row.metric: row for row in run.summary.evaluation}
    assert found["accuracy"].standard_error == 0
    assert found["accuracy"].value == pytest.approx(1 - run.summary.metrics.error, abs=1e-12)


def test_an_evaluation_reads_no_record_that_trains_and_training_none_that_is_held_out():
    resolved = resolved_of(scenario_of(SMALL))
    data, everyone = read(resolved, 0), [range(1)] * 3
    rounds = [range(len(resolved.trace.plan.rounds))] * 3
    unread = [np.full_like(silo.train.features, np.nan) for silo in data.silos]
    marked = Hosted(
        together(
            [s._replace(train=s.train._replace(features=x)) for s, x in zip(data.silos, unread, strict=True)]
        ),
        data.digest,
    )
    w = {"w": torch.ones(resolved.problem.dimension, dtype=torch.float64)}
    one, other = SiloHost(resolved, 0, data), SiloHost(resolved, 0, marked)
    for host in (one, other):
        host.open("evaluation", everyone)
        host.open("private", rounds)
    assert torch.equal(one.answer("evaluation", 0, w, None)["h"], other.answer("evaluation", 0, w, None)["h"])
    assert not torch.equal(one.answer("private", 0, w, None)["g"], other.answer("private", 0, w, None)["g"])
    swapped = Hosted(
        together([s._replace(test=s.test._replace(target=1 - s.test.target)) for s in data.silos]),
        data.digest,
    )
    third = SiloHost(resolved, 0, swapped)
    third.open("evaluation", everyone)
    third.open("private", rounds)
    assert torch.equal(third.answer("private", 0, w, None)["g"], one.answer("private", 0, w, None)["g"])
    moved = third.answer("evaluation", 0, w, None)["h"] - one.answer("evaluation", 0, w, None)["h"]
    assert moved.abs().max() > 0.1


def test_one_model_is_evaluated_and_once():
    resolved = resolved_of(scenario_of(SMALL))
    host = SiloHost(resolved, 0, read(resolved, 0))
    host.open("evaluation", [range(1)] * 3)
    w = torch.zeros(resolved.problem.dimension, dtype=torch.float64)
    host.answer("evaluation", 0, {"w": w}, None)
    with pytest.raises(Refused, match="another broadcast"):
        host.answer("evaluation", 0, {"w": w + 1}, None)
    with pytest.raises(Refused, match="one evaluation of a run"):
        host.open("evaluation", [range(1)] * 3)


def test_training_has_the_same_bits_with_an_evaluation_and_its_noise_is_another():
    with_one = fedsim.simulate(SMALL, progress=False)
    without = fedsim.simulate(SMALL | {"evaluate": None}, progress=False)
    assert np.array_equal(with_one.model, without.model)
    more = fedsim.simulate(SMALL | {"evaluate": {"bins": 12}}, progress=False)
    assert np.array_equal(with_one.model, more.model)
    residuals = [one.evaluation.to_pandas().set_index("metric") for one in (with_one, more)]
    gaps = [frame["value"]["accuracy"] - frame["exact"]["accuracy"] for frame in residuals]
    assert gaps[0] != pytest.approx(gaps[1], abs=1e-9)


def test_the_larger_cost_of_the_two_parts_is_guaranteed():
    cheap = {"epsilon": 2.0, "calibration": "sigma", "noise_multiplier": 40.0}
    found = fedsim.price(SMALL | {"privacy": cheap}, verify=True).statement
    resolved = resolved_of(scenario_of(SMALL | {"privacy": cheap}))
    for row, held_out in zip(found.silos, resolved.outline.held_out.values(), strict=True):
        assert row.epsilon_training < 0.5 < 1.99 < row.epsilon_evaluation <= 2.0
        assert row.epsilon_guaranteed == row.epsilon_evaluation
        assert row.epsilon_dp_accounting == pytest.approx(row.epsilon_guaranteed, abs=1e-6)
        assert (row.n + row.held_out, row.held_out) == (100, held_out)
    with pytest.raises(InputError, match=r"evaluate.*both parts"):
        fedsim.price(SMALL, conversions=True)


def test_both_parts_have_the_delta_of_the_training_records():
    resolved = resolved_of(scenario_of(SMALL))
    training, evaluation = preview(resolved), preview_evaluation(resolved)
    for own, other in zip(training, evaluation, strict=True):
        assert own.terms.delta == other.terms.delta == own.terms.n**-2
        assert other.terms.n == 100 - own.terms.n
        assert other.releases == 1
        assert math.isclose(other.epsilon_guaranteed, 1.0, rel_tol=1e-6)


def test_in_sums_no_silo_pays_more_than_its_budget_and_all_records_count_alike():
    resolved = federation(privacy=SUMMED | {"epsilon": [1.0] * 20 + [0.5] * 5})
    admitted = preview_evaluation(resolved)
    assert all(
        silo.epsilon_guaranteed <= budget for silo, budget in zip(admitted, resolved.epsilons, strict=True)
    )
    assert {silo.terms.share.clip for silo in admitted} == {1.0}
    assert evaluation_of(resolved).sizes == (HELD_OUT,) * SILOS


def test_what_it_shows(tmp_path):
    run = fedsim.simulate(SMALL | {"trials": 2, "privacy": {"epsilon": 6.0}}, progress=False)
    run.save(tmp_path / "run")
    assert fedsim.load_run(tmp_path / "run").summary == run.summary
    assert fedsim.load_run(tmp_path / "run").evaluation.to_pandas().equals(run.evaluation.to_pandas())
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Evaluation, accuracy: 0." in page
    assert "the larger cost of the two is guaranteed" in page
    assert len(run.source.results.rows(Evaluated)) == 12
    silo = run.summary.privacy.silos[0]
    assert (
        silo.epsilon_spent == silo.epsilon_guaranteed == max(silo.epsilon_training, silo.epsilon_evaluation)
    )
    weak = fedsim.simulate(SMALL | {"privacy": {"epsilon": 0.2}}, progress=False)
    assert remarks(weak.summary)[0].startswith("evaluation, accuracy: too few to say; exact")
    assert remarks(run.summary)[0].startswith("evaluation, accuracy: 0.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"problem": "linear_regression", "data.link": "linear"},
            "evaluate.*target of two classes, not a number",
        ),
        ({"problem": "hinge_loss"}, "evaluate.*probabilities"),
        ({"problem": "softmax_regression", "data.link": "softmax"}, "evaluate.*target of two classes, not 3"),
        ({"evaluate": {"bins": 7}}, "evaluate.bins"),
        ({"data.test_fraction": 0.01}, "evaluate.*needs 2 held-out records a silo, and silo 'silo-0.' has 1"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_records_are_read(changes, words):
    tree = changed(SMALL, {key: value for key, value in changes.items() if "." in key})
    tree |= {key: value for key, value in changes.items() if "." not in key}
    with pytest.raises((InputError, Refused), match=f"(?s){words}"):
        preview_evaluation(resolved_of(scenario_of(tree)))
