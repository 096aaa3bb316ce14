"""The draft of a schema reads its own table, and warns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml

from fedsim.common.errors import InputError
from fedsim.data.csv_table import Csv
from fedsim.data.draft import draft_schema
from fedsim.data.federation import load
from fedsim.data.partition import IidPartition
from fedsim.data.schema import Reading

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


def test_missing_values_get_a_fill_that_no_record_has_a_say_in(path) -> None:
    draft = draft_schema(path, "level")
    entries = yaml.safe_load(draft)
    filled = {name: entry["fill"] for name, entry in entries.items() if "fill" in entry}
    assert filled == {"bmi": "middle", "smoker": "missing"}
    assert entries["smoker"]["categories"] == ["no", "yes", "missing"]
    assert "CONFIRM each" in draft
    assert "# 'bmi': 10 of 90 records have no value" in draft
    complete = draft_schema(path, "level", silo="bmi").replace("smoker", "")
    assert "# 'bmi' is left out: it names the silo" in complete


MARKED = (
    "dose,visit,age,level\n1.5,2024-01-31,30,0\nNA,1.2.2024,-,1\n.,?,N/A,0\n2.5,2024-01-31,unknown,1\n"
    + ("2.0,2024-02-01,41,0\n" * 20)
)


def test_numbers_are_seen_behind_markers_and_the_rest_is_explained(tmp_path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(MARKED)
    draft = draft_schema(path, "level")
    assert yaml.safe_load(draft)["dose"] == {"kind": "number", "lower": 1.5, "upper": 2.5, "fill": "middle"}
    assert "# 'visit' is left out: it holds dates or times, such as '2024-01-31'; make a number" in draft
    assert (
        "# 'age' is left out: it holds numbers, and 'unknown' in 1 of 24 records: if that means no value"
        in draft
    )
    told = draft_schema(path, "level", Reading(missing=["NA", "N/A", "-", ".", "?", "unknown"]))
    assert yaml.safe_load(told)["age"] == {"kind": "number", "lower": 30, "upper": 41, "fill": "middle"}
    assert "# The scenario's data section needs: missing: [NA, N/A, '-', ., '?', unknown]" in told


def test_files_of_several_silos_make_one_draft(tmp_path) -> None:
    for name, rows in (("a", "1;2,5\n2;3,5\n"), ("b", "3;9,5\n4;8,5\n")):
        (tmp_path / f"{name}.csv").write_text("level;dose\n" + rows)
    draft = draft_schema([tmp_path / "a.csv", tmp_path / "b.csv"], "level", Reading(decimal=","))
    assert yaml.safe_load(draft)["dose"] == {"kind": "number", "lower": 2.5, "upper": 9.5}
    assert "# 'silo' is left out: it names the silo" in draft


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("levels", r"^target: 'levels'.*did you mean 'level'"),
        ("name", "cannot be predicted: it has 90 different texts"),
        ("smoker", "cannot be predicted: 13 of 90 records have no value; remove them first"),
        ("empty", "cannot be predicted: it has no values"),
        ("constant", "cannot be predicted: all its values are equal"),
    ],
)
def test_a_column_that_is_no_target_is_named(path, target: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draft_schema(path, target)
