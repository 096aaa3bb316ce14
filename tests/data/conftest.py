"""Tables and schemas that the data tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsim.data.csv_table import Csv

CLINIC = """\
age,sex,hospital,chol,outcome,note
63,male,north,233,ill,a
41,female,south,?,well,b
57,female,north,354,ill,c
29,male,east,,well,d
48,male,south,229,well,e
70,female,east,NaN,ill,f
"""
SCHEMA: dict[str, Any] = {
    "age": {"kind": "number", "lower": 20, "upper": 80},
    "sex": {"kind": "category", "categories": ["female", "male"]},
    "chol": {"kind": "number", "lower": 100, "upper": 400, "scale": "log", "fill": 200},
    "outcome": {"kind": "category", "categories": ["well", "ill"]},
}

MakeCsv = Callable[..., Csv]


@pytest.fixture
def make_csv(tmp_path: Path) -> MakeCsv:
    """`make_csv(text, **overrides)`: a configuration for a table with this text."""

    def make(text: str = CLINIC, **overrides: Any) -> Csv:
        path = tmp_path / "clinic.csv"
        path.write_text(text)
        fields = {"path": path, "target": "outcome", "silo_column": "hospital", "schema": SCHEMA}
        return Csv(**{**fields, **overrides})

    return make


@pytest.fixture
def schema() -> dict[str, Any]:
    """A copy that a test may change."""
    return {name: dict(column) for name, column in SCHEMA.items()}
