"""`fedsim new`: a package for an algorithm; never over what is there."""

from __future__ import annotations

import keyword
import pkgutil
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from fedsim.cli.app import SCENARIOS, app, check_unused
from fedsim.common.errors import InputError
from fedsim.common.files import atomic_directory, writing

_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "scenario.yaml": "scenario.yaml",
    "algorithm.py": "{name}.py",
    "test_algorithm.py": "tests/test_{name}.py",
}
"""Templates in `fedsim/cli/package`, and where they go."""


@app.command(rich_help_panel=SCENARIOS)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The algorithm's name, such as my_algorithm.")],
    place: Annotated[
        Path | None, typer.Argument(metavar="[PLACE]", help="A new directory; default ./NAME.")
    ] = None,
) -> None:
    """Begin an algorithm, as a package with a scenario and tests that pass."""
    import fedsim.algorithms  # neither torch nor a plug-in
    import fedsim.simulation  # (one party's installation has none, and could not run what is written)

    folder = place or Path(name)
    if not re.fullmatch("[a-z][a-z0-9_]{0,60}", name) or keyword.iskeyword(name):
        hint = "must be a module's name: small letters, digits and underscores, such as my_algorithm"
        raise InputError("NAME", name, hint)
    if name in {module.name for module in pkgutil.iter_modules(fedsim.algorithms.__path__)}:
        raise InputError("NAME", name, "fedsim has an algorithm of this name; choose another")
    found = find_spec(name)
    if found is not None and found.origin is not None:  # None: a mere folder
        raise InputError("NAME", name, "a module of this name is installed; choose another")
    check_unused(folder, "PLACE")
    kind = "".join(part.capitalize() for part in name.split("_"))
    values = {"name": name, "kind": kind, "distribution": name.replace("_", "-") + "-for-fedsim"}
    package, written = files("fedsim.cli") / "package", []
    with writing(folder, "DIR"), atomic_directory(folder) as draft:
        for template, name_of in _FILES.items():
            text = Template((package / f"{template}.txt").read_text(encoding="utf-8")).substitute(values)
            written.append(name_of.format(name=name))
            (draft / written[-1]).parent.mkdir(exist_ok=True)
            (draft / written[-1]).write_text(text, encoding="utf-8")
    typer.echo(f"Wrote {folder}/ ({', '.join(sorted(written))})")
    typer.echo(f"Next: cd {folder}; pip install -e .; fedsim simulate scenario.yaml; pytest")
