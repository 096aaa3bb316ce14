"""The README's commands run, and its code is the real code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemons import short_folder
from typer.testing import CliRunner

from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.cli.main import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.S)
SESSIONS = [lines for block in BLOCKS if (lines := re.findall(r"^fedsim .*$", block, re.M))]
OF_ORGANISATIONS = {"silo", "node", "certs", "deploy", "shuffler"}  # of other documents
OF_TABLES = {"schema-from", "inspect", "predict", "export"}  # they need one of the reader's
LONG = (
    "fedsim up ",
    "--daemons ",
    "fedsim sweep ",
    "fedsim audit ",
    "fedsim check ",
    "sdp_",
    "partial",
    "auc",
)
TARGETS = [line.split()[1] for line in "\n".join(BLOCKS).splitlines() if line.startswith("make ")]
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", README, re.S))


@pytest.fixture
def place() -> Iterator[Path]:
    with short_folder() as folder:  # silos listen in it
        yield folder


def test_the_readme_has_commands_to_try() -> None:
    assert {line.split()[1] for session in SESSIONS for line in session} == {
        command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands
    } - OF_TABLES - OF_ORGANISATIONS | {"ledger"}
    assert TARGETS == ["demo", "test"]


def _marked(session: list[str]) -> Any:
    slow = any(told in command for told in LONG for command in session)
    return pytest.param(session, marks=[pytest.mark.slow] if slow else [], id=session[0].partition(" #")[0])


@pytest.mark.parametrize("session", [_marked(session) for session in SESSIONS])
def test_the_commands_of_a_block_run_one_after_the_other(
    session: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "scenarios").symlink_to(ROOT / "scenarios")
    for name, text in FILES.items():
        (place / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(place)
    for command in session:
        result = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert result.exit_code == 0, result.output
        assert result.output.strip()


def test_the_make_targets_run_what_the_readme_says() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo:.*\n\t\$\(BIN\)/fedsim simulate scenarios/quickstart.yaml$", makefile, re.M)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_algorithm_shown_is_the_file() -> None:
    found = re.search(r"<!-- (fedsim/\S+) -->\n```python\n(.*?)```", README, re.S)
    assert found
    source = (ROOT / found[1]).read_text(encoding="utf-8")
    assert source.endswith("\n\n\n" + found[2])


def test_every_algorithm_and_problem_is_named() -> None:
    from fedsim.algorithms.registry import algorithms
    from fedsim.problems.kinds import problems

    missing = [name for name in (*algorithms(), *problems()) if f"`{name}`" not in README]
    assert missing == []


def test_links_to_files_exist() -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.slow
def test_the_python_shown_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"<!-- run -->\n```python\n(.*?)```", README, re.S)
    assert found
    rng = np.random.default_rng(0)
    features, silo = rng.normal(size=(90, 2)), np.repeat(["north", "south", "west"], 30)
    target = (features.sum(1) > 0).astype(int)
    given = {"features": features, "target": target, "silo": silo, "MyAlgorithm": NoisyMinibatchSGD}
    monkeypatch.chdir(tmp_path)
    exec(found[1], given)
    assert list(tmp_path.iterdir()) == []
