"""Parts that the pages of runs, sweeps and comparisons share: one template, and figures made for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from fedsim.report import style
from fedsim.report.tables import capital

PAGE = "report.html"
Headline = tuple[str, str, str]  # the name of a number, the number, and a note


class PageFigure(NamedTuple):
    """A figure as markup made by us, its caption, and where there is one its markup for a large screen."""

    svg: str
    caption: str
    broad: str = ""


def render(name: str, **content: Any) -> str:
    """A template of the package, filled. It escapes everything but SVG made here, which is marked safe."""
    environment = Environment(
        loader=PackageLoader("fedsim.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"count": "{:,}".format, "ticks": ticks, "capital": capital}
    broken = re.compile(r"(?<=\d)(,?) (?=[%\d-])")
    environment.filters["unbroken"] = lambda cell: broken.sub("\\1\N{NO-BREAK SPACE}", cell)
    environment.globals |= {"night": Markup(style.NIGHT), "ground": style.GROUND, "ink": style.INK}
    return environment.get_template(name).render(**content)


def ticks(text: str) -> Markup:
    """Text with what stands in backticks as code.

    >>> ticks("see `a < b`")
    Markup('see <code>a &lt; b</code>')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def saved(figure: Figure, folder: Path, stem: str, caption: str) -> PageFigure:
    """A figure for a page, whose files are written to the folder."""
    return PageFigure(_named(style.save(figure, folder, stem), caption), caption)


def saved_wide(draw: Callable[[bool], Figure], folder: Path, stem: str, caption: str) -> PageFigure:
    """A figure for a page in both widths; the narrow one's files are written to the folder."""
    broad = _named(style.markup(draw(True), f"{stem}-broad"), caption)
    return saved(draw(False), folder, stem, caption)._replace(broad=broad)


def _named(svg: str, caption: str) -> str:
    """An image to a screen reader, with the caption as its name."""
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(caption)}" ', 1)
