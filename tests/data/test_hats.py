"""A number as hats: a linear model on them is the piecewise linear curve through its values at the knots."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import TypeAdapter
from support.refusals import ANY, refused

import fedsim
from fedsim.common.errors import InputError
from fedsim.data.federation import load, odd_ranges, outline
from fedsim.data.frame import Frame
from fedsim.data.partition import IidPartition
from fedsim.data.registry import DataConfig
from fedsim.data.schema import NumberColumn, coding, names_of

ONE = IidPartition(num_partitions=1)
KNOTS = [18, 30, 45, 60, 90]
COLUMNS: dict[str, dict[str, Any]] = {
    "even": {"lower": 18, "upper": 90, "encode": {"hats": 8}},
    "knots": {"lower": 18, "upper": 90, "encode": {"knots": KNOTS}},
    "log": {"lower": 0.2, "upper": 15, "scale": "log", "encode": {"hats": 5}},
    "log of knots": {"lower": 0.2, "upper": 15, "scale": "log", "encode": {"knots": [0.2, 1, 4, 15]}},
}
SCENARIO: dict[str, Any] = {
    "name": "hats",
    "seed": 1,
    "data": "breast_cancer",  # given as an object
    "partition": {"name": "iid", "num_partitions": 2},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 1, "step_size": 1.0, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0, "delta": 1e-4},
    "runtime": "inprocess",
}
ILL = {"kind": "category", "categories": ["no", "yes"]}


def column_of(case: str) -> NumberColumn:
    return NumberColumn(kind="number", **COLUMNS[case])


def spread(column: NumberColumn, n: int) -> np.ndarray:
    """Evenly over the range, on its scale, with some values beyond it and all knots."""
    space = np.geomspace if column.scale == "log" else np.linspace
    beyond = [column.lower / 2, column.upper * 2]
    return np.concatenate([space(column.lower, column.upper, n), beyond, np.array(column.knots)])


def frame(values: np.ndarray, column: NumberColumn, **options: Any) -> Frame:
    table = pd.DataFrame({"x": values, "ill": np.where(np.arange(len(values)) % 2, "yes", "no")})
    schema = {"x": column.model_dump(), "ill": ILL}
    return Frame(table, "ill", None, schema, **{"test_fraction": 0.0, **options})


def features(data: Frame) -> np.ndarray:
    """In the order of the table."""
    rows = np.arange(data.open().num_rows)
    return np.asarray(data.open().design(rows).features)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("case", COLUMNS)
def test_a_linear_model_is_the_interpolation_of_its_values_at_the_knots(case: str, intercept: bool) -> None:
    column, rng = column_of(case), np.random.default_rng(3)
    values, knots = spread(column, 500), np.array(column.knots)
    found = features(frame(values, column, intercept=intercept))
    assert found.shape == (len(values), len(knots) - intercept)
    w, b = rng.normal(size=found.shape[1]), rng.normal() if intercept else 0.0
    at_knots = features(frame(knots, column, intercept=intercept)) @ w + b
    if not intercept:
        assert at_knots == pytest.approx(w)
    scale = np.log if column.scale == "log" else np.asarray
    held = np.clip(values, column.lower, column.upper)
    expected = np.interp(scale(held), scale(knots), at_knots)
    assert found @ w + b == pytest.approx(expected, abs=1e-12)
    ranges = frame(values, column, intercept=intercept).open().design(np.arange(2)).ranges
    assert ((found >= ranges.lower) & (found <= ranges.upper)).all()
    assert not ranges.numeric.any()


@pytest.mark.parametrize("case", COLUMNS)
def test_hats_are_at_their_knots_and_add_up_to_one(case: str) -> None:
    column = column_of(case)
    found = features(frame(spread(column, 100), column, intercept=False))
    assert found.sum(axis=1) == pytest.approx(1)
    assert found.min() >= 0
    assert (np.count_nonzero(found, axis=1) <= 2).all()
    at_knots = features(frame(np.array(column.knots), column, intercept=False))
    assert np.allclose(at_knots, np.eye(len(column.knots)), rtol=0, atol=1e-12)
    less = features(frame(spread(column, 100), column))
    assert less == pytest.approx(found[:, 1:] - 1 / len(column.knots))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("case", COLUMNS)
def test_norms_are_the_largest_over_the_range_and_the_mean_over_its_scale(case: str, intercept: bool) -> None:
    column = column_of(case)
    values = spread(column, 200_000)
    data = frame(values, column, intercept=intercept)
    squares = (load(data, ONE, 0, 0).silos[0].train.features ** 2).sum(axis=1)
    norms = outline(data, ONE, 0).squared_norms
    assert norms is not None
    assert squares.max() <= norms[0] * (1 + 1e-12)
    assert (squares.max(), squares.mean()) == pytest.approx(norms, rel=1e-3)


def test_features_of_a_record_are_its_own() -> None:
    """To the last bit, whoever it is prepared with, in training and of a kept model's recipe alike."""
    column = column_of("log")
    values = np.random.default_rng(5).uniform(0.1, 20, 300)
    together, recipe = features(frame(values, column)), load(frame(values, column), ONE, 0, 0).fitted
    assert recipe is not None
    for at in (0, 17, 299):
        alone = features(frame(values[[at, 0]], column))[0]
        assert alone.tobytes() == together[at].tobytes()
        (predicted,) = recipe.features(pd.DataFrame({"x": values[[at]]}))
        assert predicted[:-1].tobytes() == alone.tobytes()


def test_a_missing_value_is_filled_before_it_is_encoded() -> None:
    column = NumberColumn(kind="number", fill="middle", **COLUMNS["even"])
    found = features(frame(np.array([np.nan, 54.0]), column))
    assert np.array_equal(*found)
    with refused("scenario.data.schema.x", None, "row 1"):
        features(frame(np.array([np.nan, 54.0]), column_of("even")))


def test_hats_are_named_by_their_knots() -> None:
    assert names_of("age", column_of("knots"), intercept=False) == [f"age~{knot}" for knot in KNOTS]
    assert names_of("age", column_of("knots"), intercept=True) == [f"age~{knot}" for knot in KNOTS[1:]]
    near = {"lower": 1e6, "upper": 1e6 + 2, "encode": {"hats": 3}}
    assert names_of("t", NumberColumn(kind="number", **near), False) == [
        "t~1000000",
        "t~1000001",
        "t~1000002",
    ]


def test_a_section_reads_back_and_a_range_that_misses_is_told() -> None:
    data = frame(np.full(20, 500.0), column_of("even"))
    source = data.open()
    found = odd_ranges(data, source, source.design(np.arange(20)))
    assert found == ("the declared range [18, 90] of x holds 0 of 20 values: the others count as its ends",)
    dumped = {"name": "csv", "path": "t.csv", "target": "ill", "schema": {"x": column_of("even"), "ill": ILL}}
    section = TypeAdapter(DataConfig).validate_python(dumped)
    for mode in ("python", "json"):
        assert TypeAdapter(DataConfig).validate_python(section.model_dump(mode=mode)) == section


@pytest.mark.parametrize(
    ("encode", "said"),
    [
        ({"hats": 2}, "greater than or equal to 3"),
        ({"hats": 65}, "less than or equal to 64"),
        ({"hats": 8, "knots": KNOTS}, "give one of both"),
        ({}, "give one of both"),
        (8, "give one of both"),
        ({"knots": [18, 90]}, "at least 3"),
        ({"knots": [18, 50, 80]}, "to upper, 90, got 18 to 80"),
        ({"knots": [18, 60, 50, 90]}, "ascend, got 60 before 50"),
        ({"knots": [18, 18, 90]}, "ascend, got 18 before 18"),
        ({"knots": [18, float("nan"), 90]}, "finite"),
    ],
)
def test_knots_that_make_no_sense_are_refused(encode: Any, said: str) -> None:
    column = {"kind": "number", "lower": 18, "upper": 90, "encode": encode}
    with pytest.raises(InputError) as caught:
        Frame(pd.DataFrame({"x": [1.0], "ill": ["no"]}), "ill", None, {"x": column, "ill": ILL})
    assert said in str(caught.value)
    assert "encode" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hats_are_of_features_by_declared_ranges() -> None:
    values, field = spread(column_of("even"), 20), "scenario.data.schema.x.encode"
    for scaling in ("none", "training_statistics", "silo_statistics"):
        with refused(field, {"hats": 8}, f"not {scaling}"):
            frame(values, column_of("even"), scaling=scaling, preprocessing_cost="ignored").open()
    table = pd.DataFrame({"x": values, "ill": "no"})
    table.loc[0, "ill"] = "yes"
    schema = {"x": column_of("even").model_dump(), "ill": ILL}
    with refused(field, ANY, "is the target"):
        Frame(table, "x", None, schema).open()


def test_principal_components_and_one_norm_take_hats() -> None:
    values = spread(column_of("even"), 50)
    less = load(frame(values, column_of("even"), pca=3, preprocessing_cost="ignored"), ONE, 0, 0)
    assert less.num_features == 4
    found = load(frame(values, column_of("even"), record_norm=2.0), ONE, 0, 0).silos[0].train.features
    assert (found[:, :-1] ** 2).sum(axis=1) == pytest.approx(4)


def test_a_run_learns_a_curve_that_predicts_alike_everywhere() -> None:
    """A risk in the middle of a range, which no straight line sees; all that the model goes to sees it."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"x": rng.uniform(18, 90, 600)})
    table["ill"] = np.where(np.abs(table["x"] - 54) < 18, "yes", "no")
    error = {}
    change = {"algorithm.num_rounds": 60, "algorithm.step_size": 4.0, "algorithm.clip_norm": 1.0}
    for case in ("straight", "curved"):
        column = column_of("even") if case == "curved" else column_of("even").straight
        data = Frame(table, "ill", None, {"x": column.model_dump(), "ill": ILL})
        run = fedsim.simulate(SCENARIO, change, data=data, trials=1, epsilon=8.0)
        predicted = run.predict(table)
        error[case] = float((predicted["prediction"] != table["ill"]).mean())
    assert error["curved"] < 0.1 < 0.3 < error["straight"]
    likely = predicted["probability yes"]
    assert run.to_sklearn().predict_proba(table)[:, 1] == pytest.approx(likely)
    prepared = torch.as_tensor(run.predictor().features(table))
    assert torch.sigmoid(run.to_torch()(prepared))[:, 0].detach().numpy() == pytest.approx(likely)
    assert run.predictor().recipe.names == [*names_of("x", column_of("even"), True), "1"]


def test_a_release_is_of_the_numbers_themselves() -> None:
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"x": rng.uniform(18, 90, 500), "ill": np.where(rng.random(500) < 0.5, "no", "yes")})
    found = []
    for column in (column_of("even"), column_of("even").straight):
        data = Frame(table, "ill", None, {"x": column.model_dump(), "ill": ILL})
        asked = {"x": [fedsim.Mean(), fedsim.Quantiles(0.25, 0.5, 0.75)], "ill": fedsim.Histogram()}
        found.append(fedsim.release(SCENARIO, asked, epsilon=5.0, data=data).values)
    assert found[0] == found[1]


def test_a_schema_of_a_file_may_have_hats(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "x: {kind: number, lower: 18, upper: 90, encode: {knots: [18, 40, 90]}}\n"
        "ill: {kind: category, categories: ['no', 'yes']}\n"
    )
    (tmp_path / "t.csv").write_text("x,ill\n40,yes\n18,no\n")
    section = {"name": "csv", "path": str(tmp_path / "t.csv"), "target": "ill"}
    data = TypeAdapter(DataConfig).validate_python({**section, "schema": str(tmp_path / "s.yaml")})
    found = data.open().design(np.arange(2)).features
    assert np.array_equal(found, coding(3, intercept=True)[[1, 0]])
