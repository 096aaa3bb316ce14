"""Distributions as an installer leaves them, wheels built from the source, and processes of this Python."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


def install(
    site: Path, name: str, modules: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]]
) -> None:
    """Put {module: source} and {group: {name: value}} into `site`, to be put on a path."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, points in entry_points.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source, encoding="utf-8")


def python(
    *arguments: object, paths: tuple[Path, ...], cwd: Path = ROOT, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this Python with `paths` before everything else."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, input=stdin
    )


def assert_not_loaded(statements: str, names: str) -> None:
    """A fresh process that runs these has none of the modules, nor any below them."""
    code = (
        f"import sys\n{statements}\n"
        f"print([m for m in sys.modules for name in {names.split()!r} if (m + '.').startswith(name + '.')])"
    )
    done = python("-c", code, paths=())
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["[]"]), done.stderr


def fedsim(*arguments: object, site: Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command line in an environment where `site` is installed."""
    return python("-m", "fedsim.cli.main", *arguments, paths=(site,), cwd=cwd)


PARTS = ("fedsim", "silos", "server", "shuffler", "scenarios", "README.md", "LICENSE")


def unpacked(folder: str, source: Path, site: Path) -> Path:
    """`site` with what the wheel of this folder of the checkout holds; `source` and `site` are empty."""
    for name in (*PARTS, "pyproject.toml"):
        path, ignored = ROOT / name, shutil.ignore_patterns("__pycache__")
        if path.is_dir():
            shutil.copytree(path, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(path, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source / folder)], check=True)
    (wheel,) = site.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def gone(pid: int) -> bool:
    """Also a zombie: the process that inherits it may never reap it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
