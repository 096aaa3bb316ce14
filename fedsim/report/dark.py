"""Figures by night: the colours of an SVG file exchanged where its reader prefers dark pages.

The file keeps its own colours, which any viewer shows; a browser that is asked for dark replaces them. On
paper they stay.
"""

from __future__ import annotations

GROUND, INK = "#14171b", "#e4e7eb"
EXCHANGED = {
    "#ffffff": GROUND,
    "#000000": INK,
    "#666666": "#9aa3ae",
    "#b0b0b0": "#59616b",
    "#0072b2": "#4aa3df",
    "#d55e00": "#f0813c",
    "#009e73": "#2cc49a",
    "#cc79a7": "#e6a3c8",
    "#56b4e9": "#a5dcff",
    "#e69f00": "#f5b942",
}
"""Light to dark, as matplotlib writes colours."""

_RULES = "".join(
    f'svg [style*="{what}: {light}"] {{ {what}: {dark} !important; }}\n'
    for light, dark in EXCHANGED.items()
    for what in ("fill", "stroke")
)
CSS = f"@media screen and (prefers-color-scheme: dark) {{\nsvg text {{ fill: {INK}; }}\n{_RULES}}}\n"
"""For the page or the file that a figure is in."""


def by_night(svg: str) -> str:
    """An SVG file's text with the rules in it."""
    head = svg.index(">", svg.index("<svg")) + 1
    return f'{svg[:head]}\n<style type="text/css"><![CDATA[\n{CSS}]]></style>{svg[head:]}'
