"""Columns' effects are differences of scores, and a page says what their bands are."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.scenarios import edited, invoke, write
from support.used_models import CLINIC_SCHEMA, clinic, clinic_tree, simulated, tree

import fedsim
from fedsim.report.column_effects import MOST, Effect, Effects, effects_of, table_of
from fedsim.report.page import render
from fedsim.report.run_directory import read

PERSON = {"age": 30.0, "sex": "male", "chol": 200.0}  # any other has the same effects


def effects(run: fedsim.Run) -> Effects:
    found = effects_of(run.results)
    assert found is not None
    return found


def moved(run: fedsim.Run, effect: Effect, trial: int) -> np.ndarray:
    """Scores, (points, outputs), of a person who is at each point of a column, by the way of `predict`."""
    table = pd.DataFrame([PERSON | {effect.name: point} for point in effect.points])
    predictor = run.predictor(trial)
    scores = np.asarray(predictor.scores(table))
    return scores.reshape(len(scores), -1)


@pytest.mark.parametrize("scaling", ["declared", "training_statistics"])
def test_effects_are_the_differences_of_scores(scaling: str, tmp_path: Path) -> None:
    clinic(tmp_path)
    cost = {} if scaling == "declared" else {"preprocessing_cost": "ignored"}
    run = simulated(clinic_tree(tmp_path, scaling=scaling, **cost) | {"trials": 2})
    found = effects(run).found
    assert {effect.name for effect in found} == {"age", "sex", "chol"}
    for effect in found:
        for trial in (0, 1):
            scores = moved(run, effect, trial)
            own = effect.curves[trial]
            np.testing.assert_allclose(own - own[:1], scores - scores[:1], rtol=0, atol=1e-12)
            assert np.ptp(own) > 1e-9


def test_a_line_has_the_slope_of_its_coefficient(tmp_path: Path) -> None:
    clinic(tmp_path)
    run = simulated(clinic_tree(tmp_path))
    recipe, slopes = run.predictor().recipe, run.predictor().coefficients()[0][0]
    for name in ("age", "chol"):
        (effect,) = (each for each in effects(run).found if each.name == name)
        assert (effect.points[0], effect.points[-1]) == (
            CLINIC_SCHEMA[name]["lower"],
            CLINIC_SCHEMA[name]["upper"],
        )
        ends = np.array([-1, 1]) * float(slopes[recipe.names.index(name)])
        np.testing.assert_allclose(effect.curves[0, [0, -1], 0], ends, atol=1e-12)
        assert effect.points[16] == pytest.approx({"age": 50, "chol": 200}[name])  # of a log scale too
        assert effect.curves[0, 16, 0] == pytest.approx(0, abs=1e-12)


def test_effects_of_levels_have_mean_zero_and_the_largest_effect_comes_first(tmp_path: Path) -> None:
    clinic(tmp_path)
    found = effects(simulated(clinic_tree(tmp_path))).found
    (sex,) = (each for each in found if each.name == "sex")
    assert list(sex.points) == ["male", "female"]
    np.testing.assert_allclose(sex.curves.sum(1), 0, atol=1e-12)
    sizes = [np.ptp(each.curves[0]) for each in found]
    assert sizes == sorted(sizes, reverse=True)


def test_a_number_is_told_in_its_own_units(tmp_path: Path) -> None:
    clinic(tmp_path)
    run = simulated(clinic_tree(tmp_path, target="age", schema=CLINIC_SCHEMA))
    found = effects(run)
    assert found.of == "predicted age"
    (chol,) = (each for each in found.found if each.name == "chol")
    table = pd.DataFrame([{"chol": c, "sex": "male", "outcome": "ill"} for c in (100.0, 400.0)])
    predicted = run.predictor().predict(table)["prediction"].to_numpy()
    assert chol.curves[0, -1, 0] - chol.curves[0, 0, 0] == pytest.approx(predicted[1] - predicted[0])


def test_a_value_that_would_mean_a_missing_one_is_a_place_of_the_range(tmp_path: Path) -> None:
    clinic(tmp_path)
    schema = CLINIC_SCHEMA | {"age": {"kind": "number", "lower": -9, "upper": 80}}
    found = effects(simulated(clinic_tree(tmp_path, schema=schema, missing=["-9", "NA"])))
    assert {effect.name for effect in found.found} == {"age", "sex", "chol"}


def test_two_classes_of_a_softmax_have_one_curve_and_three_have_three(tmp_path: Path) -> None:
    frame = clinic(tmp_path)
    two = simulated(clinic_tree(tmp_path) | {"problem": "softmax_regression"})
    for effect in effects(two).found:
        scores = moved(two, effect, 0)
        difference = scores[:, 1] - scores[:, 0]
        np.testing.assert_allclose(np.diff(effect.curves[0, :, 0]), np.diff(difference), atol=1e-12)
    frame["outcome"] = np.resize(["well", "ill", "dead"], len(frame))
    frame.to_csv(tmp_path / "clinic.csv", index=False)
    outcome = {"kind": "category", "categories": ["well", "ill", "dead"]}
    asked = clinic_tree(tmp_path, schema=CLINIC_SCHEMA | {"outcome": outcome})
    found = effects(simulated(asked | {"problem": "softmax_regression"}))
    assert found.outputs == ["well", "ill", "dead"]
    for effect in found.found:
        assert effect.curves.shape[-1] == 3
        np.testing.assert_allclose(effect.curves.sum(-1), 0, atol=1e-12)
    assert "class" in table_of(found).columns


IGNORED = {"preprocessing_cost": "ignored"}
NETWORK = {"name": "neural_network", "model": {"name": "mlp", "hidden": [3]}}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"name": "breast_cancer", "pca": 4, **IGNORED}, "logistic_regression"),
        ({"name": "breast_cancer", "record_norm": 2.0}, "logistic_regression"),
        ({"name": "breast_cancer", "scaling": "silo_statistics", **IGNORED}, "logistic_regression"),
        ("digits", "softmax_regression"),  # ten classes
        ("breast_cancer", NETWORK),
    ],
    ids=["components", "one norm", "silos' statistics", "ten classes", "network"],
)
def test_a_model_that_is_no_sum_over_columns_has_none(data: Any, problem: Any) -> None:
    assert effects_of(simulated(tree(data, problem)).results) is None


def test_a_problem_of_others_is_not_loaded_to_make_a_page(tmp_path: Path) -> None:
    run = simulated(tree({"name": "synthetic", "rows": 60, "features": 2}, "logistic_regression"))
    run.save(tmp_path / "run")
    file = tmp_path / "run" / "model.json"
    file.write_text(file.read_text().replace('"logistic_regression"', '"own.py:Loss"'), encoding="utf-8")
    (tmp_path / "run" / "own.py").write_text("raise SystemExit('was run')", encoding="utf-8")
    assert effects_of(read(tmp_path / "run")) is None


def test_the_band_is_of_the_trials(tmp_path: Path) -> None:
    clinic(tmp_path)
    few, many = (effects(simulated(clinic_tree(tmp_path) | {"trials": trials})) for trials in (3, 10))
    for found, ends in ((few, [0, 100]), (many, [5, 95])):
        for effect in found.found:
            np.testing.assert_allclose(effect.band, np.percentile(effect.curves, ends, axis=0))
            assert np.ptp(effect.curves, axis=0).max() > 1e-9
    assert table_of(few).columns[-2:] == ["lowest", "highest"]
    assert table_of(many).columns[-2:] == ["5th percentile", "95th percentile"]
    assert "over 3 trials, each with its own noise and its own split" in few.said[1]


def test_the_page_says_what_the_curves_are_of(tmp_path: Path) -> None:
    clinic(tmp_path)
    invoke("simulate", write(tmp_path, clinic_tree(tmp_path)), "--out", tmp_path / "run")
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    section = text[text.index('<section aria-labelledby="effects">') :].partition("</section>")[0]
    assert "log odds of outcome=ill" in section
    assert "There is one model, and so no band" in section
    assert "costs no further epsilon" in section
    found = effects_of(read(tmp_path / "run"))
    assert found is not None
    for row in table_of(found).rows:
        assert all(f">{cell}</t" in section for cell in row)
    assert (tmp_path / "run" / "figures" / "column-effects.svg").is_file()


def test_only_the_largest_are_drawn_and_the_rest_are_named(tmp_path: Path) -> None:
    run = simulated(tree({"name": "synthetic", "rows": 200, "features": MOST + 2}, "logistic_regression"))
    found = effects(run)
    assert len(found.found) == MOST + 2
    assert len({row[0] for row in table_of(found).rows}) == MOST
    rest = ", ".join(effect.name for effect in found.found[MOST:])
    assert f"Not drawn: 2 columns of smaller effect ({rest})" in found.said
    run.plot("effects")


def test_a_run_without_a_finished_trial_has_none(run_copy: Path, tmp_path: Path) -> None:
    assert effects_of(read(run_copy)) is not None
    with edited(run_copy) as summary:
        summary["trials"] = {"asked": 2, "finished": 0}
    assert effects_of(read(run_copy)) is None
    (run_copy / "model.json").unlink()
    with edited(run_copy) as summary:
        summary["trials"] = {"asked": 2, "finished": 2}
    assert "What the model makes of each column" not in render(read(run_copy), tmp_path)


def test_a_curve_goes_through_its_knots_and_has_mean_zero_on_its_scale(tmp_path: Path) -> None:
    clinic(tmp_path)
    schema = CLINIC_SCHEMA | {
        "age": CLINIC_SCHEMA["age"] | {"encode": {"knots": [20, 30, 60, 80]}},
        "chol": CLINIC_SCHEMA["chol"] | {"encode": {"hats": 5}},
    }
    run = simulated(clinic_tree(tmp_path, schema=schema) | {"trials": 2})
    found = {effect.name: effect for effect in effects(run).found}
    assert list(found["age"].points) == [20, 30, 60, 80]
    np.testing.assert_allclose(found["chol"].points, np.geomspace(100, 400, 5))
    for name in ("age", "chol"):
        effect = found[name]
        assert effect.shown == list(range(len(effect.points)))
        scores, own = moved(run, effect, 1), effect.curves[1]
        np.testing.assert_allclose(own - own[:1], scores - scores[:1], atol=1e-12)
        assert np.ptp(np.diff(own[:, 0])) > 1e-9  # no straight line
        scale = np.asarray(effect.points) if name == "age" else np.log(effect.points)
        assert np.trapezoid(own[:, 0], scale) == pytest.approx(0, abs=1e-12)
    run.plot("effects")
