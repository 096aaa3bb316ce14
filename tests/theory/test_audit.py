"""The audit of the thesis's claims: the committed document, and which claims fail from where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsim.cli.main import app

DOCUMENT = Path(__file__).parents[2] / "docs" / "thesis-audit.md"


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["theorems", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_committed_document_is_what_the_command_writes() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == invoke("--markdown")


FIRST_FAILURE = {
    "noisy MB-SGD": None,
    "accelerated MB-SGD, empirical": None,
    "accelerated MB-SGD, one pass": None,
    "prox-SGD": 8.0,
    "prox-PL-SVRG": None,
    "prox-SPIDER": 10.0,
    "alternate SPIDER": 6.0,
    "local SGD": 0.75,
    "the experiments' formula": 6.0,
}


@pytest.mark.parametrize("name", FIRST_FAILURE)
def test_claims_fail_from_where_they_are_known_to(name: str) -> None:
    (entry,) = [entry for entry in json.loads(invoke("--json")) if entry["theorem"].startswith(name)]
    failing = [row["target"] for row in entry["rows"] if row["fails"]]
    assert (min(failing) if failing else None) == FIRST_FAILURE[name]
    assert entry["verdict"].endswith(".")
    assert ("fails" in entry["verdict"]) == bool(failing)


def test_the_table_on_a_screen_names_every_theorem_and_what_fails() -> None:
    output = invoke()
    for name in FIRST_FAILURE:
        assert name in output
    assert "fails" in output
    assert "outside" in output
