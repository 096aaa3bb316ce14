"""The README's commands run, and its code is the real code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsim.cli.main import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLE = [line for block in re.findall(r"```console\n(.*?)```", README, re.S) for line in block.splitlines()]
COMMANDS = [line for line in CONSOLE if line.startswith("fedsim ")]
TARGETS = [line.split()[1] for line in CONSOLE if line.startswith("make ")]


def test_the_readme_has_commands_to_try() -> None:
    assert len(COMMANDS) >= 5
    assert TARGETS == ["demo", "test"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    assert result.output.strip()


def test_the_make_targets_run_what_the_readme_says() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo:.*\n\t\$\(BIN\)/fedsim simulate scenarios/quickstart.yaml$", makefile, re.M)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_algorithm_shown_is_the_file() -> None:
    found = re.search(r"<!-- (\S+) -->\n```python\n(.*?)```", README, re.S)
    assert found
    source = (ROOT / found[1]).read_text(encoding="utf-8")
    assert source.endswith("\n\n\n" + found[2])


def test_links_to_files_exist() -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
