"""What `import fedsim` gives, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import fedsim

NAMES = [
    "Algorithm",
    "Arrays",
    "Asker",
    "Audit",
    "Batch",
    "Comparison",
    "FULL",
    "Fresh",
    "Full",
    "InputError",
    "Memory",
    "Message",
    "Poisson",
    "Price",
    "Public",
    "PublicProblem",
    "Query",
    "Refused",
    "Round",
    "Run",
    "Scenario",
    "ServerHalf",
    "Subsample",
    "Sweep",
    "Table",
    "WithReplacement",
    "__version__",
    "audit",
    "compare",
    "load_run",
    "price",
    "simulate",
    "sweep",
]
HEAVY = (
    "torch",
    "ray",
    "numpy",
    "scipy",
    "sklearn",
    "matplotlib",
    "pandas",
    "pyarrow",
    "pydantic",
    "rich",
    "yaml",
)


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these() -> None:
    assert sorted(fedsim.__all__) == sorted(NAMES)
    assert dir(fedsim) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(fedsim, name)
    if callable(thing) and name != "ServerHalf":
        assert (thing.__doc__ or "").strip()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'simulte'"):
        fedsim.simulte  # noqa: B018


def test_an_import_brings_nothing_heavy() -> None:
    found = python("-c", f"import sys, fedsim; print([m for m in {HEAVY} if m in sys.modules])")
    assert found == "[]"


def test_functions_stay_functions_after_their_rooms_are_imported() -> None:
    """A submodule of the same name would take their place."""
    code = (
        "import fedsim, importlib, pkgutil\n"
        "for room in pkgutil.iter_modules(fedsim.__path__):\n"
        "    if room.name != '__main__': importlib.import_module('fedsim.' + room.name)\n"
        "names = [name for name in fedsim.__all__ if name.islower() and '_' not in name]\n"
        "functions = [getattr(fedsim, name) for name in names]\n"
        "print([thing for thing in functions if not callable(thing)], len(functions))"
    )
    assert python("-c", code) == "[] 5"


def test_the_version_is_the_distributions() -> None:
    assert fedsim.__version__ == version("fedsim-isrl")


def test_the_package_runs_as_the_command_line() -> None:
    assert python("-m", "fedsim", "--version") == f"fedsim {version('fedsim-isrl')}"
