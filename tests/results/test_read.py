"""A directory that is no whole run of this version is refused by name, and stays as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fedsim.cli.main import app


def report(directory: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", str(directory)])
    return result.exit_code, result.output


def edit(directory: Path, **values: object) -> None:
    path = directory / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cut(name: str) -> Callable[[Path], None]:
    def halve(directory: Path) -> None:
        path = directory / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return halve


def remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


DAMAGE: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no summary": (remove("summary.json"), ["summary.json", "is missing", "fedsim simulate"]),
    "no metrics": (remove("metrics.parquet"), ["metrics.parquet", "is missing"]),
    "no scenario": (remove("scenario.yaml"), ["scenario.yaml", "is missing"]),
    "half a summary": (cut("summary.json"), ["summary.json", "not valid JSON", "line"]),
    "half a table": (cut("silos.parquet"), ["silos.parquet", "damaged"]),
    "another table": (
        lambda d: pq.write_table(pa.table({"x": [1]}), d / "spend.parquet"),
        ["spend.parquet", "no column 'silo'"],
    ),
    "no scenario's text": (
        lambda d: (d / "scenario.yaml").write_text("- a"),
        ["scenario.yaml", "not a scenario"],
    ),
    "not text": (lambda d: (d / "scenario.yaml").write_bytes(b"\xff\xfe\x00"), ["scenario.yaml", "damaged"]),
    "a directory in a file's place": (
        lambda d: ((d / "metrics.parquet").unlink(), (d / "metrics.parquet").mkdir()),
        ["metrics.parquet"],
    ),
    "a later format": (
        lambda d: edit(d, format=99, versions={"fedsim-isrl": "9.9"}),
        ["summary.json", "format 99", "fedsim 9.9", "format 3"],
    ),
    "before formats": (lambda d: edit(d, format=None), ["format None", "reads format 3"]),
    "a list": (lambda d: (d / "summary.json").write_text("[]"), ["summary.json", "format None"]),
    "a wrong field": (lambda d: edit(d, rounds="many"), ["summary.json", "rounds", "integer"]),
    "a missing part": (lambda d: edit(d, privacy={}), ["summary.json", "privacy.unit", "required"]),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_run_is_refused_by_file_and_nothing_is_written(case: str, run_copy: Path) -> None:
    damage, expected = DAMAGE[case]
    damage(run_copy)
    before = {file: file.read_bytes() for file in run_copy.rglob("*") if file.is_file()}
    code, output = report(run_copy)
    assert code == 2, output
    assert output.startswith("error: RUN")
    assert len(output.strip().splitlines()) == 1
    for text in expected:
        assert text in output
    assert {file: file.read_bytes() for file in run_copy.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_path_that_is_no_directory_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if kind == "file":
        path.write_text("x")
    code, output = report(path)
    assert code == 2
    assert "no such directory" in output
