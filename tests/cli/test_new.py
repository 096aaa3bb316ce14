"""`fedsim new`: what it writes runs as it is, and it writes over nothing."""

import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.distribution import ROOT
from support.scenarios import BASE, invoke, refusal

import fedsim
from fedsim.testing import PROPERTIES


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "mine"
    invoke("new", "my_sgd2", place)
    yield place
    sys.modules.pop("my_sgd2", None)  # a name that is taken is refused


def test_the_package_is_an_algorithm_with_an_entry_point_a_scenario_and_tests(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quick: nothing is installed, and the algorithm runs as an object."""
    names = ["README.md", "my_sgd2.py", "pyproject.toml", "scenario.yaml", "tests/test_my_sgd2.py"]
    assert sorted(str(f.relative_to(package)) for f in package.rglob("*") if f.is_file()) == names
    assert "$" not in "".join((package / name).read_text() for name in names)
    monkeypatch.syspath_prepend(package)
    project = tomllib.loads((package / "pyproject.toml").read_text())
    ((name, value),) = project["project"]["entry-points"]["fedsim.algorithms"].items()
    module, _, attribute = value.partition(":")
    assert (name, module, project["tool"]["setuptools"]["py-modules"]) == ("my_sgd2", "my_sgd2", ["my_sgd2"])
    kind = getattr(__import__(module), attribute)
    tree = yaml.safe_load((package / "scenario.yaml").read_text())
    section = tree.pop("algorithm")
    assert section.pop("name") == "my_sgd2"
    assert set(section) <= {field.name for field in fields(kind)}
    base = tree | {"trials": 1, "algorithm": BASE["algorithm"]}
    run = fedsim.simulate(base, algorithm=kind(**section))
    assert run.summary.metrics.error is not None
    assert run.summary.metrics.error < 0.2
    tests: dict[str, Any] = {"__file__": str(package / names[-1])}
    exec((package / names[-1]).read_text(), tests)
    for check in PROPERTIES:
        if "optimum" not in check.name:  # they take more rounds
            check.holds(tests["TestProperties"].example)


@pytest.mark.slow
def test_the_package_installs_and_passes_as_it_is(package: Path, tmp_path: Path) -> None:
    """In an environment of its own, into which everything that fedsim needs is linked."""
    home = tmp_path / "environment"
    venv.create(home)
    (site,) = home.glob("lib/python*/site-packages")
    (here,) = {path for path in sys.path if path.endswith("site-packages")}
    (site / "parent.pth").write_text(f"{ROOT}\n{here}\n")

    def done(*command: object) -> str:
        arguments = [str(home / "bin" / "python"), "-m", *map(str, command)]
        ran = subprocess.run(
            arguments, cwd=package, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    done("pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "-e", ".")
    assert "my_sgd2" in done("fedsim", "list")
    assert "guaranteed" in done("fedsim", "simulate", "scenario.yaml", "--out", "run")
    assert " passed" in done("pytest", "-q", "-W", "error")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "small letters") for name in ("My_sgd", "my-sgd", "../sgd", "2sgd", "lambda")),
        ("local_sgd", "fedsim has an algorithm of this name"),
        *((name, "is installed") for name in ("json", "numpy", "fedsim")),
    ],
)
def test_a_name_that_will_not_do_is_refused_and_nothing_is_written(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal("new", name)
    assert said in line
    assert f"NAME: {name!r}" in line
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").write_text("mine")
    assert "is there already" in refusal("new", "my_sgd", "there")
    assert Path("there").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
