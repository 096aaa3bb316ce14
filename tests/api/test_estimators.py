"""`fedsim.FederatedClassifier` and `FederatedRegressor` where scikit-learn uses estimators."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from support.refusals import refused

import fedsim

RANGES = {
    "age": {"kind": "number", "lower": 20, "upper": 80},
    "ward": {"kind": "category", "categories": ["a", "b"]},
}
FAST = {"algorithm.num_rounds": 10}


def records(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = {"age": rng.integers(20, 80, n), "ward": rng.choice(list("ab"), n)}
    return pd.DataFrame({**columns, "clinic": rng.choice(["north", "south"], n)})


def labels(table: pd.DataFrame) -> np.ndarray:
    return np.where(table["age"] > 50, "old", "new")


def classifier(**more: Any) -> fedsim.FederatedClassifier:
    given = {"silo": "clinic", "epsilon": 8.0, "schema": RANGES, "overrides": FAST, "random_state": 1} | more
    return fedsim.FederatedClassifier(**given)


def test_a_classifier_predicts_its_own_classes_in_sorted_order() -> None:
    table = records()
    model = classifier().fit(table, labels(table))
    assert model.classes_.tolist() == ["new", "old"]
    assert [silo.name for silo in model.run_.summary.privacy.silos] == ["north", "south"]
    assert 7.9 < model.epsilon_ <= 8
    proba = model.predict_proba(table.drop(columns="clinic"))
    assert np.allclose(proba.sum(1), 1)
    assert set(model.predict(table)) == {"new", "old"}
    assert model.score(table, labels(table)) > 0.85
    assert np.corrcoef(proba[:, 1], table["age"])[0, 1] > 0.8


@pytest.mark.parametrize("classes", [[False, True], [7, 3, 11], [0.5, 1.5]])
def test_classes_of_any_type_come_back_as_they_were(classes: list[Any]) -> None:
    table = records()
    y = np.array(classes)[table["age"] % len(classes)]
    model = classifier().fit(table, y)
    assert model.classes_.tolist() == sorted(classes)
    assert model.predict(table).dtype == y.dtype


def test_a_regressor_predicts_in_the_units_of_y() -> None:
    table = records()
    y = 1000 + 10 * table["age"].to_numpy()
    schema = RANGES | {"target": {"kind": "number", "lower": 1000, "upper": 2000}}
    model = fedsim.FederatedRegressor("clinic", epsilon=20.0, schema=schema, random_state=1).fit(table, y)
    assert model.score(table, y) > 0.9


def test_an_array_names_its_silo_by_the_number_of_a_column() -> None:
    table = records()
    values = np.column_stack([table["age"], table["clinic"] == "north"]).astype(float)
    model = classifier(silo=1, schema={"x0": RANGES["age"]}).fit(values, labels(table))
    assert model.n_features_in_ == 2
    assert model.score(values, labels(table)) > 0.85


def test_it_is_cloned_seeded_and_cross_validated_in_a_pipeline() -> None:
    table = records()
    model = classifier()
    assert clone(model).get_params() == model.get_params()
    first, second = (clone(model).fit(table, labels(table)) for _ in range(2))
    np.testing.assert_array_equal(first.predict_proba(table), second.predict_proba(table))
    dropped = FunctionTransformer(lambda X: X.drop(columns="ward"))
    pipeline = make_pipeline(dropped, classifier(schema={"age": RANGES["age"]}))
    assert cross_val_score(pipeline, table, labels(table), cv=3, scoring="roc_auc").min() > 0.9


def test_ranges_that_are_read_from_records_are_warned_of() -> None:
    table = records()
    with pytest.warns(UserWarning, match="read from the records"):
        model = classifier(schema=None).fit(table, labels(table))
    assert any("read from the records" in notice for notice in model.run_.summary.privacy.notices)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        classifier().fit(table, labels(table))


def test_an_algorithm_of_ones_own_takes_the_place_of_the_automatic_one() -> None:
    from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD

    table = records()
    mine = NoisyMinibatchSGD(num_rounds=3, step_size=1.0, clip_norm=1.0)
    assert classifier(algorithm=mine).fit(table, labels(table)).run_.summary.rounds == 3


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"silo": "hospital"}, "silo"),
        ({"silo": 9}, "silo"),
        ({"epsilon": -1.0}, "scenario.privacy.epsilon"),
        ({"overrides": {"algorithm.steps": 1}}, "scenario.algorithm.steps"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], field: str) -> None:
    with refused(field):
        classifier(**given).fit(records(), labels(records()))


def test_wrong_targets_are_named() -> None:
    table = records()
    for y in (["one"] * len(table), labels(table)[:5]):
        with refused("y"):
            classifier().fit(table, y)
    with refused("X", "target"):
        classifier().fit(table.assign(target=1), labels(table))


def test_it_must_be_fitted_first() -> None:
    with pytest.raises(NotFittedError):
        classifier().predict(records())
