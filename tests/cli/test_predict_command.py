"""`fedsim predict` and `fedsim export`, as a person types them."""

from __future__ import annotations

from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from support.used_models import clinic, clinic_tree, simulated
from typer.testing import CliRunner

import fedsim
from fedsim.cli.main import app
from fedsim.results.run_directory import write


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


def invoke(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, command.split())
    return result.exit_code, result.output


@pytest.mark.parametrize("made", ["out.csv", "out.parquet"])
@pytest.mark.parametrize("given", ["new.csv", "new.parquet", "clinic.csv"])
def test_a_table_is_predicted_in_its_order(
    folder: Path, given: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / made
    command = f"predict run {given} --out {out} --trial 1 --id patient"
    code, said = invoke(command, folder, monkeypatch)
    assert (code, said) == (0, f"Wrote {out}\n")
    found = pd.read_csv(out) if made.endswith("csv") else pd.read_parquet(out)
    own = pd.read_csv(folder / "clinic.csv")
    expected = fedsim.load_run(folder / "run").predict(own, trial=1)
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
        (
            "predict run new.csv --out out.csv --id patien",
            "--id: 'patien': new.csv has no such column; did you",
        ),
        ("predict run few.csv --out out.csv", "TABLE: 'chol': few.csv has no such column"),
        (
            "predict run odd.csv --out out.csv",
            "TABLE.sex: 'x': row 2: not a declared category; known: 'male'",
        ),
        (
            "predict run named.csv --out out.csv --id prediction",
            "--id: 'prediction': is the name of a column",
        ),
        ("predict nothing new.csv --out out.csv", "RUN: 'nothing': no such directory"),
        ("export run --to sklearn --out model.pt", "--out: 'model.pt': must end in .joblib"),
    ],
)
def test_what_is_wrong_is_one_line(
    folder: Path, command: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "few.csv").write_text("age,sex\n30,male\n")
    (folder / "odd.csv").write_text("age,sex,chol\n30,male,200\n40,x,210\n")
    (folder / "named.csv").write_text("prediction,age,sex,chol\n1,30,male,200\n")
    before = sorted(folder.iterdir())
    code, output = invoke(command, folder, monkeypatch)
    assert (code, output.count("\n")) == (2, 1)
    assert said in output
    assert sorted(folder.iterdir()) == before


def test_the_twin_is_predicted_with_by_name_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option in ("", "--nonprivate"):
        code, said = invoke(
            f"predict run new.csv --out {tmp_path}/a{option}.csv {option}", folder, monkeypatch
        )
        assert code == 0, said
    assert (tmp_path / "a.csv").read_text() != (tmp_path / "a--nonprivate.csv").read_text()


def test_models_leave_for_other_libraries(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, frame = fedsim.load_run(folder / "run"), pd.read_csv(folder / "new.csv")
    code, said = invoke(f"export run --to sklearn --out {tmp_path}/model.joblib", folder, monkeypatch)
    assert (code, said.splitlines()[1].split(":")[0]) == (0, "Loading it runs code that is in it")
    assert (joblib.load(tmp_path / "model.joblib").predict(frame) == run.predict(frame)["prediction"]).all()
    for name in ("model.pt", "model.safetensors"):
        code, said = invoke(f"export run --to torch --out {tmp_path}/{name}", folder, monkeypatch)
        assert code == 0, said
    module = run.to_torch()
    for state in (torch.load(tmp_path / "model.pt"), load_file(tmp_path / "model.safetensors")):
        assert set(state) == {"weight", "bias"}
        fresh = torch.nn.Linear(4, 1, dtype=torch.float64)
        fresh.load_state_dict(state)
        assert torch.equal(fresh.weight, module.weight)
