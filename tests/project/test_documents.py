"""Links between documents lead somewhere, here and on the site, which has the same paths."""

import re
from pathlib import Path

import pytest
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
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    assert dead(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here `it` is\n[a](gone.md) [b](#there) [c](#here-it-is) [d](https://x) `[e](f)`\n")
    assert dead(page) == ["gone.md", "#there"]


@pytest.mark.parametrize(
    "page", [page for page in DOCUMENTS if page.name != "CHANGELOG.md"], ids=lambda page: page.stem
)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|yaml))[^`]*`", page.read_text(encoding="utf-8")
    )
    places = (ROOT, ROOT / "fedsim", ROOT / "docs", page.parent)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_package_is_in_the_picture() -> None:
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
def test_a_page_uses_no_word_that_contributing_replaces(page: Path) -> None:
    prose = PROSE.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(rf"\b(?:{REPLACED})\b", prose, re.I) == []


def test_the_fields_words_are_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [term for term in re.findall(r"^\| ([^|]+) \|", glossary, re.M) if term != "term"]
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = contributing.partition("| term of the field | instead of |\n|---|---|\n")[2].partition("\n\n")[0]
    words = re.findall(r"^\| ([^|(]+?) (?:\([^|]*\) )?\|", rows, re.M)
    assert len(set(terms)) == len(terms)
    assert len(terms) >= 40
    assert len(words) >= 15
    assert [word for word in words if not any(word in term for term in terms)] == []
