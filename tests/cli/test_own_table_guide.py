"""docs/your-own-table.md, done: its commands run on the tables of examples/tables as they are."""

import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from support import pages
from support.distribution import ROOT
from support.scenarios import invoke

from fedsim.report.model_file import FILE, FITTED

PAGE = (ROOT / "docs" / "your-own-table.md").read_text(encoding="utf-8")
TABLES = ROOT / "examples" / "tables"
COMMANDS = re.findall(r"^fedsim (.*)$", "\n".join(re.findall(r"```console\n(.*?)```", PAGE, re.S)), re.M)
SHOWN = re.findall(r"<!-- file: (\S+) -->\n```yaml\n(.*?)```", PAGE, re.S)


def test_the_scenarios_shown_are_the_files() -> None:
    assert sorted(name for name, _ in SHOWN) == sorted(path.name for path in TABLES.glob("*.yaml"))
    for name, text in SHOWN:
        assert text == (TABLES / name).read_text(encoding="utf-8"), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(TABLES, tmp_path_factory.mktemp("guide") / "tables"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_runs(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    asked, _, into = command.partition(" > ")
    quick = ["--set", "trials=1", "--set", "algorithm.num_rounds=2"] if asked.startswith("simulate") else []
    output = invoke(*shlex.split(asked), *quick)
    if into:
        (folder / into).write_text(output)


def test_there_is_a_command_of_each_kind_for_each_table() -> None:
    for name, kinds in {"heart": 5, "homes": 2, "census": 2}.items():
        assert sum(name in command for command in COMMANDS) == kinds


def test_every_marker_and_option_is_named() -> None:
    from fedsim.data.schema import MARKERS, Reading

    for told in (*MARKERS, *(f"{option}:" for option in Reading.model_fields)):
        assert f"`{told}" in PAGE, told


# docs/using-a-model.md, from its table to the models that leave.

MODEL_PAGE = (ROOT / "docs" / "using-a-model.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", MODEL_PAGE, re.S))
STEPS = re.findall(rf"{pages.CONSOLE.pattern}|{pages.PYTHON.pattern}", MODEL_PAGE, re.S)


def test_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for commands, code, shown in STEPS:
        for command in commands.splitlines():
            invoke(*shlex.split(command)[1:])
        exec(code, names)
        assert pages.disagreement(shown, capsys.readouterr().out) is None
    predicted = pd.read_csv(tmp_path / "predicted.csv")
    assert list(predicted.columns) == ["patient", "prediction", "probability no", "probability yes"]
    assert list(predicted["patient"]) == ["q1", "q2"]


def test_the_files_that_it_names_are_the_run_s() -> None:
    for name in (FILE, FITTED, "model.safetensors", "nonprivate_baseline.safetensors", "scenario.yaml"):
        assert f"`{name}`" in MODEL_PAGE
