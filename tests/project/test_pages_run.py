"""The commands and the Python of the documents run, and print what the documents show."""

import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support import pages
from support.daemons import short_folder
from support.distribution import ROOT
from typer.testing import CliRunner

from fedsim.cli.app import COMMANDS
from fedsim.cli.main import app

RUN_HERE = (
    "README.md",
    *(f"docs/{name}.md" for name in ("simulating", "sweeps", "scenario-parts", "choosing", "faq")),
)
RUN_HERE += tuple(f"docs/{name}.md" for name in ("python", "secure-aggregation", "audit", "deployment"))
ONE_SESSION = ("docs/getting-started.md",)  # each block continues with what those before it have written
RUN_ELSEWHERE = {"docs/using-a-model.md", "docs/your-own-table.md", "docs/adding-an-algorithm.md"}
OF_ORGANISATIONS = {"silo", "node", "certs", "deploy", "shuffler", "offers"}  # of several machines
OF_ORGANISATIONS |= {"status", "runs", "stop", "down", "federation", "kit", "preflight"}
NAMED_ONLY = {
    "fedsim ledger show state",
    "fedsim ledger receipt",
    "fedsim ledger verify",
    "fedsim ledger accept-time state",
    "/tmp/attacked",
}
LONG = (
    "fedsim up ",
    "--daemons ",
    "fedsim sweep ",
    "fedsim audit ",
    "fedsim check ",
    "sdp_",
    "partial",
    "auc",
    "docs/faq.md",
)
WIDTH = "100"


def _sessions() -> Iterator[Any]:
    for page in RUN_HERE + ONE_SESSION:
        blocks = pages.sessions(pages.text(page))
        for session in [list(chain(*blocks))] if page in ONE_SESSION else blocks:
            commands = [line for line in session if not any(name in line for name in NAMED_ONLY)]
            commands = [line for line in commands if line.split()[1] not in OF_ORGANISATIONS]
            slow = any(part in command for part in LONG for command in (page, *commands))
            if commands:
                marks = [pytest.mark.slow] if slow and page not in ONE_SESSION else []
                yield pytest.param(page, commands, marks=marks, id=f"{Path(page).stem}: {commands[0]}")


SESSIONS = list(_sessions())


@pytest.fixture
def place():
    with short_folder() as folder:  # silos listen in it
        yield folder


@pytest.mark.parametrize(("page", "session"), SESSIONS)
def test_the_commands_of_a_block_run_and_print_what_is_shown(page, session, place, monkeypatch):
    source = pages.text(page)
    shown = pages.outputs(source)
    (place / "scenarios").symlink_to(ROOT / "scenarios")
    pages.write_files(source, place)
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", WIDTH)
    for copied in re.findall(r"^cp (\S+) (\S+)$", source, re.M):
        shutil.copy(*copied)
    for command in session:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
        assert result.output.strip()
        if command in shown:
            numbers = not pages.is_of_one_processor(source, command)
            assert pages.disagreement(shown[command], result.output, numbers) is None, result.output


@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/python.md", marks=pytest.mark.slow)])
def test_the_python_of_a_page_runs_as_pasted_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDTH)
    names: dict[str, object] = {}
    for code, shown in pages.PYTHON.findall(pages.text(page)):
        printed = StringIO()
        with redirect_stdout(printed):
            exec(code, names)
        assert pages.disagreement(shown, printed.getvalue()) is None, printed.getvalue()
    assert list(tmp_path.iterdir()) == []


def test_the_parts_of_a_run_s_page_have_the_names_that_the_guide_gives_them():
    table = pages.text("docs/getting-started.md").partition("| part of the page |")[2]
    named = re.findall(r'"([^"]+)"', table)
    templates = "".join(path.read_text() for path in (ROOT / "fedsim/report/templates").glob("*.html"))
    assert len(named) == 8
    for name in named:
        assert f">{name}</h2>" in templates or f'table("{name}"' in templates, name


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_text_block_is_an_output_that_is_compared_or_a_diagram(page):
    source = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    for before in pages.TEXT.findall(source):
        assert re.fullmatch(rf"<!-- (output(({pages.ELSEWHERE})?: .+)?|diagram) -->", before), before
    compared = {command for case in SESSIONS if case.values[0] == name for command in case.values[1]}
    compared |= {command for command in pages.outputs(source) if command.startswith("fedsim offers show")}
    assert set(pages.outputs(source)) <= compared  # the last by tests/cli/test_offers_command.py
    assert "<!-- output -->" not in source or name in {"README.md", "docs/python.md", "docs/using-a-model.md"}


def test_every_command_is_tried_on_a_page():
    tried = {command.split()[1] for case in SESSIONS for command in case.values[1]}
    others = {"inspect", "export", "contributions"}  # with tests of their own
    assert tried == set(COMMANDS) - others - OF_ORGANISATIONS
    for page in RUN_ELSEWHERE:
        assert pages.sessions(pages.text(page))


def test_an_output_is_compared_by_words_and_numbers():
    printed = (
        "silo   n   epsilon\n───────────\nsilo-00 50 0.916 (91 %)\n"
        "more\nWrote run-20261121-163752/ in 3f2a99bb01cd\n"
    )
    agree = (
        printed,
        "silo n epsilon silo-00 50\n0.93 (92 %)\n...\nWrote run-20300101-000000/ in aaaaaaaaaaaa\n",
        "...\nsilo-00 50 0.916 (91 %)\n...\n",
    )
    differ = (
        "silo n epsilon silo-00 50 0.94 (91 %)\n...\n",
        "silo n delta\n...\n",
        "silo n epsilon\n...\nless\n...\n",
        "silo n epsilon\n...\nmore\n...\nsilo-00\n...\n",
    )
    assert [pages.disagreement(shown, printed) for shown in agree] == [None] * 3
    assert None not in [pages.disagreement(shown, printed) for shown in differ]
    assert pages.disagreement(differ[0], printed, numbers=False) is None
    assert pages.disagreement(differ[1], printed, numbers=False) is not None


def test_the_make_targets_run_what_the_readme_says():
    readme, makefile = pages.text("README.md"), pages.text("Makefile")
    lines = "\n".join(pages.CONSOLE.findall(readme)).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("make ")] == ["demo", "test"]
    assert re.search(r"^demo:.*\n\t\$\(BIN\)/fedsim simulate scenarios/quickstart.yaml$", makefile, re.M)
    assert "make test" in pages.text(".ci/run")


def test_the_readme_fits_a_screen_or_two():
    readme = pages.text("README.md")
    assert len(readme.splitlines()) <= 150
    assert len(readme.split()) <= 1200


def test_the_algorithm_shown_is_the_file():
    page = pages.text("docs/adding-an-algorithm.md")
    shown = re.search(r"<!-- (fedsim/algorithms/noisy_minibatch_sgd.py) -->\n```python\n(.*?)```", page, re.S)
    assert shown
    assert pages.text(shown[1]).endswith("\n\n\n" + shown[2])


def test_every_algorithm_and_problem_is_named():
    from fedsim.algorithms.registry import algorithms
    from fedsim.problems.registry import problems

    page = pages.text("docs/scenario-parts.md")
    assert [name for name in (*algorithms(), *problems()) if f"`{name}`" not in page] == []
