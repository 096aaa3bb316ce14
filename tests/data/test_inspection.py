"""The first look at a table counts what is there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedsim.common.errors import InputError
from fedsim.data.inspection import inspect
from fedsim.data.schema import Reading

FRAME = pd.DataFrame(
    {
        "id": range(100, 160),
        "age": [None if k % 10 == 0 else 20 + k for k in range(60)],
        "ward": [("north", "south", None)[k % 3] for k in range(60)],
        "day": pd.date_range("2024-01-01", periods=60),
        "nothing": [None] * 60,
        "cost": np.linspace(0, 1, 60),
        "ill": [int(k % 4 == 0) for k in range(60)],
    }
)


@pytest.fixture(params=["csv", "parquet"])
def path(request, tmp_path):
    path = tmp_path / f"table.{request.param}"
    if request.param == "csv":
        FRAME.to_csv(path, index=False, sep=";", na_rep="NA")
    else:
        FRAME.to_parquet(path)
    return path


def test_columns_are_counted(path) -> None:
    found = inspect(path)
    assert (found.records, found.target, found.silos) == (60, None, None)
    columns = {column.name: column for column in found.columns}
    assert list(columns) == list(FRAME.columns)
    kinds = {name: column.kind for name, column in columns.items()}
    assert kinds == {
        "id": "number",
        "age": "number",
        "ward": "category",
        "day": "date",
        "nothing": "empty",
        "cost": "number",
        "ill": "number",
    }
    assert {name: column.missing for name, column in columns.items() if column.missing} == {
        "age": 6,
        "ward": 20,
        "nothing": 60,
    }
    assert (columns["age"].lower, columns["age"].upper, columns["age"].distinct) == (21, 79, 54)
    assert columns["ward"].values == {"north": 20, "south": 20}
    assert {name for name, column in columns.items() if column.remark} == {"id", "day", "nothing"}


def test_a_class_is_balanced_within_each_silo(path) -> None:
    found = inspect(path, "ill", "ward")
    assert found.target is not None
    assert found.target.classes == {"0": 45, "1": 15}
    assert found.silos is not None
    assert found.silos.without == 20
    assert [(silo.name, silo.records, silo.classes) for silo in found.silos.sizes] == [
        ("north", 20, {"0": 15, "1": 5}),
        ("south", 20, {"0": 15, "1": 5}),
    ]


def test_a_number_has_quantiles_and_means(path) -> None:
    found = inspect(path, "cost", "ward")
    assert found.target is not None
    assert found.silos is not None
    assert found.target.mean == pytest.approx(0.5)
    assert list((found.target.quantiles or {}).values()) == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    wards = FRAME.groupby("ward")["cost"].mean()
    assert [silo.mean for silo in found.silos.sizes] == pytest.approx(list(wards))


def test_a_file_for_each_silo_has_sizes_without_a_column(tmp_path) -> None:
    for name, count in (("a", 3), ("b", 5)):
        FRAME.head(count).to_csv(tmp_path / f"{name}.csv", index=False)
    found = inspect([tmp_path / "a.csv", tmp_path / "b.csv"], "ill")
    assert found.silos is not None
    assert [(silo.name, silo.records) for silo in found.silos.sizes] == [("a", 3), ("b", 5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "il"}, r"^target: 'il'.*did you mean 'ill'"),
        ({"silo": "wards"}, r"^silo: 'wards'.*did you mean 'ward'"),
        ({"reading": Reading(delimiter="|")}, None),
    ],
)
def test_a_column_that_is_not_there_is_named(path, options, message) -> None:
    if message is None:
        assert len(inspect(path, **options).columns) in (1, len(FRAME.columns))  # Parquet has no delimiter
        return
    with pytest.raises(InputError, match=message):
        inspect(path, **options)
