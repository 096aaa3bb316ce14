"""docs/adding-an-algorithm.md, done: its file, its row with the shared and rate tests, its scenario."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from support.distribution import ROOT, fedsim, install, python

PAGE = (ROOT / "docs" / "adding-an-algorithm.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- (?:file: )?(\S+) -->\n```\w+\n(.*?)```", PAGE, re.S))
SOURCE = BLOCKS["fedsim/algorithms/momentum_minibatch_sgd.py"]

# Loaded before the tests: what adding the file to the package and the row to the table would do.
PLUGIN = """
import fedsim.algorithms
fedsim.algorithms.__path__.append({folder!r})
from support import algorithm_table
imports, row = {row!r}.split("\\nRow(", 1)
exec(imports, vars(algorithm_table))
algorithm_table.ROWS += (eval("Row(" + row, vars(algorithm_table)),)
"""


@pytest.mark.slow
def test_the_file_passes_the_shared_tests_and_the_rate_test_by_its_row(tmp_path: Path) -> None:
    folder = tmp_path / "algorithms"
    folder.mkdir()
    (folder / "momentum_minibatch_sgd.py").write_text(SOURCE, encoding="utf-8")
    plugin = PLUGIN.format(folder=str(folder), row=BLOCKS["row"])
    (tmp_path / "walkthrough.py").write_text(plugin, encoding="utf-8")
    rates = "tests/algorithms/test_rates.py::test_the_excess_risk_has_the_theorems_exponent"
    selected = [
        "tests/algorithms/test_algorithm_contract.py",
        "tests/algorithms/test_through_scenarios.py",
        *(f"{rates}[momentum_minibatch_sgd-{variable}]" for variable in ("eps", "n")),
    ]
    options = [
        "-q",
        "-p",
        "walkthrough",
        "-p",
        "no:cacheprovider",
        "-k",
        "registered or (momentum and not softmax)",
    ]
    done = python("-m", "pytest", *options, *selected, paths=(tmp_path, ROOT / "tests"))
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 18


@pytest.mark.slow
def test_the_package_adds_it_to_the_command_line(tmp_path: Path) -> None:
    project = tomllib.loads(BLOCKS["pyproject.toml"])
    (module,) = project["tool"]["setuptools"]["py-modules"]
    name, points = project["project"]["name"], project["project"]["entry-points"]
    install(tmp_path / "site", name, {module: SOURCE}, points)
    scenario = tmp_path / "momentum.yaml"
    scenario.write_text(BLOCKS["scenarios/momentum.yaml"], encoding="utf-8")
    done = fedsim("simulate", scenario, "--out", tmp_path / "run", site=tmp_path / "site")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 20
    assert summary["metrics"]["error"] < 0.2
    assert all(0.97 * 2 <= silo["epsilon_guaranteed"] <= 2 for silo in summary["privacy"]["silos"])


def test_the_commands_of_the_page_are_those_that_were_run() -> None:
    commands = re.findall(r"```console\n(.*?)```", PAGE, re.S)
    assert [line for block in commands for line in block.splitlines()] == [
        "pytest tests/algorithms -k momentum_minibatch_sgd",
        "fedsim privacy scenarios/momentum.yaml",
        "fedsim simulate scenarios/momentum.yaml",
    ]
