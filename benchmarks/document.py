"""Puts measured tables where the documentation keeps them: between two comments that name the section."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def write(section: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between `<!-- section -->` and `<!-- /section -->`; the prose around it stays."""
    begin, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{page} has no part between {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> str:
    """A table in Markdown; the first column is text, the others are numbers or text too."""
    ruler = ["---", *["---:" if numbers else "---"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ruler, *rows])


def where() -> str:
    """When and on what it was measured."""
    model = platform.processor() or platform.machine()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return f"Measured {date.today()} on {os.cpu_count()} cores of {model}; load average afterwards {load}."
