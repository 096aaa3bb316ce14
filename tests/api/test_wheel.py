"""The wheel brings all that a person needs: scenarios, templates, types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import pages
from support.distribution import ROOT
from support.wheels import unpacked

from fedsim.scenario.catalogue import shipped

_IN_PACKAGE = ROOT / "fedsim" / "scenario" / "shipped"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy and unpacked."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    return unpacked(ROOT / "pyproject.toml", source, site)


def test_a_scenario_is_a_name_in_a_checkout() -> None:
    files = [path for path in (ROOT / "scenarios").rglob("*.yaml") if not path.stem.endswith(".schema")]
    assert shipped() == {path.stem: _IN_PACKAGE / path.relative_to(ROOT / "scenarios") for path in files}
    assert len(files) == len(shipped())
    assert "mnist_logistic" in shipped()


@pytest.mark.slow
def test_the_wheel_has_scenarios_templates_and_types(site: Path) -> None:
    names = {str(path.relative_to(site / "fedsim")) for path in (site / "fedsim").rglob("*")}
    assert {f"scenario/shipped/{path.relative_to(_IN_PACKAGE)}" for path in shipped().values()} <= names
    assert {
        "py.typed",
        "__main__.py",
        "report/templates/report.html",
        "cli/package/algorithm.py.txt",
    } <= names


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("-m", "fedsim", "simulate", "quickstart", "--set", "trials=1", "--runtime", "inprocess"),
        ("-m", "fedsim", "privacy", "quickstart"),
        ("-c", pages.notebook(ROOT / "examples" / "first_run.ipynb")[0]),
    ],
    ids=["simulate", "privacy", "first_run.ipynb"],
)
def test_a_scenario_runs_by_name_from_the_wheel(site: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    where = [sys.executable, "-c", "import fedsim; print(fedsim.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(site))
