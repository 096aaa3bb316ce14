"""`make docs`: the repository's own Markdown at its own paths, so that one link works there and on the site.

Nothing is fetched, to build it or to read it.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version as installed
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from fedsim.algorithms.registry import algorithms

project = "fedsim"
release = version = installed("fedsim-isrl")
copyright = "the authors of fedsim; Apache-2.0"

root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "scenarios/*.md", "examples/*.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4

default_role = "literal"  # docstrings write code as Markdown does
autodoc_default_options = {"members": True, "imported-members": True}
autodoc_member_order = "bysource"
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"fedsim {release}"

SHELVES = {
    "Learn": [
        "docs/getting-started",
        "docs/choosing",
        "docs/faq",
    ],
    "How-to": [
        "docs/simulating",
        "docs/python",
        "docs/sweeps",
        "examples/README",
        "docs/your-own-table",
        "docs/using-a-model",
        "docs/releases",
        "docs/data-folder",
        "docs/adding-*",
        "docs/memory",
        "docs/own-models",
        "docs/clips",
        "docs/public-records",
        "docs/fairness",
        "docs/audit",
        "docs/deployment",
        "docs/step-by-step",
        "docs/shuffler",
    ],
    "Reference": [
        "docs/scenario-parts",
        "docs/clashes",
        "scenarios/README",
        "docs/metrics",
        "docs/reference",
        "docs/glossary",
        "docs/results",
        "docs/performance",
        "CHANGELOG",
    ],
    "Explanation": [
        "docs/privacy",
        "docs/persons",
        "docs/secure-aggregation",
        "docs/threat-model",
        "docs/*-noise",
        "docs/noise-over-rounds",
        "docs/shuffle-curve",
        "docs/thesis-audit",
        "docs/architecture",
        "docs/decisions",
        "CONTRIBUTING",
        "SECURITY",
    ],
}


def shelf(caption: str, pages: list[str]) -> str:
    """A part of the navigation."""
    return "\n".join(["```{toctree}", f":caption: {caption}", ":glob:", ":hidden:", "", *pages, "```"])


def add(_: Sphinx, page: str, source: list[str]) -> None:
    """Navigation, and the algorithms' classes: what the repository's own view has no use for."""
    if page == root_doc:
        source[0] += "\n\n" + "\n\n".join(shelf(*entry) for entry in SHELVES.items())
    classes = (f".. autoclass:: {one.__module__}.{one.__name__}" for one in algorithms().values())
    source[0] = source[0].replace("<!-- algorithms -->", "\n".join(["```{eval-rst}", *classes, "```"]))


def as_written(lines: list[str]) -> None:
    """A bar is a norm in our docstrings, and no substitution of reStructuredText's."""
    lines[:] = [line if line.lstrip().startswith(">>>") else line.replace("|", r"\|") for line in lines]


def is_of_scikit_learn(_app: Sphinx, _what: str, name: str, *_: object) -> bool | None:
    """True of methods that scikit-learn gives estimators: their text has labels of its own site."""
    return True if name.endswith("_request") else None


def open_at_the_start(app: Sphinx, failure: Exception | None) -> None:
    """The README is also index.html."""
    if not failure:
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    """Hooks, and languages that Pygments lacks."""
    app.connect("source-read", add)
    app.connect("autodoc-process-docstring", lambda *given: as_written(given[-1]))
    app.connect("autodoc-skip-member", is_of_scikit_learn)
    app.connect("build-finished", open_at_the_start)
    for language in ("csv", "mermaid"):
        app.add_lexer(language, TextLexer)
