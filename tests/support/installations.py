"""The three installations, each in an environment of its own: its wheel, and the libraries that it asks for.

No network is needed: a library is a link to the one of this Python's environment. What an installation does
not ask for is not there, and neither is the checkout, which that environment has installed too.
"""

import json
import os
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distribution, distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from support.distribution import ROOT, unpacked

_SCRIPT = """#!{place}/bin/python
import sys
from {script.module} import {script.attr}
sys.exit({script.attr}())
"""


def installed(folder: str, place: Path) -> Path:
    """The programs of a new environment at `place`, after `pip install ./FOLDER`."""
    venv.create(place, symlinks=True)
    site = place / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    with TemporaryDirectory() as source:
        unpacked(folder, Path(source), site)
    for library in _libraries(folder):
        if not (link := site / library.name).exists():
            link.symlink_to(library)
    for each in distributions(path=[str(site)]):
        for script in each.entry_points.select(group="console_scripts"):
            file = place / "bin" / script.name
            file.write_text(_SCRIPT.format(place=place, script=script))
            file.chmod(0o755)
    return place / "bin"


def _libraries(folder: str) -> set[Path]:
    """The files and folders, in this environment, of what an installation asks for."""
    found = set[Path]()
    for name in _required(folder):
        each = distribution(name)
        tops = {Path(file).parts[0] for file in each.files or ()} - {"..", "__pycache__"}
        found |= {Path(str(each.locate_file(top))) for top in tops if not top.endswith(".pth")}
    return found


def _required(folder: str) -> set[str]:
    """Names of the distributions that an installation pulls in."""
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    waiting, found = [Requirement(each) for each in project["dependencies"]], dict[str, set[str]]()
    while waiting:
        one = waiting.pop()
        known = found.get(one.name.lower())
        if known is None or not one.extras <= known:
            found[one.name.lower()] = (known or set()) | one.extras
            waiting += _needs(one)
    return set(found)


def _needs(one: Requirement) -> Iterator[Requirement]:
    for each in map(Requirement, distribution(one.name).requires or ()):
        extras = ("", *one.extras)
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
            yield each


class Done(NamedTuple):
    """What came of a command."""

    code: int
    output: str
    errors: str


def alone() -> Mapping[str, str]:
    """The variables of a process that sees its own installation alone."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def as_processes(bin: Path, commands: Sequence[tuple[Path, Sequence[str]]]) -> list[Done]:
    """Run `fedsim`, each time in a folder, as an operator does."""
    found = []
    for folder, arguments in commands:
        kept: dict[str, Any] = {"cwd": folder, "env": alone(), "capture_output": True, "text": True}
        done = subprocess.run([bin / "fedsim", *arguments], **kept, check=False, timeout=600)
        found.append(Done(done.returncode, done.stdout, done.stderr))
    return found


_FORKING = """
import json, os, sys, traceback
import numpy, torch, pydantic, rich.table, fedsim.cli.main

def child(folder, arguments, out, err):
    os.chdir(folder)
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), number)
    sys.argv, code = ["fedsim", *arguments], 1
    try:
        code = fedsim.cli.main.main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)

for folder, arguments in json.load(sys.stdin):
    if not (process := os.fork()):
        child(folder, arguments, folder + ".out", folder + ".err")
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


def forked(bin: Path, commands: Sequence[tuple[Path, Sequence[str]]]) -> list[Done]:
    """The same in forks of a process of the installation that has loaded what takes long."""
    asked = json.dumps([(str(folder), list(arguments)) for folder, arguments in commands])
    kept: dict[str, Any] = {"cwd": bin, "input": asked, "env": alone(), "capture_output": True, "text": True}
    done = subprocess.run([bin / "python", "-c", _FORKING], **kept, check=True, timeout=600)
    ends = zip(done.stdout.split(), commands, strict=True)
    return [
        Done(int(code), *(Path(f"{folder}.{end}").read_text() for end in ("out", "err")))
        for code, (folder, _) in ends
    ]
