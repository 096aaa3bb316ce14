"""docs/using-a-model.md, from its table to the models that leave."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from support import pages
from support.distribution import ROOT
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.results.model_file import FILE, FITTED

PAGE = (ROOT / "docs" / "using-a-model.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.S))
STEPS = re.findall(rf"{pages.CONSOLE.pattern}|{pages.PYTHON.pattern}", PAGE, re.S)


def test_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for commands, code, shown in STEPS:
        for command in commands.splitlines():
            result = CliRunner().invoke(app, shlex.split(command)[1:])
            assert result.exit_code == 0, result.output
        exec(code, names)
        assert pages.disagreement(shown, capsys.readouterr().out) is None
    predicted = pd.read_csv(tmp_path / "predicted.csv")
    assert list(predicted.columns) == ["patient", "prediction", "probability no", "probability yes"]
    assert list(predicted["patient"]) == ["q1", "q2"]


def test_the_files_that_it_names_are_the_run_s() -> None:
    for name in (FILE, FITTED, "model.safetensors", "nonprivate_twin.safetensors", "scenario.yaml"):
        assert f"`{name}`" in PAGE
