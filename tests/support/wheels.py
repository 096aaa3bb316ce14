"""Wheels, built from a copy of the source and unpacked."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from support.distribution import ROOT

PARTS = ("fedsim", "silos", "server", "shuffler", "scenarios", "README.md", "LICENSE")


def unpacked(project: Path, source: Path, site: Path) -> Path:
    """`site` with what the wheel of this pyproject.toml holds; `source` and `site` are empty folders."""
    for name in PARTS:
        path, ignored = ROOT / name, shutil.ignore_patterns("__pycache__")
        if path.is_dir():
            shutil.copytree(path, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(path, source)
    shutil.copy(project, source / "pyproject.toml")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (wheel,) = site.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site
