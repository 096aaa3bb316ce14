"""`fedsim predict` and `fedsim export`, as a person types them."""

import json
import shutil
import sys
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from support.refusals import lacking
from support.scenarios import invoke, refusal
from support.used_models import clinic, clinic_tree, simulated

import fedsim
from fedsim.report.run_directory import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has clinic.csv, new.csv and new.parquet without target and silos, and a run."""
    place = tmp_path_factory.mktemp("used")
    new = clinic(place).drop(columns=["outcome", "hospital"])
    new.to_csv(place / "new.csv", index=False)
    new.to_parquet(place / "new.parquet", index=False)
    run = simulated(clinic_tree(place), trials=2)
    (place / "run").mkdir()
    write(run.source, run.results, place / "run", place / "run")
    return place


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("made", ["out.csv", "out.parquet"])
@pytest.mark.parametrize("given", ["new.csv", "new.parquet", "clinic.csv"])
def test_a_table_is_predicted_in_its_order(here: Path, given: str, made: str, tmp_path: Path) -> None:
    out = tmp_path / made
    said = invoke("predict", "run", given, "--out", out, "--trial", 1, "--id", "patient")
    assert said == f"Wrote {out}\n"
    found = pd.read_csv(out) if made.endswith("csv") else pd.read_parquet(out)
    own = pd.read_csv("clinic.csv")
    expected = fedsim.load_run("run").predict(own, trial=1)
    assert list(found["patient"]) == list(own["patient"])
    assert list(found["prediction"]) == list(expected["prediction"])
    np.testing.assert_array_equal(found["probability ill"], expected["probability ill"])
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("predict run new.csv --out new.csv", "--out: 'new.csv': exists already"),
        ("predict run new.csv --out new.xlsx", "must end in .csv or .parquet"),
        ("predict run new.csv --out no/out.csv", "is in no folder that exists"),
        ("predict run no.csv --out out.csv", "TABLE: 'no.csv': no such file"),
        ("predict run new.csv --out out.csv --trial 7", "--trial: 7: must be one of the finished ones, 0, 1"),
        ("predict run new.csv --out out.csv --id patien", "--id: 'patien': new.csv has no such column"),
        ("predict run few.csv --out out.csv", "TABLE: 'chol': few.csv has no such column"),
        (
            "predict run odd.csv --out out.csv",
            "TABLE.sex: 'x': row 2: not a declared category; known: 'male'",
        ),
        ("predict run named.csv --out out.csv --id prediction", "--id: 'prediction': is the name of a"),
        ("predict nothing new.csv --out out.csv", "RUN: 'nothing': no such directory"),
        ("export run --to sklearn --out model.pt", "--out: 'model.pt': must end in .joblib"),
    ],
)
def test_what_is_wrong_is_one_line(here: Path, command: str, said: str) -> None:
    (here / "few.csv").write_text("age,sex\n30,male\n")
    (here / "odd.csv").write_text("age,sex,chol\n30,male,200\n40,x,210\n")
    (here / "named.csv").write_text("prediction,age,sex,chol\n1,30,male,200\n")
    before = sorted(here.iterdir())
    assert said in refusal(*command.split())
    assert sorted(here.iterdir()) == before


def test_a_model_of_the_former_rule_for_categories_is_refused_in_one_line(here: Path, tmp_path: Path) -> None:
    """Its columns make a feature less now than it has coefficients for."""
    kept = shutil.copytree(here / "run", tmp_path / "run") / "model.json"
    tree = json.loads(kept.read_text())
    assert tree["num_features"] == 4
    kept.write_text(json.dumps(tree | {"num_features": 5}))
    said = "its models take 5 features, and by this version's rule for categories its columns are 4"
    assert said in refusal("predict", tmp_path / "run", "new.csv", "--out", tmp_path / "out.csv")
    assert said in refusal("export", tmp_path / "run", "--to", "torch", "--out", tmp_path / "out.pt")
    assert not (tmp_path / "out.csv").exists()


def test_the_twin_is_predicted_with_by_name_only(here: Path, tmp_path: Path) -> None:
    for option in ("", "--nonprivate"):
        invoke(*f"predict run new.csv --out {tmp_path}/a{option}.csv {option}".split())
    assert (tmp_path / "a.csv").read_text() != (tmp_path / "a--nonprivate.csv").read_text()


def test_models_leave_for_other_libraries(here: Path, tmp_path: Path) -> None:
    run, frame = fedsim.load_run("run"), pd.read_csv("new.csv")
    said = invoke("export", "run", "--to", "sklearn", "--out", tmp_path / "model.joblib")
    assert said.splitlines()[1].startswith("Loading it runs code that is in it")
    assert (joblib.load(tmp_path / "model.joblib").predict(frame) == run.predict(frame)["prediction"]).all()
    for name in ("model.pt", "model.safetensors"):
        invoke("export", "run", "--to", "torch", "--out", tmp_path / name)
    module = run.to_torch()
    for state in (torch.load(tmp_path / "model.pt"), load_file(tmp_path / "model.safetensors")):
        assert set(state) == {"weight", "bias"}
        fresh = torch.nn.Linear(3, 1, dtype=torch.float64)
        fresh.load_state_dict(state)
        assert torch.equal(fresh.weight, module.weight)


# `fedsim inspect` and the options that it shares with `init`.

TABLE = "age;ward;sick\n" + "".join(
    f"{20 + k};{'ab'[k % 2]};{'yes' if k % 3 == 0 else 'no'}\n" for k in range(30)
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("table.csv")
    path.write_text(TABLE + "50,5;[red];yes\n")
    return path


def test_a_table_at_a_glance(table: Path) -> None:
    said = invoke("inspect", "table.csv", "--target", "sick", "--silo", "ward", "--decimal", ",")
    assert "not private" in said.splitlines()[0]
    assert "Keep it where the records are" in said.splitlines()[0]
    columns = "table.csv: 31 records, 3 columns | age number 20 to 50.5 | ward category a 15, b 15, [red] 1"
    target = "no: 20 (64.5%) | 3 silos by ward | [red] 1 no 0%, yes 100%"
    assert lacking(" ".join(said.split()), f"{columns} | {target}") == []


def test_the_same_as_json(table: Path) -> None:
    found = json.loads(invoke("inspect", "table.csv", "--target", "sick", "--silo", "ward", "--json"))
    assert found["records"] == 31
    assert found["target"]["classes"] == {"no": 20, "yes": 11}
    assert [silo["records"] for silo in found["silos"]["sizes"]] == [1, 15, 15]
    assert "not private" in found["not_private"]


def test_records_without_a_silo_are_counted_with_the_remedy(table: Path) -> None:
    table.write_text(TABLE + "51;NA;no\n")
    said = " ".join(invoke("inspect", "table.csv", "--silo", "ward").split())
    assert "1 records name no silo" in said
    assert "`without_silo`" in said


@pytest.mark.parametrize("command", ["inspect", "init"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["none.csv"], "error: TABLE: 'none.csv': no such file"),
        (["table.csv", "--silo", "wart"], "error: --silo: 'wart': table.csv has no such column; did you"),
        (["table.csv", "--delimiter", ";;"], "error: --delimiter: ';;': must be one character"),
        (["table.csv", "--encoding", "klingon"], "error: --encoding: 'klingon': no such encoding"),
        (["table.csv", "--decimal", "x"], "error: --decimal: 'x': "),
        (["table.csv", "--encoding", "utf-16"], "error: TABLE: 'table.csv': not a readable CSV"),
        (["table.csv", "--target", "ages"], "error: --target: 'ages'"),
        (["table.csv", "table.csv"], "error: TABLE: 'table.csv': is given twice"),
    ],
)
def test_bad_input_names_the_option(table: Path, command: str, arguments: list[str], expected: str) -> None:
    assert expected in refusal(command, "--target", "sick", *arguments)


@pytest.mark.parametrize("command", ["inspect", "init"])
def test_it_needs_nothing_that_a_silos_image_lacks(
    table: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the records are is where it is run; torch would take seconds, pandas is not there."""
    table.write_text(TABLE + TABLE.partition("\n")[2])  # ages that stand twice number no records
    for module in ("torch", "pandas", "sklearn"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(fedsim, "data", fedsim.data)  # afterwards the package is the one in sys.modules
    for module in [name for name in sys.modules if name.startswith("fedsim.data")]:
        monkeypatch.delitem(sys.modules, module)
    invoke(command, "table.csv", "--target", "sick", "--silo", "ward")
