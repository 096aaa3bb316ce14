"""One version, one licence, and the same tools wherever the project names them."""

import re
import tomllib
from typing import Any

import yaml
from support.distribution import ROOT

PROJECTS = ("", "silos/", "server/", "shuffler/")
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def project(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / f"{folder}pyproject.toml").read_text())["project"]
    return found


def test_images_and_citation_have_the_packages_version_and_licence() -> None:
    assert {project(folder)["version"].partition("+")[0] for folder in PROJECTS} == {VERSION}
    assert {project(folder)["license"] for folder in PROJECTS} == {"Apache-2.0"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (VERSION, "Apache-2.0")
    assert (
        "Apache License\n                           Version 2.0, January 2004"
        in (ROOT / "LICENSE").read_text()
    )


def test_documents_and_compose_files_name_images_of_this_version() -> None:
    for name in ("docker-compose.yml", "docs/deployment.md", "deploy/compose-test.sh"):
        tags = re.findall(r"fedsim-[\w$]+:(\d[\w.]*)", (ROOT / name).read_text())
        assert tags, name
        assert set(tags) == {VERSION}, name


def test_pre_commit_runs_the_tools_of_make_check() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooked = {hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]}
    body = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert body
    checked = {re.sub(r"\$\(BIN\)/| --check| \.$", "", line.strip()) for line in body[1].splitlines()}
    assert {entry.removesuffix(" --fix") for entry in hooked} == checked


def test_the_workflow_calls_make_with_pinned_actions_and_reads_only() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    workflow = yaml.safe_load(text)
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = {step["run"].split()[1] for step in steps if "run" in step}
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
    assert called == {"test", "wheel", "docs"} & targets
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    assert workflow["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in workflow["jobs"].values())


def test_the_workflow_covers_the_pythons_that_the_package_allows() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    tried = workflow["jobs"]["gate"]["strategy"]["matrix"]["python"]
    stated = [name.rpartition(" ")[2] for name in project("")["classifiers"] if re.search(r"3\.\d+$", name)]
    assert tried == stated
    assert project("")["requires-python"] == f">={tried[0]},<3.{int(tried[-1].split('.')[1]) + 1}"
