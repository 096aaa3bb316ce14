"""An image holds its own side alone: silo, server or shuffler, and nothing that only a simulation needs."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from support.distribution import ROOT, unpacked

ABSENT = {
    "silos": ("server", "shuffler", "fedsim/deployment", "fedsim/report", "fedsim/simulation", "fedsim/api"),
    "server": ("silos", "shuffler", "fedsim/simulation", "fedsim/simulation/sweeps", "fedsim/testing"),
    "shuffler": ("silos", "server", "fedsim/scenario", "fedsim/simulation", "fedsim/cli"),
}
ALONE = """
import importlib, runpy, sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in getattr(each, "__module__", "")]
for name in {blocked!r}:
    sys.modules[name] = None
"""
"""Before a script: the checkout that pip may have installed is out of reach, and so is what is blocked."""
COMMANDS = {
    "silos": {"fedsim.cli.main", "fedsim.cli.ledger"},
    "server": {"fedsim.cli.main", "fedsim.cli.parties", "fedsim.cli.deploy"},
    "shuffler": set(),
}
"""Of the command line and of what it shares with Python, only this is a side's; the rest says that it is not
installed."""
IMPORT_ALL = """
for name in {modules!r}:
    importlib.import_module(name)
"""
SIMULATE = """
sys.argv[1:] = ["simulate", "breast_cancer"]
runpy.run_module("fedsim", run_name="__main__")
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


def _blocked(folder: str) -> list[str]:
    """The other side, and modules of distributions that this image does not install."""
    without = _names() - _names(folder)
    installed = packages_distributions().items()
    other = "server" if folder == "silos" else "silos"
    return [
        other,
        *(module for module, owners in installed if without & set(owners) and module.isidentifier()),
    ]


@pytest.fixture(scope="module", params=sorted(ABSENT))
def folder(request):
    return str(request.param)


@pytest.fixture(scope="module")
def site(folder, tmp_path_factory):
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    return unpacked(folder, source, site)


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
    done = _alone(folder, site, IMPORT_ALL.format(modules=sorted(modules | COMMANDS[folder])))
    assert done.returncode == 0, done.stderr


def test_a_command_of_another_part_says_so(folder, site):
    if folder == "shuffler":
        pytest.skip("its image has no command line but its own")
    done = _alone(folder, site, SIMULATE)
    assert done.returncode == 2
    assert "not part of this installation" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_shuffler_enrols_with_what_its_image_has(folder, site, tmp_path):
    """And draws noise; without torch, Flower, typer or any of the server."""
    if folder != "shuffler":
        pytest.skip("of the shuffler's image alone")
    (tmp_path / "shuffler.yaml").write_text("{state: state, listen: {socket: s}, rosters: [roster.yaml]}")
    done = _alone(folder, site, ENROL.format(file=str(tmp_path / "shuffler.yaml")))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "state" / "released.sqlite").is_file()


def test_it_is_this_version_and_takes_the_same_dependencies(folder):
    whole, part = _project()["project"], _project(folder)["project"]
    assert part["version"] == whole["version"]
    assert part["requires-python"] == whole["requires-python"]
    assert set(part["dependencies"]) <= set(whole["dependencies"])
    assert "ray" not in _names(folder)


def _alone(folder: str, site: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script where nothing but this wheel and its dependencies is installed."""
    environment = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-c", ALONE.format(blocked=_blocked(folder)) + script]
    return subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, check=False)
