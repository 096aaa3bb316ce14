"""`fedsim inspect` and the options that it shares with `schema-from`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsim.cli.main import app

TABLE = "age;ward;sick\n" + "".join(
    f"{20 + k};{'ab'[k % 2]};{'yes' if k % 3 == 0 else 'no'}\n" for k in range(30)
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text(TABLE + "50,5;[red];yes\n")


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_table_at_a_glance() -> None:
    code, said = invoke("inspect", "table.csv", "--target", "sick", "--silo", "ward", "--decimal", ",")
    assert code == 0, said
    assert "not private" in said.splitlines()[0]
    assert "Keep it where the records are" in said.splitlines()[0]
    text = " ".join(said.split())
    for expected in (
        "table.csv: 31 records, 3 columns",
        "age number 20 to 50.5",
        "ward category a 15, b 15, [red] 1",
        "no: 20 (64.5%)",
        "3 silos by ward",
        "[red] 1 no 0%, yes 100%",
    ):
        assert expected in text


def test_the_same_as_json() -> None:
    code, said = invoke("inspect", "table.csv", "--target", "sick", "--silo", "ward", "--json")
    assert code == 0
    found = json.loads(said)
    assert found["records"] == 31
    assert found["target"]["classes"] == {"no": 20, "yes": 11}
    assert [silo["records"] for silo in found["silos"]["sizes"]] == [1, 15, 15]
    assert "not private" in found["not_private"]


def test_records_without_a_silo_are_counted_with_the_remedy() -> None:
    Path("table.csv").write_text(TABLE + "51;NA;no\n")
    said = " ".join(invoke("inspect", "table.csv", "--silo", "ward")[1].split())
    assert "1 records name no silo: the partition's `without_silo` says where they go" in said


@pytest.mark.parametrize("command", ["inspect", "schema-from"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["none.csv"], "error: TABLE: 'none.csv': no such file"),
        (
            ["table.csv", "--silo", "wart"],
            "error: --silo: 'wart': table.csv has no such column; did you mean",
        ),
        (["table.csv", "--delimiter", ";;"], "error: --delimiter: ';;': must be one character"),
        (["table.csv", "--encoding", "klingon"], "error: --encoding: 'klingon': no such encoding"),
        (["table.csv", "--decimal", "x"], "error: --decimal: 'x': "),
        (["table.csv", "--encoding", "utf-16"], "error: TABLE: 'table.csv': not a readable CSV"),
        (["table.csv", "table.csv"], "error: TABLE: 'table.csv': is given twice"),
    ],
)
def test_bad_input_names_the_option(command: str, arguments: list[str], expected: str) -> None:
    target = ["--target", "sick"]
    code, said = invoke(command, *arguments, *target)
    assert code == 2, said
    assert expected in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("command", ["inspect", "schema-from"])
def test_it_needs_nothing_that_a_silos_image_lacks(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the records are is where it is run; torch would take seconds, pandas is not there."""
    for module in ("torch", "pandas", "sklearn"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in [name for name in sys.modules if name.startswith("fedsim.data")]:
        monkeypatch.delitem(sys.modules, module)
    assert invoke(command, "table.csv", "--target", "sick", "--silo", "ward")[0] == 0
