"""A drafted schema has the constants of a person, reads its table, and leaves out what is no feature."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hard_tables import clinic, houses, written

from fedsim.common.errors import InputError
from fedsim.common.serialise import from_yaml
from fedsim.data.csv_table import Csv
from fedsim.data.drafting import Draft, draft, is_uneven, problem_of
from fedsim.data.federation import load, odd_ranges
from fedsim.data.partition import IidPartition
from fedsim.data.schema import DEFAULTS, Reading
from fedsim.data.table import open_tables

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
        "flag": pa.array(RNG.integers(0, 2, ROWS)),
    }
)


def of(paths: Path | list[Path], target: str, silo: str | None = None, reading: Reading = DEFAULTS) -> Draft:
    table, silo = open_tables(paths, "path", reading, silo)
    return draft(table, target, silo, reading)


@pytest.fixture(params=["csv", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / f"table.{request.param}"
    (pa_csv.write_csv if request.param == "csv" else pq.write_table)(TABLE, made)
    return made


@pytest.mark.parametrize(
    ("target", "classes", "problem"),
    [
        ("charges", 0, "linear_regression"),
        ("level", 3, "softmax_regression"),
        ("insured", 2, "logistic_regression"),
        ("flag", 2, "logistic_regression"),
    ],
)
def test_a_table_loads_with_its_draft(path: Path, target: str, classes: int, problem: str) -> None:
    made = of(path, target)
    assert from_yaml(made.yaml) == made.schema
    assert list(made.schema)[-1] == target
    assert problem_of(made.target) == problem
    data = Csv(path=path, target=target, schema=made.schema)
    federation = load(data, IidPartition(num_partitions=3), 0, 0)
    assert federation.num_classes == classes
    assert max(np.abs(silo.train.features).max() for silo in federation.silos) <= 1


def test_what_is_no_feature_is_left_out_with_the_reason(path: Path) -> None:
    made = of(path, "level")
    assert set(made.schema) == {"bmi", "children", "smoker", "insured", "charges", "level", "flag"}
    assert set(made.left_out) == {"id", "name", "empty", "constant"}
    for name, reason in made.left_out.items():
        assert f"# {name!r} is left out: {reason}\n" in made.yaml
    assert "record number" in made.left_out["id"]


def test_missing_values_count_as_a_round_number_or_as_a_category(path: Path) -> None:
    made = of(path, "level")
    filled = {name: entry["fill"] for name, entry in made.schema.items() if "fill" in entry}
    assert filled == {"bmi": 26, "smoker": "missing"}
    assert made.schema["smoker"]["categories"] == ["no", "yes", "missing"]
    assert made.remarks["bmi"] == "10 of 90 records have no value"
    assert "# 'bmi': 10 of 90 records have no value\n" in made.yaml


def test_numbers_of_0_and_1_are_a_category(path: Path) -> None:
    assert of(path, "level").schema["flag"] == {"kind": "category", "categories": ["0", "1"]}


def column(*numbers: float, more: int = 0) -> dict[str, Any]:
    """The entry of a column with these numbers, as `init` drafts it from Parquet."""
    from fedsim.data.drafting import _entry
    from fedsim.data.inspection import survey
    from fedsim.data.table import ArrowTable

    return _entry(survey(ArrowTable("table", pa.table({"x": list(numbers)}), "table"), "x", DEFAULTS))[0]


@pytest.mark.parametrize(
    ("numbers", "lower", "upper"),
    [
        ([17, 23, 90], 15, 90),
        ([1894, 1950, 2023], 1890, 2030),
        ([0, 1, 2, 5], 0, 5),
        ([0.846153, 3.1, 7.77], 0.5, 8),
        ([32.54, 35.0, 41.95], 32.5, 42),
        ([-2.6, 0.0, 6.2], -3, 6.5),
        ([-0.013, 0.0, 0.022], -0.014, 0.022),
        ([1.5e6, 1.9e6, 3.2e6], 1.5e6, 3.2e6),
    ],
)
def test_ranges_are_round(numbers: list[float], lower: float, upper: float) -> None:
    assert column(*numbers) == {"kind": "number", "lower": lower, "upper": upper}


@given(
    st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=50).filter(
        lambda each: max(each) - min(each) > 1e-3
    )
)
def test_a_range_is_short_to_write_and_loses_little(numbers: list[float]) -> None:
    entry = column(*numbers)
    if entry.get("scale") == "log" or entry["kind"] == "category":
        return
    lower, upper = entry["lower"], entry["upper"]
    span = max(numbers) - min(numbers)
    assert lower <= np.quantile(numbers, 0.005) + 1e-8 * span
    assert upper >= np.quantile(numbers, 0.995) - 1e-8 * span
    assert upper - lower <= 1.3 * span
    if span < 0.1 * max(map(abs, numbers)):
        return
    assert all(len(f"{end:.15g}".strip("0").replace(".", "").strip("-0")) <= 4 for end in (lower, upper))


def test_heavy_tails_are_cut_or_have_a_logarithmic_scale(tmp_path: Path) -> None:
    table = houses()
    made = of(written(table, tmp_path / "houses.csv"), "Price")
    rooms, people, sold = (made.schema[name] for name in ("AveRooms", "Population", "Sold"))
    assert rooms["upper"] < 12
    assert "scale" not in rooms
    assert "lie beyond the range" in made.remarks["AveRooms"]
    assert people["scale"] == "log"
    assert people["upper"] / people["lower"] >= 20
    assert sold["scale"] == "log"
    assert f"{(table['Sold'] == 0).sum():,} zeros" in made.remarks["Sold"]
    assert made.schema["Latitude"] == {"kind": "number", "lower": 32.5, "upper": 42}
    data = Csv(path=tmp_path / "houses.csv", target="Price", schema=made.schema)
    source = data.open()
    design = source.design(np.arange(source.num_rows))
    assert odd_ranges(data, source, design) == ()
    silos = load(data, IidPartition(num_partitions=1), 0, 0).silos
    spread = silos[0].train.features[:, :-1].std(axis=0)
    assert (spread > 0.2).all(), spread  # of the 0.577 that uniform features have


def test_a_clinic_s_table_is_understood(tmp_path: Path) -> None:
    made = of(written(clinic(), tmp_path / "clinic.csv"), "ill", "hospital")
    assert set(made.left_out) == {"patient_id", "admitted", "remark", "hospital"}
    assert made.schema["cigarettes"]["kind"] == "number"
    assert made.schema["glucose"]["upper"] < 200  # one in a hundred has three times the others' value
    assert made.schema["marker"]["scale"] == "log"
    assert made.schema["male"] == {"kind": "category", "categories": ["0", "1"]}
    assert is_uneven(made.target)


MARKED = (
    "dose,visit,age,level\n1.5,2024-01-31,30,0\nNA,1.2.2024,-,1\n.,?,N/A,0\n2.5,2024-01-31,unknown,1\n"
    + ("2.0,2024-02-01,41,0\n" * 20)
)


def test_numbers_are_seen_behind_markers_and_the_rest_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text(MARKED)
    made = of(file, "level")
    assert made.schema["dose"] == {"kind": "number", "lower": 1.5, "upper": 2.5, "fill": 2}
    assert made.left_out["visit"].startswith("it holds dates or times, such as '2024-01-31'; make a number")
    assert made.left_out["age"].startswith(
        "it holds numbers, and 'unknown' in 1 of 24 records: if that means"
    )
    told = of(file, "level", reading=Reading(missing=["NA", "N/A", "-", ".", "?", "unknown"]))
    assert told.schema["age"] == {"kind": "number", "lower": 30, "upper": 41, "fill": 41}


def test_files_of_several_silos_make_one_draft(tmp_path: Path) -> None:
    for name, rows in (("a", "1;2,5\n2;3,5\n"), ("b", "3;9,5\n4;8,5\n")):
        (tmp_path / f"{name}.csv").write_text("level;dose\n" + rows)
    made = of([tmp_path / "a.csv", tmp_path / "b.csv"], "level", reading=Reading(decimal=","))
    assert made.schema["dose"] == {"kind": "number", "lower": 2.5, "upper": 9.5}


@pytest.mark.parametrize(
    ("target", "silo", "field", "hint"),
    [
        ("levels", None, "target", "did you mean 'level'"),
        ("name", None, "target", "90 different texts"),
        ("smoker", None, "target", "13 of 90 records have no value"),
        ("empty", None, "target", "no values"),
        ("constant", None, "target", "all its values are equal"),
        ("level", "bmi", "silo", "10 of 90 records have no value there"),
        ("level", "constant", "silo", "names one silo"),
        ("level", "level", "silo", "is the target"),
    ],
)
def test_a_column_that_is_no_use_is_named(
    path: Path, target: str, silo: str | None, field: str, hint: str
) -> None:
    with pytest.raises(InputError) as refused:
        of(path, target, silo)
    assert (refused.value.field, refused.value.value) == (field, target if field == "target" else silo)
    assert hint in refused.value.hint
