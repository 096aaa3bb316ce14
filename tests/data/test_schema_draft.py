"""The draft of a schema reads its own table, and warns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml

from fedsim.common.errors import InputError
from fedsim.data.by_count import IidPartition
from fedsim.data.csv_table import Csv
from fedsim.data.draft import draft_schema
from fedsim.data.federation import load

ROWS = 90
RNG = np.random.default_rng(0)
TABLE = pa.table(
    {
        "id": pa.array(range(100, 100 + ROWS)),
        "bmi": pa.array(
            [None if k % 9 == 0 else v for k, v in enumerate(RNG.normal(25, 4, ROWS))], pa.float64()
        ),
        "children": pa.array(RNG.integers(0, 4, ROWS)),
        "smoker": pa.array([None if k % 7 == 0 else ("no", "yes")[k % 2] for k in range(ROWS)]),
        "insured": pa.array([k % 3 == 0 for k in range(ROWS)]),
        "name": pa.array([f"person {k}" for k in range(ROWS)]),
        "empty": pa.nulls(ROWS, pa.float64()),
        "constant": pa.array([3.0] * ROWS),
        "charges": pa.array(RNG.lognormal(9, 1, ROWS)),
        "level": pa.array(RNG.integers(0, 3, ROWS)),
    }
)


@pytest.fixture(params=["csv", "parquet"])
def path(request, tmp_path):
    path = tmp_path / f"table.{request.param}"
    (pa_csv.write_csv if request.param == "csv" else pq.write_table)(TABLE, path)
    return path


@pytest.mark.parametrize(("target", "classes"), [("charges", 0), ("level", 3), ("insured", 2)])
def test_a_table_loads_with_its_draft(path, target: str, classes: int) -> None:
    draft = draft_schema(path, target)
    entries = yaml.safe_load(draft)
    assert list(entries)[-1] == target
    file = path.with_suffix(".yaml")
    file.write_text(draft)
    for schema in (file, entries):
        federation = load(Csv(path=path, target=target, schema=schema), IidPartition(num_partitions=3), 0, 0)
        assert federation.num_classes == classes
        assert max(np.abs(silo.train_features).max() for silo in federation.silos) <= 1


def test_the_draft_says_that_it_is_not_private(path) -> None:
    first = draft_schema(path, "level").splitlines()[0]
    assert first.startswith("#")
    assert "DERIVED FROM THE DATA" in first
    assert "NOT PRIVATE" in first


def test_the_draft_leaves_out_what_is_no_feature_and_says_why(path) -> None:
    draft = draft_schema(path, "level")
    assert set(yaml.safe_load(draft)) == {"bmi", "children", "smoker", "insured", "charges", "level"}
    for remark in (
        "# 'id' is left out: it looks like a record number",
        "# 'name' is left out: it has 90 different texts",
        "# 'empty' is left out: it has no values",
        "# 'constant' is left out: all its values are equal",
    ):
        assert remark in draft


def test_missing_values_get_a_fill_and_others_none(path) -> None:
    entries = yaml.safe_load(draft_schema(path, "level"))
    assert {name for name, entry in entries.items() if "fill" in entry} == {"bmi", "smoker"}
    assert entries["smoker"]["categories"] == ["no", "yes"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("levels", r"^target: 'levels'.*did you mean 'level'"),
        ("name", "cannot be predicted: it has 90 different texts"),
        ("smoker", "cannot be predicted: some records have no value"),
        ("empty", "cannot be predicted: it has no values"),
        ("constant", "cannot be predicted: all its values are equal"),
    ],
)
def test_a_column_that_is_no_target_is_named(path, target: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draft_schema(path, target)
