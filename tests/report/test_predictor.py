"""A run's model predicts as the run's own evaluation did, before and after its directory."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.refusals import ANY, refused
from support.used_models import clinic, clinic_tree, simulated, tree

import fedsim
from fedsim.common.errors import InputError
from fedsim.data.builtin import BreastCancer, Digits, Synthetic
from fedsim.data.federation import load
from fedsim.report.model_file import FILE, FITTED, read_models, write_models
from fedsim.report.outcome import Outcome
from fedsim.report.predictor import Predictor
from fedsim.report.run_directory import write

PIXELS = Digits().open().features
TISSUE = BreastCancer().open().features
LINEAR = Synthetic(rows=60, features=3, link="linear")
IGNORED = {"preprocessing_cost": "ignored"}
STANDARD = {"name": "breast_cancer", "scaling": "training_statistics", **IGNORED}
MLP = {"name": "neural_network", "model": {"name": "mlp", "hidden": [5]}}
CASES: dict[str, tuple[dict[str, Any], np.ndarray]] = {
    "logistic": (tree("breast_cancer", "logistic_regression"), TISSUE),
    "softmax": (tree("digits", "softmax_regression"), PIXELS),
    "binary softmax": (tree({"name": "digits", "task": "parity"}, "softmax_regression"), PIXELS),
    "hinge": (tree({"name": "breast_cancer", "intercept": False}, "hinge_loss"), TISSUE),
    "linear": (tree(LINEAR.model_dump(), "linear_regression"), LINEAR.open().features),
    "absolute": (tree(LINEAR.model_dump(), "absolute_error"), LINEAR.open().features),
    "components": (tree({"name": "digits", "pca": 4, **IGNORED}, "softmax_regression"), PIXELS),
    "transformed": (
        tree({"name": "digits", "transform": {"dct": 9, "crop": 6, "subtract": 0.5}}, "softmax_regression"),
        PIXELS,
    ),
    "of one norm": (tree({"name": "digits", "record_norm": 2.0}, "softmax_regression"), PIXELS),
    "standardised": (tree(STANDARD, "logistic_regression"), TISSUE),
    "network": (tree("digits", MLP), PIXELS),
    "network of numbers": (tree(LINEAR.model_dump(), MLP), LINEAR.open().features),
}


def frame_of(run: fedsim.Run, values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(values, columns=list(run.predictor().recipe.columns))


def evaluated(run: fedsim.Run) -> np.ndarray:
    """Scores of all records as the run prepared and scored them, sorted."""
    assert isinstance(run.source, Outcome)
    resolved = run.source.resolved
    data = load(resolved.scenario.data, resolved.scenario.partition, resolved.scenario.seed, 0)
    parts = [part for silo in data.silos for part in (silo.train.features, silo.test.features)]
    scores = resolved.problem.scores(torch.as_tensor(np.concatenate(parts)), torch.as_tensor(run.model[0]))
    return np.sort(scores.numpy(), axis=0)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """A run, the same read back, and all raw records."""
    scenario, values = CASES[request.param]
    run = simulated(scenario, excess_risk=False)
    place = tmp_path_factory.mktemp("used")
    write(run.source, run.results, place, place)  # `run.save` draws pictures too
    return run, fedsim.load_run(place), frame_of(run, values)


def test_scores_are_those_of_the_evaluation(case) -> None:
    run, again, frame = case
    for model in (run.predictor(), again.predictor()):
        np.testing.assert_allclose(
            np.sort(model.scores(frame), axis=0), evaluated(run), rtol=1e-12, atol=1e-12
        )


def test_predictions_are_the_same_after_reading_back(case) -> None:
    run, again, frame = case
    pd.testing.assert_frame_equal(run.predict(frame), again.predict(frame), rtol=1e-12, atol=1e-12)
    shuffled = frame.sample(frac=1.0, random_state=0)
    one_by_one = run.predict(shuffled).sort_index()
    pd.testing.assert_frame_equal(one_by_one, run.predict(frame), rtol=1e-9, atol=1e-12)


def test_scikit_learn_predicts_the_same(case) -> None:
    run, again, frame = case
    if run.summary.problem == "neural_network":
        with refused("model", "neural_network", "a network has `to_torch`"):
            run.to_sklearn()
        return
    made, ours = again.to_sklearn(), run.predict(frame)
    theirs = made.predict(frame)
    if "prediction" in ours and ours["prediction"].dtype == float:
        np.testing.assert_allclose(theirs, ours["prediction"], rtol=1e-9, atol=1e-9)
        return
    assert (theirs == ours["prediction"]).all()
    if run.summary.problem == "hinge_loss":
        sign = 1 if made["model"].classes_[1] == run.predictor().recipe.classes[1] else -1
        np.testing.assert_allclose(sign * made.decision_function(frame), ours["score"], atol=1e-9)
        return
    expected = ours[[f"probability {label}" for label in made.classes_]]
    np.testing.assert_allclose(made.predict_proba(frame), expected, rtol=1e-9, atol=1e-9)


def test_torch_gives_the_same_scores(case) -> None:
    run, again, frame = case
    model: Predictor = again.predictor()
    module = model.to_torch()
    with torch.no_grad():
        scores = module(torch.as_tensor(model.features(frame))).numpy()
    np.testing.assert_allclose(
        scores.reshape(len(frame), -1), model.scores(frame).reshape(len(frame), -1), rtol=1e-9, atol=1e-12
    )
    if run.summary.problem != "neural_network":
        assert isinstance(module, torch.nn.Linear)
        assert (module.bias is not None) == run.predictor().recipe.intercept


def test_only_what_a_simulation_fitted_is_in_a_file_that_says_so(case) -> None:
    run, again, _ = case
    pooled = run.source.resolved.scenario.data.pools_records
    names = {file.name for file in again.source.iterdir()}
    assert FILE in names
    assert (FITTED in names) is pooled
    kept = json.loads((again.source / FILE).read_text())
    assert set(kept["problem"]) <= {"name", "model"}
    assert str(run.model[0][0]) not in (again.source / FILE).read_text()


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("clinic")
    return folder, clinic(folder)


@pytest.fixture(scope="module")
def treated(patients) -> fedsim.Run:
    return simulated(clinic_tree(patients[0]), trials=2)


def test_classes_have_their_own_labels_and_probabilities(patients, treated) -> None:
    frame = patients[1]
    found = treated.predict(frame.drop(columns=["outcome", "hospital"]))
    assert list(found.columns) == ["prediction", "probability well", "probability ill"]
    assert set(found["prediction"]) <= {"well", "ill"}
    np.testing.assert_allclose(found.iloc[:, 1:].sum(axis=1), 1, rtol=1e-12)
    likelier = np.where(found["probability ill"] > 0.5, "ill", "well")
    assert (found["prediction"] == likelier).all()
    assert not found.equals(treated.predict(frame, trial=1))
    assert found.equals(treated.predict(patients[0] / "clinic.csv"))


@pytest.mark.parametrize("scaling", ["declared", "none"])
@pytest.mark.parametrize("target", ["age", "chol"])
def test_numbers_come_in_their_own_units(patients, target: str, scaling: str) -> None:
    folder, frame = patients
    run = simulated(clinic_tree(folder, target, scaling=scaling), step_size=1e-6)
    found = run.predict(frame)["prediction"]
    score = run.predictor().scores(frame)
    by_hand = {
        ("age", "declared"): 50 + 30 * score,
        ("chol", "declared"): 200 * 2**score,  # between 100 and 400, by logarithms
    }
    np.testing.assert_allclose(found, by_hand.get((target, scaling), score), rtol=1e-12)
    np.testing.assert_allclose(run.to_sklearn().predict(frame), found, rtol=1e-9)


def test_a_scikit_learn_step_has_names_and_can_be_cloned(patients, treated) -> None:
    from sklearn.base import clone

    made = treated.to_sklearn()
    assert made[:-1].get_feature_names_out().tolist() == ["age", "sex=female", "chol"]
    assert list(made["model"].classes_) == ["ill", "well"]
    assert clone(made).fit(patients[1], patients[1]["outcome"]).predict(patients[1]).shape == (60,)


@pytest.mark.parametrize("name", ["standardised", "components"])
def test_a_trial_that_is_kept_until_its_run_goes_on_knows_it_too(name: str, tmp_path: Path) -> None:
    scenario, values = CASES[name]
    run = simulated(scenario)
    trial = run.source.results.trials[0]
    digest = write_models(trial.models, trial.fitted, tmp_path / "trial")
    models, fitted = read_models(tmp_path / "trial", digest, trial.fitted.recipe.model_dump_json())
    assert fitted is not None
    assert torch.equal(models["private"], trial.models["private"])
    assert np.array_equal(fitted.features(values), trial.fitted.features(values))


def test_what_is_wrong_with_a_table_is_named(patients, treated) -> None:
    frame = patients[1]
    wrong = {
        r"table: 'sex': the table has no such column": frame.drop(columns="sex"),
        r"table.sex: 'men': row 1: not a declared category": frame.assign(sex="men"),
        r"table.age: 'old': row 1: not a number": frame.assign(age=["old", *[30] * 59]),
        r"table: 'age': the table has 2 columns": pd.concat([frame, frame[["age"]]], axis=1),
        r"table: 'int': must be a data frame of pandas or Polars": 3,
        r"table: (4, 2): must have shape (n, 3)": np.ones((4, 2)),
    }
    for said, table in wrong.items():
        with pytest.raises(InputError, match=re.escape(said)):
            treated.predict(table)
    mixed = frame.assign(chol=[f"{k}" if k % 2 else float(k) for k in range(150, 210)])
    assert len(treated.predict(mixed)) == 60
    assert treated.predict(frame.head(0)).empty


def test_a_model_that_nothing_protects_is_taken_only_by_name(patients, treated) -> None:
    frame = patients[1]
    assert not treated.predict(frame).equals(treated.predict(frame, nonprivate=True))
    with refused("trial", 7, "must be one of the finished ones, 0, 1"):
        treated.predict(frame, trial=7)
    tree = clinic_tree(patients[0]) | {"privacy": {"mechanism": "none"}}
    open_run = simulated(tree)
    with refused("nonprivate", False, "this run's model is not private"):
        open_run.predict(frame)
    assert len(open_run.predict(frame, nonprivate=True)) == 60
    alone = simulated(clinic_tree(patients[0]), nonprivate_baseline=False)
    with refused("nonprivate", True, "baseline"):
        alone.predict(frame, nonprivate=True)


def test_a_damaged_or_missing_description_is_named(treated, tmp_path) -> None:
    place = tmp_path
    write(treated.source, treated.results, place, place)
    (place / FILE).write_text("{")
    with refused("RUN", ANY, "model.json", "not valid JSON"):
        fedsim.load_run(place).predictor()
    (place / FILE).unlink()
    with refused("RUN", ANY, "model.json", "is missing"):
        fedsim.load_run(place).predictor()
    assert len(fedsim.load_run(place).model) == 2


def test_float32_models_predict_in_float32(patients) -> None:
    run = simulated(clinic_tree(patients[0]) | {"runtime": {"name": "inprocess", "dtype": "float32"}})
    assert run.predictor().to_torch().weight.dtype == torch.float32
    assert len(run.predict(patients[1])) == 60
