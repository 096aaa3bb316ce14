"""docs/your-own-table.md, done: its commands run on the tables of examples/tables as they are."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.distribution import ROOT
from typer.testing import CliRunner

from fedsim.cli.main import app

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
    result = CliRunner().invoke(app, [*shlex.split(asked), *quick])
    assert result.exit_code == 0, result.output
    if into:
        (folder / into).write_text(result.output)


def test_there_is_a_command_of_each_kind_for_each_table() -> None:
    for name, kinds in {"heart": 4, "homes": 2, "census": 2}.items():
        assert sum(name in command for command in COMMANDS) == kinds


def test_every_marker_and_option_is_named() -> None:
    from fedsim.data.schema import MARKERS, Reading

    for told in (*MARKERS, *(f"{option}:" for option in Reading.model_fields)):
        assert f"`{told}" in PAGE, told
