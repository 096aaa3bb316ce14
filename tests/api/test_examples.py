"""The notebooks run, as scripts, from an empty directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.distribution import ROOT, python

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK = "first_run"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem == QUICK else pytest.mark.slow) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_writes_nothing(path: Path, tmp_path: Path) -> None:
    done = python("-W", "error::UserWarning", path, paths=(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_there_are_three_in_jupytexts_percent_format() -> None:
    assert [path.stem for path in EXAMPLES] == ["first_run", "own_algorithm", "privacy_and_audit"]
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# ---\n# jupyter:\n")
        assert text.count("\n# %%\n") >= 3
        assert text.count("\n# %% [markdown]\n") >= 3
