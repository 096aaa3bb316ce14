"""Links between documents lead somewhere, here and on the site, which has the same paths."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.distribution import ROOT

DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/*.md", "*/README.md", ".github/**/*.md") for path in ROOT.glob(pattern)
)
PROSE = re.compile(r"^```.*?^```|`[^`\n]*`", re.S | re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.M))
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def dead(page: Path) -> list[str]:
    """The page's relative links that lead nowhere."""
    links = LINK.findall(PROSE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in links if not re.match(r"\w+:", link) and not leads_somewhere(page, link)]


def leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return target.is_file() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(page):
    assert dead(page) == []


def test_a_dead_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Here `it` is\n[a](gone.md) [b](#there) [c](#here-it-is) [d](https://x) `[e](f)`\n")
    assert dead(page) == ["gone.md", "#there"]


@pytest.mark.parametrize(
    "page", [page for page in DOCUMENTS if page.name != "CHANGELOG.md"], ids=lambda page: page.stem
)
def test_the_files_that_a_page_names_exist(page):
    named = re.findall(
        r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|yaml))[^`]*`", page.read_text(encoding="utf-8")
    )
    places = (ROOT, ROOT / "fedsim", ROOT / "docs", page.parent)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_package_is_in_the_picture():
    picture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = {folder.name for folder in (ROOT / "fedsim").iterdir() if (folder / "__init__.py").exists()}
    assert packages | {"silos", "server", "shuffler"} == set(re.findall(r'(\w+)\["', picture))


REPLACED = r"nobody|whoever|somebody|everybody|told|twins?|silo half|server half|(?:worst|honest) server"
GENERATED = {"thesis-audit.md"}  # by benchmarks, from docstrings
ABOUT_WORDS = {"CONTRIBUTING.md", "CHANGELOG.md"}


@pytest.mark.parametrize(
    "page",
    [page for page in DOCUMENTS if page.name not in GENERATED | ABOUT_WORDS],
    ids=lambda page: page.stem,
)
def test_a_page_uses_no_word_that_contributing_replaces(page):
    prose = PROSE.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(rf"\b(?:{REPLACED})\b", prose, re.I) == []


def test_the_fields_words_are_in_the_glossary():
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [term for term in re.findall(r"^\| ([^|]+) \|", glossary, re.M) if term != "term"]
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = contributing.partition("| term of the field | instead of |\n|---|---|\n")[2].partition("\n\n")[0]
    words = re.findall(r"^\| ([^|(]+?) (?:\([^|]*\) )?\|", rows, re.M)
    assert len(set(terms)) == len(terms)
    assert len(terms) >= 40
    assert len(words) >= 15
    assert [word for word in words if not any(word in term for term in terms)] == []


# One version, one licence, and the same tools wherever the project names them.

PROJECTS = ("", "silos/", "server/", "shuffler/")
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / f"{folder}pyproject.toml").read_text())["project"]


def test_images_and_citation_have_the_packages_version_and_licence():
    assert {project(folder)["version"].partition("+")[0] for folder in PROJECTS} == {VERSION}
    assert {project(folder)["license"] for folder in PROJECTS} == {"Apache-2.0"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (VERSION, "Apache-2.0")
    assert (
        "Apache License\n                           Version 2.0, January 2004"
        in (ROOT / "LICENSE").read_text()
    )


def test_documents_and_compose_files_name_images_of_this_version():
    for name in ("docker-compose.yml", "docs/deployment.md", "deploy/compose-test.sh"):
        tags = re.findall(r"fedsim-[\w$]+:(\d[\w.]*)", (ROOT / name).read_text())
        assert tags, name
        assert set(tags) == {VERSION}, name


def test_pre_commit_runs_the_tools_of_make_check():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooked = {hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]}
    body = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert body
    checked = {re.sub(r"\$\(BIN\)/| --check| \.$", "", line.strip()) for line in body[1].splitlines()}
    assert {entry.removesuffix(" --fix") for entry in hooked} == checked


def test_the_workflow_calls_make_with_pinned_actions_and_reads_only():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    workflow = yaml.safe_load(text)
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = {step["run"].split()[1] for step in steps if "run" in step}
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
    assert called == {"test", "wheel", "docs"} & targets
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    assert workflow["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in workflow["jobs"].values())


def test_the_workflow_covers_the_pythons_that_the_package_allows():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    tried = workflow["jobs"]["gate"]["strategy"]["matrix"]["python"]
    stated = [name.rpartition(" ")[2] for name in project("")["classifiers"] if re.search(r"3\.\d+$", name)]
    assert tried == stated
    assert project("")["requires-python"] == f">={tried[0]},<3.{int(tried[-1].split('.')[1]) + 1}"
