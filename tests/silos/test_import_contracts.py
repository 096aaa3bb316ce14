"""The import contracts that guard records, and the one against circles, can be broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.distribution import ROOT

LINT = """
import sys
from importlinter.cli import lint_imports

sys.exit(lint_imports(limit_to_contracts=tuple(sys.argv[1:]), cache_dir='cache', no_logo=True))
"""
READS = "from silos.vault.records import Records"
LATER = "def later():\n    "
TYPES = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    "


def lint(folder: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LINT, *contracts]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for package in settings["tool"]["importlinter"]["root_packages"]:
        for file in (ROOT / package).rglob("*.py"):
            place = folder / file.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("silos/front/service.py", READS, "records"),
        ("silos/front/service.py", LATER + READS, "records"),
        ("silos/vault/account.py", TYPES + READS, "records"),
        ("server/aggregate.py", "import silos.vault.network", "records"),
        ("fedsim/simulation/trial.py", READS, "records"),
        ("silos/front/offers.py", "from silos.front.own_records import read_records", "records-file"),
        ("silos/front/config.py", LATER + "from fedsim.data import registry", "no-simulation"),
        ("fedsim/data/prepare.py", LATER + "from fedsim.data import fetch", "no-simulation"),
        ("silos/vault/book.py", LATER + "import silos.front.service", "acyclic"),
        ("silos/vault/book.py", TYPES + "from silos.vault.ledger import RunLedger", "acyclic"),
        ("fedsim/common/errors.py", LATER + "from fedsim.data import source", "acyclic"),
    ],
)
def test_one_import_more_breaks_a_contract(copy, module, line, contract):
    place = copy / module
    before = place.read_text(encoding="utf-8")
    place.write_text(f"{before}\n\n{line}\n", encoding="utf-8")
    changed = lint(copy, contract)
    place.write_text(before, encoding="utf-8")
    assert changed.returncode == 1, changed.stdout
    assert "BROKEN" in changed.stdout


def test_the_unchanged_copy_keeps_them(copy):
    kept = lint(copy, "records", "records-file", "acyclic")
    assert kept.returncode == 0, kept.stdout
    assert kept.stdout.count("KEPT") == 3
