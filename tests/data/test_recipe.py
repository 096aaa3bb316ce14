"""A recipe prepares a table's records as training prepared them, for every data set."""

import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from pydantic import Field
from support.refusals import refused

from fedsim.common.errors import InputError
from fedsim.data.arrays import Arrays, Npz
from fedsim.data.builtin import BreastCancer, Digits, Synthetic
from fedsim.data.csv_table import Csv
from fedsim.data.dataset import Dataset
from fedsim.data.federation import Federation, load
from fedsim.data.partition import IidPartition
from fedsim.data.recipe import Fitted, Recipe, declared_recipe
from fedsim.data.schema import MeasuredColumn, NumberColumn
from fedsim.data.source import Design, Labels, Ranges, Source
from fedsim.data.transform import Transform

ALONE = IidPartition(num_partitions=1)


class Scales(Dataset):
    """Coins by weight, as another distribution brings them: a source that is no matrix."""

    name: Literal["scales"] = Field("scales")
    upper: float = 3.0

    def open(self) -> Source:
        return Weights(self.upper)


class Weights(Source):
    target, columns = "false", ("weight", "worn", "false")
    num_rows, num_features, num_classes = 40, 2, 2

    def __init__(self, upper: float) -> None:
        self._weight, self._upper = np.linspace(0.5, 3.5, 40), upper

    def keys(self, column, field):
        return self._weight

    def labels(self, column, field):
        return Labels((self._weight > 2).astype(np.int64), ("no", "yes"))

    def design(self, rows):
        weight = self._weight[rows]
        ranges = Ranges(
            *np.array([[1.0, 0.0], [self._upper, 1.0]]), np.zeros(2, bool), np.array([True, False])
        )
        return Design(np.stack([weight, weight > 3], 1), ranges, (weight > 2).astype(np.int64), None)


def _arrays(**options: Any) -> Arrays:
    rng = np.random.default_rng(0)
    return Arrays(rng.normal(size=(30, 3)), rng.normal(size=30), **options)


DATA: dict[str, Callable[[], Dataset]] = {
    "breast cancer": BreastCancer,
    "standardised": lambda: BreastCancer(scaling="training_statistics"),
    "digits": lambda: Digits(task="parity", intercept=False),
    "components": lambda: Digits(pca=5),
    "of one norm": lambda: Digits(pca=5, record_norm=2.0),
    "a transform": lambda: Digits(transform=Transform(dct=9, crop=5), scaling="none"),
    "a transform of one norm": lambda: Digits(transform=Transform(dct=9), record_norm=2.0),
    "both": lambda: BreastCancer(scaling="training_statistics", pca=3),
    "unscaled": lambda: Synthetic(rows=30, features=3, link="linear", scaling="none"),
    "synthetic": lambda: Synthetic(rows=30, features=3, link="softmax"),
    "arrays": _arrays,
    "arrays with ranges": lambda: _arrays(ranges=(-1, 1)),
    "a plug-in": Scales,
    "a plug-in, standardised": lambda: Scales(scaling="training_statistics"),
}


def raw(data: Dataset, recipe: Recipe) -> Any:
    """The records before they are prepared, as a table."""
    if isinstance(data, Csv):
        return data.path
    source = data.open()
    values = source.design(np.arange(source.num_rows)).features
    return pd.DataFrame(values, columns=list(recipe.columns))


def trained_on(federation: Federation) -> list[tuple[float, ...]]:
    parts = [part for silo in federation.silos for part in (silo.train.features, silo.test.features)]
    return sorted(map(tuple, np.concatenate(parts)))


def assert_prepares_alike(data: Dataset) -> Fitted:
    federation = load(data, ALONE, 0, 0)
    fitted = federation.fitted
    again = Recipe.model_validate_json(fitted.recipe.model_dump_json())
    assert again == fitted.recipe
    known = Fitted(again, fitted.standard, fitted.components)
    features = known.features(raw(data, again))
    assert sorted(map(tuple, features)) == trained_on(federation)
    assert again.num_features == len(again.names) == federation.num_features
    assert len(again.classes) == federation.num_classes
    return fitted


@pytest.mark.parametrize("name", DATA)
def test_records_are_prepared_bit_for_bit_as_in_training(name: str) -> None:
    data = DATA[name]()
    fitted = assert_prepares_alike(data)
    assert (fitted.standard is not None) == (data.scaling == "training_statistics")
    assert (fitted.components is not None) == (data.pca is not None)


@pytest.mark.parametrize("target", ["outcome", "chol"])
def test_a_table_is_read_by_its_schema(make_csv, target: str) -> None:
    data = make_csv(target=target, silo_column=None)
    recipe = assert_prepares_alike(data).recipe
    assert recipe == declared_recipe(data, recipe.num_features, len(recipe.classes))
    assert declared_recipe(data, recipe.num_features + 1, len(recipe.classes)) is None
    gone = make_csv(target=target, silo_column=None, schema=data.path.parent / "gone.yaml")
    assert declared_recipe(gone, recipe.num_features, len(recipe.classes)) is None
    assert recipe.names[:2] == ["age", "sex=male"]
    assert recipe.classes == (("well", "ill") if target == "outcome" else ())


def test_an_npz_file_has_columns_too(tmp_path) -> None:
    np.savez(tmp_path / "own.npz", features=np.eye(4), target=np.array([0, 1, 2, 0]))
    recipe = assert_prepares_alike(Npz(path=tmp_path / "own.npz", intercept=False)).recipe
    assert list(recipe.columns) == ["x0", "x1", "x2", "x3"]
    assert set(recipe.columns.values()) == {MeasuredColumn()}
    assert recipe.classes == ("0", "1", "2")


def test_names_are_the_data_sets_own() -> None:
    recipe = load(BreastCancer(), ALONE, 0, 0).fitted.recipe
    assert recipe.names[0] == "mean radius"
    assert recipe.columns["mean radius"] == NumberColumn(kind="number", lower=6.981, upper=28.11, scale="log")
    assert (recipe.target, recipe.classes) == ("diagnosis", ("malignant", "benign"))
    coins = load(Scales(), ALONE, 0, 0).fitted.recipe
    assert coins.classes == ("no", "yes")
    assert coins.names == ["weight", "worn", "1"]
    assert coins.columns["worn"] == MeasuredColumn(scaled=False)


def test_a_number_is_given_back_in_its_own_units(make_csv) -> None:
    data = make_csv(target="chol", silo_column=None)
    by = load(data, ALONE, 0, 0).fitted.preparation
    values = np.array([100.0, 233.0, 400.0])
    assert by.target(values)[[0, 2]].tolist() == [-1, 1]
    assert by.number(by.target(values)) == pytest.approx(values, rel=1e-14)
    plain = load(make_csv(target="chol", silo_column=None, scaling="none"), ALONE, 0, 0).fitted.preparation
    assert plain.number(values).tolist() == values.tolist()


def test_what_everybody_has_is_declared() -> None:
    for data in (BreastCancer(), Digits(), Synthetic(rows=30, features=3, link="linear")):
        known = load(data, ALONE, 0, 0)
        recipe = declared_recipe(data, known.num_features, known.num_classes)
        assert recipe == known.fitted.recipe
    assert declared_recipe(Scales(), 3, 2) is None
    assert declared_recipe(_arrays(), 4, 0) is None


def test_ranges_that_make_no_sense_are_named() -> None:
    with pytest.raises(InputError, match=re.escape("range of weight: [1.0, 0.5]")):
        load(Scales(upper=0.5), ALONE, 0, 0)


def test_what_a_table_lacks_or_has_wrong_is_named(make_csv) -> None:
    data = make_csv(silo_column=None)
    fitted = load(data, ALONE, 0, 0).fitted
    table = pd.read_csv(data.path)
    with refused("table", "sex", "no such column", "did you mean 'sx'"):
        fitted.features(table.rename(columns={"sex": "sx"}))
    with refused("table.sex", "men", "row 1: not a declared category"):
        fitted.features(table.assign(sex="men"))
    with refused("table.age", None, "row 2: no value"):
        fitted.features(table.assign(age=[1.0, None, 3, 4, 5, 6]))


def test_what_means_no_value_still_does(make_csv) -> None:
    data = make_csv(silo_column=None, missing=["?", "NaN", "unknown"])
    fitted = load(data, ALONE, 0, 0).fitted
    assert fitted.recipe.reading.missing == ("?", "NaN", "unknown")
    frame = pd.DataFrame({"age": [30, 30], "sex": ["male"] * 2, "chol": ["unknown", 200]})
    first, second = fitted.features(frame)
    assert np.array_equal(first, second)
