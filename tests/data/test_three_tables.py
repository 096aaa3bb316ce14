"""A heart study with NA, a census with ?, homes in three files: as pandas reads them, and as they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.distribution import ROOT, fedsim, install
from support.scenarios import once, write

from fedsim.common.errors import InputError
from fedsim.common.serialise import from_yaml
from fedsim.data.csv_table import Csv
from fedsim.data.drafting import draft
from fedsim.data.federation import Federation, load
from fedsim.data.inspection import inspect
from fedsim.data.registry import GROUP, data_sets
from fedsim.data.schema import NumberColumn, Reading, read_schema
from fedsim.data.table import open_tables
from fedsim.scenario.load import load as load_scenario
from fedsim.scenario.model import Scenario

TABLES = ROOT / "examples" / "tables"
NAMES = ("heart", "census", "homes")


def scenario(name: str, **data: Any) -> Scenario:
    found = load_scenario(TABLES / f"{name}.yaml")
    return found.model_copy(update={"data": found.data.model_copy(update=data)}) if data else found


def federation(name: str, **data: Any) -> Federation:
    found = scenario(name, **data)
    return load(found.data, found.partition, 0, 0)


def frame(name: str) -> pd.DataFrame:
    """The table as a person who knows it reads it with pandas; empty and NA alike are missing."""
    if name != "homes":
        return pd.read_csv(TABLES / f"{name}.csv", na_values="?" if name == "census" else "NA")
    parts = {
        town: pd.read_csv(
            TABLES / "homes" / f"{town}.csv",
            sep=";",
            decimal=",",
            encoding="latin-1",
            na_values=["-", "k. A."],
        )
        for town in ("north", "south", "east")
    }
    return pd.concat(parts, names=["silo"]).reset_index("silo")


SILO = {"heart": "hospital", "census": "workclass", "homes": "silo"}
TEXTS = {True: "TRUE", False: "FALSE"}


def by_hand(name: str, records: pd.DataFrame) -> np.ndarray:
    """Scaled features, the constant one, and the target."""
    data = scenario(name).data
    assert isinstance(data, Csv)
    schema = dict(read_schema(data.columns))
    schema[data.target] = schema.pop(data.target)
    columns = []
    for column, declared in schema.items():
        values = records[column]
        if isinstance(declared, NumberColumn):
            clipped = values.astype(float).fillna(declared.fill).clip(declared.lower, declared.upper)
            columns.append(2 * (clipped - declared.lower) / (declared.upper - declared.lower) - 1)
            continue
        texts = values.map(lambda value: TEXTS.get(value, value)).fillna(declared.fill)
        codes = texts.map(declared.categories.index)
        levels = len(declared.categories)
        recoded = [(codes == k) - 1 / levels for k in range(1, levels)]
        columns += [codes] if column == data.target else recoded
    made = np.column_stack([np.asarray(column, dtype=float) for column in columns])
    return np.insert(made, made.shape[1] - 1, 1.0, axis=1)


def rows(values: np.ndarray) -> np.ndarray:
    """In an order of their own."""
    return values[np.lexsort(values.round(9).T)]


@pytest.mark.parametrize("name", NAMES)
def test_every_silo_has_the_records_that_pandas_reads(name: str) -> None:
    whole = frame(name)
    silos = {silo.name: silo for silo in federation(name).silos}
    groups = dict(list(whole.groupby(SILO[name])))
    assert set(silos) == set(groups)
    for silo, records in groups.items():
        mine = silos[silo]
        features = np.concatenate([mine.train.features, mine.test.features])
        target = np.concatenate([mine.train.target, mine.test.target])
        expected = by_hand(name, records)
        assert rows(np.column_stack([features, target])) == pytest.approx(rows(expected))


FILES = {
    "heart": [TABLES / "heart.csv"],
    "census": [TABLES / "census.csv"],
    "homes": [TABLES / "homes" / f"{town}.csv" for town in ("north", "south", "east")],
}
READING = {"homes": Reading(encoding="latin-1", decimal=",", missing=("-", "k. A."))}


@pytest.mark.parametrize("name", NAMES)
def test_inspect_counts_what_pandas_counts(name: str) -> None:
    whole, data = frame(name), scenario(name).data
    assert isinstance(data, Csv)
    found = inspect(FILES[name], data.target, SILO[name], READING.get(name, Reading()))
    assert found.records == len(whole)
    for column in found.columns:
        assert column.missing == whole[column.name].isna().sum(), column.name
        if column.kind == "number":
            assert (column.lower, column.upper) == (whole[column.name].min(), whole[column.name].max())
    assert found.silos is not None
    assert {silo.name: silo.records for silo in found.silos.sizes} == whole[
        SILO[name]
    ].value_counts().to_dict()
    assert found.silos.without == whole[SILO[name]].isna().sum()


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_sees_every_number_and_reads_its_table(name: str) -> None:
    whole, data = frame(name), scenario(name).data
    assert isinstance(data, Csv)
    reading = READING.get(name, Reading())
    table, silo = open_tables(FILES[name], "path", reading, SILO[name])
    if name == "census":
        with pytest.raises(InputError) as refused:
            draft(table, data.target, silo, reading)
        assert (refused.value.field, refused.value.value) == ("silo", "workclass")
        silo = None
    made = draft(table, data.target, silo, reading)
    entries = from_yaml(made.yaml)
    assert entries == made.schema
    numbers = {column for column in entries if entries[column]["kind"] == "number"}
    assert numbers == set(whole.select_dtypes("number").columns) - {"id"}
    left_out = {"heart": {"id", "hospital"}, "homes": {"silo"}}.get(name, set())
    assert set(whole.columns) - set(entries) == set(made.left_out) == left_out
    columns = Csv.model_validate({**data.model_dump(by_alias=True), "schema": entries}).columns
    silos = federation(name, columns=columns).silos
    assert sum(len(s.train.target) + len(s.test.target) for s in silos) == whole[SILO[name]].notna().sum()


# Data sets of other distributions, found by entry point.

COINS = '''
from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.source import Design, Labels, Ranges, Source


class Coins(Dataset):
    """Coins, of which the heavy ones are false."""

    name: Literal["coins"] = Field("coins", description="The data set's name.")
    rows: int = Field(60, ge=1, description="Coins.")

    def open(self):
        return Weights(self.rows)


class Weights(Source):
    target, columns = "false", ("weight", "false")
    num_features, num_classes = 1, 2

    def __init__(self, rows):
        self.num_rows = rows
        self.weight = np.linspace(1.0, 3.0, rows)

    def keys(self, column, field):
        return self.weight if column == "weight" else (self.weight > 2).astype(float)

    def labels(self, column, field):
        return Labels((self.weight > 2).astype(np.int64), ("no", "yes"))

    def design(self, rows):
        ranges = Ranges(np.array([1.0]), np.array([3.0]), np.array([False]), np.array([True]))
        weight = self.weight[rows]
        return Design(weight[:, None], ranges, (weight > 2).astype(np.int64), None)


class Unnamed(Dataset):
    """No name."""

    def open(self):
        return Weights(3)


class Closed(Dataset):
    """No records."""

    name: Literal["closed"] = "closed"
'''


@pytest.mark.slow
def test_a_distribution_adds_a_data_set(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "tiny-data", {"tiny_coins": COINS}, {GROUP: {"coins": "tiny_coins:Coins"}})
    listed = fedsim("list", site=site)
    assert "Coins, of which the heavy ones are false." in listed.stdout, listed.stderr
    tree = once(
        data={"name": "coins", "rows": 80},
        partition={"name": "pathological", "num_partitions": 4, "num_classes_per_partition": 2},
        algorithm={"num_rounds": 30, "step_size": 4.0},
        privacy={"epsilon": 8.0, "delta": 0.001},
    )
    path = write(tmp_path, tree)
    done = fedsim("simulate", path, "--out", tmp_path / "run", site=site)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert sum(silo["n"] for silo in summary["privacy"]["silos"]) == 64
    assert summary["metrics"]["error"] < 0.35
    wrong = fedsim("simulate", path, "--set", "data.row=3", "--out", tmp_path / "wrong", site=site)
    assert wrong.returncode == 2
    assert "scenario.data.row" in wrong.stderr
    without = fedsim("simulate", path, site=tmp_path)
    assert without.returncode == 2
    assert "scenario.data.name: 'coins'" in without.stderr


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("digits", "Coins", "the name is built in"),
        ("money", "Coins", "name: Literal['money']"),
        ("unnamed", "Unnamed", "name: Literal['unnamed']"),
        ("closed", "Closed", "a class with the method open"),
        ("weights", "Weights", "derived from Dataset"),
    ],
)
def test_what_cannot_be_registered_is_named(
    name: str, kind: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "tiny-data", {"tiny_coins": COINS}, {GROUP: {name: f"tiny_coins:{kind}"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError) as caught:
        data_sets.__wrapped__()
    assert f"{GROUP}:{name}" in str(caught.value)
    assert said in str(caught.value)
