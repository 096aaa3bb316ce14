"""Every message of the table "Trouble" is one that the code says."""

import ast
import re
from functools import cache

import pytest
from support import pages
from support.distribution import ROOT

VALUE = "\0"  # what a message quotes
QUOTED = re.compile(r"\bnorth\b|\b\d+\b|\.\.\.|\bledger\.sqlite(?:-head)?|\b(?:approved|refused)\b")


@cache
def said() -> list[str]:
    """Every text of the code and of what containers run, with `VALUE` where a value is filled in."""
    parts = ("fedsim", "silos", "server", "shuffler")
    files = [file for part in parts for file in (ROOT / part).rglob("*.py")]
    scripts = [file.read_text(encoding="utf-8") for file in (ROOT / "deploy").glob("*.sh")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    return [*scripts, *(" ".join(text.split()) for node in nodes if (text := written(node)))]


def written(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return written(node.left) + written(node.right)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return VALUE


def messages() -> list[str]:
    table = pages.text("docs/deployment.md").partition("\n## Trouble\n")[2]
    cells = re.findall(r"^\| ([^|]+) \|[^|]+\|[^|]+\|$", table, re.M)[1:]
    parts = [part for cell in cells for part in re.split(r"; | / | \(the server's\)", cell) if part]
    return [part for part in parts if not set(part) <= set("-")]


@pytest.mark.parametrize("message", messages())
def test_the_code_says_what_the_table_explains(message):
    pattern = "(?:.+)".join(re.escape(part) for part in QUOTED.split(message))
    pattern = pattern.replace(re.escape("the silo's ledger"), r"(?:the silo's ledger|\0)")
    assert any(re.search(pattern, text) for text in said()), pattern
