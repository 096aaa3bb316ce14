"""An image installs a list of hashes: of the versions that are tested here, whole, and nothing beside it."""

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.distribution import ROOT

IMAGES = ("silos", "server", "shuffler")
PIN = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.M)
TORCH = {"torch"}
BUILDS = {"setuptools"}
ON = [
    {"platform_machine": machine, "python_version": "3.11", "sys_platform": "linux"}
    for machine in ("x86_64", "aarch64")
]


def _locked(name: str) -> dict[str, str]:
    """Version by name; every line of the file is a pin with its hashes."""
    text = (ROOT / "deploy" / "lock" / f"{name}.txt").read_text()
    pins = PIN.findall(text)
    assert not re.sub(r"^#.*$", "", PIN.sub("", text), flags=re.M).strip()
    return {canonicalize_name(each): version for each, version, _ in pins}


def _needed(image: str) -> set[str]:
    """All that the product's part and its metrics bring, by what is installed here."""
    project = tomllib.loads((ROOT / image / "pyproject.toml").read_text())["project"]
    rest = [
        Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["metrics"]
    ]
    found: set[tuple[str, str]] = set()
    while rest:
        wanted = rest.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras} - {known for each, known in found if each == name}:
            found.add((name, extra))
            lines = [Requirement(line) for line in metadata.requires(name) or ()]
            rest += [
                line
                for line in lines
                if line.marker is None or any(line.marker.evaluate({**where, "extra": extra}) for where in ON)
            ]
    return {name for name, _ in found}


@pytest.mark.parametrize("image", IMAGES)
def test_a_lock_is_whole_and_has_nothing_beside(image):
    own = TORCH if image != "shuffler" else set()
    assert set(_locked(image)) | own == _needed(image) | BUILDS


@pytest.mark.parametrize("name", [*IMAGES, "torch"])
def test_a_lock_has_the_versions_that_are_tested(name):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {canonicalize_name(each): version for each, version in pinned.items()}
    assert {each: pinned.get(each) for each in _locked(name)} == _locked(name)


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_by_hash_and_else_the_product_alone(image):
    text = (ROOT / image / "Dockerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"pip install ([^&\n]*)", text)
    product = f"--no-deps --no-build-isolation ./{image}"
    assert installs[-1] == product
    assert all("--require-hashes" in line for line in installs[:-1])
    bases = re.findall(r"^FROM (\S+)", text, re.M)
    assert bases == ["${BASE}", "${BASE}"]
