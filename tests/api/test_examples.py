"""The notebooks run from an empty directory and show what they are kept with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import pages
from support.distribution import ROOT, python

EXAMPLES = sorted((ROOT / "examples").glob("*.ipynb"))
QUICK = "first_run"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem == QUICK else pytest.mark.slow) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_shows_what_is_kept_and_writes_nothing(path: Path, tmp_path: Path) -> None:
    code, shown = pages.notebook(path)
    script, folder = tmp_path / "script.py", tmp_path / "empty"
    script.write_text(code, encoding="utf-8")
    folder.mkdir()
    done = python("-W", "error::UserWarning", script, paths=(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert shown.strip()
    assert pages.disagreement(shown, done.stdout) is None, done.stdout
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_its_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert all(output["output_type"] != "error" for output in outputs)
    assert sum(cell["cell_type"] == "markdown" for cell in cells) >= 3


def test_there_are_three() -> None:
    assert [path.stem for path in EXAMPLES] == ["first_run", "own_algorithm", "privacy_and_audit"]
