"""`fedsim init`: from a table to a private model and its page in two commands; a draft is called a draft."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.daemons import LIFETIME
from support.hard_tables import clinic, houses, written
from support.refusals import refused
from support.scenarios import invoke, refusal

from fedsim.api.given import scenario_of
from fedsim.common.serialise import from_yaml
from fedsim.data.csv_table import DRAFTED
from fedsim.deployment.offers import deployable
from fedsim.scenario.load import load
from silos.front.config import parse_config


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_commands_lead_to_a_private_model_and_its_page() -> None:
    written(clinic(), Path("clinic.csv"))
    printed = invoke("init", "clinic.csv", "--target", "ill", "--silo", "hospital")
    assert "Wrote clinic.yaml" in printed
    commands = [line.split("#")[0].split()[1] for line in printed.splitlines() if "  fedsim " in line]
    assert commands == ["inspect", "privacy", "simulate", "sweep"]
    tree = from_yaml(Path("clinic.yaml").read_text())
    assert tree["partition"] == "natural_id"
    assert tree["problem"] == {"name": "logistic_regression", "silo_weights": "size"}
    assert tree["report"] == {"metric": "auc"}
    assert tree["privacy"] == {"epsilon": 1, "delta": "1/n^2"}
    printed = invoke("simulate", "clinic.yaml", "--set", "trials=1", "--out", "run")
    assert DRAFTED in printed
    summary = json.loads(Path("run/summary.json").read_text())
    assert DRAFTED in summary["privacy"]["notices"]
    assert DRAFTED in summary["privacy"]["not_private"]
    assert summary["metrics"]["auc"] > 0.7
    shown = DRAFTED.replace("`drafted: true`", "<code>drafted: true</code>")
    assert Path("run/report.html").read_text().count(shown) == 2
    assert load(Path("run/scenario.yaml")).data.drafted
    assert DRAFTED in invoke("privacy", "clinic.yaml")
    confirmed = ["--set", "data.drafted=false"]
    assert DRAFTED not in invoke("privacy", "clinic.yaml", *confirmed)


def test_a_sweep_of_a_draft_says_so_on_the_terminal_and_on_its_page() -> None:
    written(houses(200), Path("houses.csv"))
    invoke("init", "houses.csv", "--target", "Price")
    quick = ["--set", "trials=1"]
    grid = ["--set", "sweep.grid.privacy.epsilon=[1,3]"]
    assert DRAFTED in invoke("sweep", "houses.yaml", *quick, *grid, "--workers", "0", "--out", "sweep")
    assert "ranges were read from the records" in Path("sweep/report.html").read_text()


def test_a_table_without_silos_is_divided_in_public() -> None:
    written(houses(300), Path("houses.csv"))
    invoke("init", "houses.csv", "--target", "Price", "--out", "other.yaml")
    tree = from_yaml(Path("other.yaml").read_text())
    assert tree["partition"] == {"name": "iid", "num_partitions": 5}
    assert tree["problem"] == {"name": "linear_regression", "silo_weights": "size"}
    assert "report" not in tree
    assert "No column names the silos" in Path("other.yaml").read_text()


def test_a_file_for_each_silo_and_every_option_of_reading(folder: Path) -> None:
    (folder / "homes").mkdir()
    for name in ("north", "south"):
        table = pd.DataFrame({"level": ["a", "b", "c", "b"] * 5, "größe": ["1,5", "k. A.", "2,5", "9"] * 5})
        table.to_csv(f"homes/{name}.csv", sep=";", index=False, encoding="latin-1")
    options = ["--encoding", "latin-1", "--decimal", ",", "--delimiter", ";", "--missing", "k. A."]
    files = ["homes/north.csv", "homes/south.csv"]
    printed = invoke("init", *files, "--target", "level", "--multiline", *options)
    assert "--missing 'k. A.'" in printed
    assert "--multiline " in printed
    data = from_yaml(Path("homes.yaml").read_text())["data"]
    assert data["path"] == {"north": "homes/north.csv", "south": "homes/south.csv"}
    assert data["schema"]["größe"] == {"kind": "number", "lower": 1.5, "upper": 9, "fill": 2.5}
    read = {key: data[key] for key in ("encoding", "decimal", "missing", "delimiter", "multiline")}
    assert list(read.values()) == ["latin-1", ",", ["k. A."], ";", True]
    invoke("simulate", "homes.yaml", "--set", "trials=1", "--set", "algorithm.num_rounds=2", "--out", "run")


@pytest.mark.parametrize(
    ("made", "target", "metric", "epsilon", "close"),
    [
        (clinic(4200), "ill", "auc", 1, lambda mine, pooled: mine > pooled - 0.05),
        (clinic(4200), "ill", "auc", 8, lambda mine, pooled: mine > pooled - 0.02),
        (houses(4000), "Price", "rmse", 3, lambda mine, pooled: mine < 1.03 * pooled),
    ],
)
def test_a_draft_trains_nearly_as_well_as_all_records_together(
    made: pd.DataFrame, target: str, metric: str, epsilon: float, close: Callable[[float, float], bool]
) -> None:
    """Nothing is edited: ranges, scales, fill values, step, clip, rounds and trials are the draft's."""
    written(made, Path("table.csv"))
    by = ["--silo", "hospital"] if "hospital" in made else []
    invoke("init", "table.csv", "--target", target, *by)
    settings = ["--set", "seed=1", "--set", f"privacy.epsilon={epsilon}"]
    invoke("simulate", "table.yaml", *settings, "--out", "run")
    found = json.loads(Path("run/summary.json").read_text())
    (pooled,) = (each for each in found["baselines"] if each["name"] == "pooled")
    assert close(found["metrics"][metric], pooled[metric]), (found["metrics"][metric], pooled[metric])


def table(**columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    base = {
        "age": rng.uniform(20, 80, 1000),
        "ward": rng.choice(list("abc"), 1000),
        "ill": ["no", "yes"] * 500,
    }
    return pd.DataFrame({**base, **columns})


@pytest.mark.parametrize(
    ("columns", "target", "silo", "expected"),
    [
        ({}, "il", None, "--target: 'il': table.csv has no such column; did you mean 'ill'"),
        ({}, "ill", "wards", "--silo: 'wards': table.csv has no such column; did you mean 'ward'"),
        ({"ward": "a"}, "ill", "ward", "--silo: 'ward': names one silo"),
        ({"ward": ["a", "b", None, "a"] * 250}, "ill", "ward", "--silo: 'ward': 250 of 1,000 records have"),
        ({"ill": "yes"}, "ill", None, "--target: 'ill': cannot be predicted: all its values are equal"),
        ({"ill": [f"text {k}" for k in range(1000)]}, "ill", None, "--target: 'ill': cannot be predicted"),
        ({"ill": "2024-01-31"}, "ill", None, "--target: 'ill': cannot be predicted: it holds dates or times"),
        ({"ill": None}, "ill", None, "--target: 'ill': cannot be predicted: it has no values"),
        ({"ill": ["no", "yes", "NA", "no"] * 250}, "ill", None, "--target: 'ill': cannot be predicted: 250"),
        ({"age": 3, "ward": "a"}, "ill", None, "TABLE: 'table.csv': no column is left to predict 'ill'"),
    ],
)
def test_bad_input_is_one_line(columns: Any, target: str, silo: str | None, expected: str) -> None:
    written(table(**columns), Path("table.csv"))
    by = [] if silo is None else ["--silo", silo]
    assert f"error: {expected}" in refusal("init", "table.csv", "--target", target, *by)
    assert not Path("table.yaml").exists()


def test_what_is_there_is_left_as_it_is() -> None:
    written(table(), Path("table.csv"))
    Path("table.yaml").write_text("mine")
    assert "table.yaml" in refusal("init", "table.csv", "--target", "ill")
    assert Path("table.yaml").read_text() == "mine"
    assert "--out" in refusal("init", "table.csv", "--target", "ill", "--out", "nowhere/s.yaml")


def test_a_silo_and_a_deployment_refuse_a_draft(folder: Path) -> None:
    written(table(), Path("table.csv"))
    invoke("init", "table.csv", "--target", "ill", "--silo", "ward")
    with refused("scenario.data.drafted", True, "delete this line"):
        deployable(scenario_of("table.yaml"))
    assert "scenario.data.drafted: True" in refusal("up", "table.yaml")
    records = from_yaml(Path("table.yaml").read_text())["data"]
    silo = {
        "name": "north",
        "records": records,
        "state": str(folder / "state"),
        "listen": {"socket": "silo.sock"},
        "policy": {"lifetime": LIFETIME},
    }
    parse_config({**silo, "records": {key: records[key] for key in records if key != "drafted"}})
    with refused("silo.records.drafted", True, "delete this line"):
        parse_config(silo)


@pytest.mark.parametrize(("rows", "curves"), [(400, False), (60_000, True)])
def test_numbers_enter_as_curves_where_records_are_many(rows: int, curves: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3))
    table = pd.DataFrame(x, columns=list("abc")).assign(
        few=np.arange(rows) % 5, y=np.where(x[:, 0] > 0, "n", "p")
    )
    table.to_csv("t.csv", index=False)
    invoke("init", "t.csv", "--target", "y")
    schema = from_yaml(Path("t.yaml").read_text())["data"]["schema"]
    assert [name for name in schema if "encode" in schema[name]] == (["a", "b", "c"] if curves else [])
    invoke("privacy", "t.yaml")
