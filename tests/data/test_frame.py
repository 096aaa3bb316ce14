"""A data frame, or what the library `datasets` reads, is a table like a file: same schema, silos, model."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from support.hard_tables import clinic, written
from support.refusals import refused
from support.scenarios import BASE, invoke

import fedsim
from fedsim.common.serialise import from_yaml
from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.csv_table import DRAFTED, Csv
from fedsim.data.federation import load
from fedsim.data.frame import Frame
from fedsim.data.registry import data_sets

TABLE = clinic(300)
KINDS = ["pandas", "polars", "arrow"]


def as_kind(kind: str, table: pd.DataFrame = TABLE) -> Any:
    if kind == "polars":
        polars = pytest.importorskip("polars")
        return polars.DataFrame({name: table[name].tolist() for name in table})
    return pa.Table.from_pandas(table, preserve_index=False) if kind == "arrow" else table


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_is_read_as_its_file(kind: str, tmp_path: Path) -> None:
    frame = Frame(as_kind(kind), "ill", "hospital")
    assert frame.drafted
    file = Csv(
        path=written(TABLE, tmp_path / "table.csv"),
        target="ill",
        silo_column="hospital",
        schema=frame.columns,
    )
    mine, its = (load(data, NaturalIdPartition(), 0, 0) for data in (frame, file))
    assert mine.digest == its.digest
    assert mine.fitted.recipe.columns == its.fitted.recipe.columns


def test_categories_missing_values_and_types_of_pandas_are_kept() -> None:
    table = pd.DataFrame(
        {
            "stage": pd.Categorical(["i", "ii", None, "i"] * 5, categories=["i", "ii", "iii"]),
            "grade": pd.Categorical([1, 2, 1, 2] * 5, categories=[1, 2, 3]),
            "dose": pd.array([1, None, 3, 2] * 5, dtype="Int64"),
            "smokes": [True, False, None, True] * 5,
            7: np.linspace(0.5, 9.7, 20),
            "ill": ["no", "yes"] * 10,
        },
        index=range(100, 120),
    )
    columns = Frame(table, "ill").columns
    assert isinstance(columns, dict)
    assert columns["stage"].categories == ("i", "ii", "iii", "missing")
    assert columns["grade"].categories == ("1", "2", "3")
    assert (columns["dose"].lower, columns["dose"].upper, columns["dose"].fill) == (1, 3, 2)
    assert columns["smokes"].categories == ("false", "true", "missing")
    assert (columns["7"].lower, columns["7"].upper) == (0.5, 10)
    assert list(columns)[-1] == "ill"


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_is_simulated_and_the_same_frame_is_predicted(kind: str, tmp_path: Path) -> None:
    frame = Frame(as_kind(kind), "ill", "hospital")
    run = fedsim.simulate({**BASE, "trials": 1}, data=frame, out=tmp_path / "run", progress=False)
    assert DRAFTED in run.summary.privacy.notices
    assert {silo.name for silo in run.summary.privacy.silos} == set(TABLE["hospital"])
    predicted = run.predict(as_kind(kind))
    assert np.array_equal(predicted, run.predict(frame))
    assert np.array_equal(predicted, fedsim.load_run(tmp_path / "run").predict(as_kind(kind)))
    kept = from_yaml((tmp_path / "run" / "scenario.yaml").read_text())["data"]
    assert kept["drafted"] is True
    assert kept["table"].startswith("table(300, 11) sha256 ")
    assert "sha256" not in (tmp_path / "run" / "report.html").read_text().split("table(300, 11)")[1][:100]


def test_a_schema_that_a_person_gives_is_no_draft(tmp_path: Path) -> None:
    schema = {"age": {"kind": "number", "lower": 20, "upper": 90, "fill": 50}}
    schema |= {"ill": {"kind": "category", "categories": ["no", "yes"]}}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    for given in (schema, tmp_path / "schema.yaml", str(tmp_path / "schema.yaml")):
        frame = Frame(TABLE, "ill", schema=given)
        assert not frame.drafted
        assert frame.open().feature_names == ("age",)
    assert frame.notices == []


def test_it_travels_to_other_processes_and_is_equal_by_content() -> None:
    frame, other = Frame(TABLE, "ill"), Frame(TABLE.assign(age=TABLE["age"].iloc[::-1].to_numpy()), "ill")
    assert pickle.loads(pickle.dumps(frame)) == frame == Frame(TABLE, "ill")
    assert frame != other
    assert len({frame, Frame(TABLE, "ill"), other}) == 2


BLANK = TABLE.assign(hospital=TABLE["hospital"].where(TABLE.index > 2))


@pytest.mark.parametrize(
    ("table", "arguments", "field", "value", "hint"),
    [
        (TABLE, {"target": "il"}, "target", "il", "did you mean 'ill'"),
        (TABLE, {"target": "ill", "silo": "ward"}, "silo", "ward", "no such column"),
        (BLANK, {"target": "ill", "silo": "hospital"}, "silo", "hospital", "3 of 300 records have no value"),
        (TABLE.assign(hospital="a"), {"target": "ill", "silo": "hospital"}, "silo", "hospital", "one silo"),
        (TABLE.assign(ill="no"), {"target": "ill"}, "target", "ill", "all its values are equal"),
        (TABLE[:0], {"target": "ill"}, "table", "the table", "no records"),
        (pd.concat([TABLE, TABLE[["age"]]], axis=1), {"target": "ill"}, "table", "age", "2 columns"),
        ([[1, 2]], {"target": "ill"}, "table", "list", "pandas or Polars"),
        (TABLE, {"target": "ill", "scaling": "log"}, "scaling", "log", ""),
        (TABLE, {"target": "ill", "decimal": "x"}, "decimal", "x", ""),
    ],
)
def test_bad_input_is_named(table: Any, arguments: Any, field: str, value: Any, hint: str) -> None:
    with refused(field, value, hint):
        Frame(table, **arguments)


# What the library `datasets` reads.


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library without network, its cache in a folder that goes."""
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", True)
    return library


def folder_of(datasets: Any, place: Path) -> Path:
    """A folder as the hub has it: Parquet files named by their split; one column is of labels."""
    features = datasets.Features(
        {
            "age": datasets.Value("float64"),
            "ward": datasets.Value("string"),
            "ill": datasets.ClassLabel(names=["healthy", "ill"]),
        }
    )
    rng = np.random.default_rng(0)
    for split, count in (("train", 120), ("test", 30)):
        age = rng.uniform(20, 80, count)
        records = {"age": age, "ward": rng.choice(list("abc"), count), "ill": (age > 50).astype(int)}
        made = datasets.Dataset.from_dict(records, features=features)
        made.to_parquet(place / "data" / f"{split}-00000-of-00001.parquet")
    return place


SCHEMA = {
    "age": {"kind": "number", "lower": 20, "upper": 80},
    "ill": {"kind": "category", "categories": ["healthy", "ill"]},
}


def test_a_folder_of_parquet_files_is_read_by_datasets(datasets: Any, tmp_path: Path) -> None:
    folder_of(datasets, tmp_path / "study")
    data = {"name": "huggingface", "path": "study", "split": "train+test", "target": "ill"}
    data |= {"silo_column": "ward", "schema": SCHEMA}
    scenario = {**BASE, "data": data, "partition": "natural_id", "trials": 1}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    invoke("simulate", tmp_path / "scenario.yaml", "--out", tmp_path / "run")
    kept = from_yaml((tmp_path / "run" / "scenario.yaml").read_text())
    assert kept["data"]["path"] == "../study"
    assert len(kept["files"]) == 2
    run = fedsim.load_run(tmp_path / "run")
    assert sum(silo.n for silo in run.summary.privacy.silos) == pytest.approx(0.8 * 150, abs=2)
    predicted = run.predict(pd.DataFrame({"age": [21.0, 79.0]}))
    assert list(predicted) == ["prediction", "probability healthy", "probability ill"]
    only = data_sets()["huggingface"](**{**data, "path": str(tmp_path / "study"), "split": "test"})
    assert only.open().num_rows == 30


def test_what_it_cannot_read_is_one_line(datasets: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    kind = data_sets()["huggingface"]
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        with refused("scenario.data.path", str(path), "`datasets` cannot read it"):
            kind(path=str(path), target="ill", schema=SCHEMA).open()


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with refused("scenario.data.name", "huggingface", "pip install 'fedsim-isrl[huggingface]'"):
        data_sets()["huggingface"](path="study", target="ill", schema=SCHEMA).open()


def test_a_name_on_the_hub_stays_as_it_is(tmp_path: Path) -> None:
    from fedsim.scenario.load import anchored, relative

    tree = {"data": {"name": "huggingface", "path": "scikit-learn/iris", "schema": {}}}
    assert anchored(tree, tmp_path) == tree
    assert relative(tree, tmp_path) == tree
