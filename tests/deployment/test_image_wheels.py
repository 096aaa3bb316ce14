"""An image holds its own side alone: silo, server or shuffler, and nothing that only a simulation needs."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.distribution import ROOT
from support.installations import alone, installed

ABSENT = {
    "silos": ("server", "shuffler", "fedsim/deployment", "fedsim/report", "fedsim/simulation", "fedsim/api"),
    "server": ("silos", "shuffler", "fedsim/simulation", "fedsim/simulation/sweeps", "fedsim/testing"),
    "shuffler": ("silos", "server", "fedsim/scenario", "fedsim/simulation", "fedsim/cli"),
}
COMMANDS = {
    "silos": {"fedsim.cli.main", "fedsim.cli.ledger"},
    "server": {"fedsim.cli.main", "fedsim.cli.parties", "fedsim.cli.deploy"},
    "shuffler": set(),
}
"""Of the command line and of what it shares with Python, only this is a side's; the rest says that it is not
installed."""
IMPORT_ALL = """
import importlib
for name in {modules!r}:
    importlib.import_module(name)
"""
ENROL = """
import numpy
from fedsim.privacy.discrete_noise import with_noise
from shuffler.service import run
from pathlib import Path
with_noise(numpy.zeros(3, numpy.int64), 10.0)
raise SystemExit(run(Path({file!r}), enrolling=True, health=False))
"""


def _project(folder: str = ".") -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def _names(folder: str = ".") -> set[str]:
    return {re.split(r"[\[<>=]", each)[0] for each in _project(folder)["project"]["dependencies"]}


@pytest.fixture(scope="module", params=sorted(ABSENT))
def folder(request):
    return str(request.param)


@pytest.fixture(scope="module")
def site(folder, tmp_path_factory):
    programs = installed(folder, tmp_path_factory.mktemp("installed"))
    return next(programs.parent.glob("lib/*/site-packages"))


def test_the_other_side_is_not_in_it(folder, site):
    assert (site / folder).is_dir()
    assert (site / "fedsim" / "wire" / "frames.py").is_file()
    assert not [name for name in ABSENT[folder] if (site / name).exists()]


@pytest.mark.slow
def test_all_of_it_can_be_imported_without_the_rest(folder, site):
    files = [path.relative_to(site) for path in site.rglob("*.py") if not path.name.startswith("__")]
    own = ("shuffler",) if folder == "shuffler" else ("fedsim", "silos", "server")  # its part of fedsim
    files = [path for path in files if path.parts[0] in own and path.parts[1] not in ("cli", "api")]
    modules = {".".join(path.with_suffix("").parts) for path in files}
    done = _alone(site, IMPORT_ALL.format(modules=sorted(modules | COMMANDS[folder])))
    assert done.returncode == 0, done.stderr


def test_a_shuffler_enrols_with_what_its_image_has(folder, site, tmp_path):
    """And draws noise; without torch, Flower, typer or any of the server."""
    if folder != "shuffler":
        pytest.skip("of the shuffler's image alone")
    (tmp_path / "shuffler.yaml").write_text("{state: state, listen: {socket: s}, rosters: [roster.yaml]}")
    done = _alone(site, ENROL.format(file=str(tmp_path / "shuffler.yaml")))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "state" / "released.sqlite").is_file()


def test_it_is_this_version_and_takes_the_same_dependencies(folder):
    whole, part = _project()["project"], _project(folder)["project"]
    assert part["version"] == whole["version"]
    assert part["requires-python"] == whole["requires-python"]
    assert set(part["dependencies"]) <= set(whole["dependencies"])
    assert "ray" not in _names(folder)


def _alone(site: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script where nothing but this wheel and its dependencies is installed."""
    command = [site.parents[2] / "bin" / "python", "-c", script]
    return subprocess.run(command, cwd=site, env=alone(), capture_output=True, text=True, check=False)
