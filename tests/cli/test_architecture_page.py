"""docs/architecture.md names files that are there, and every room."""

from __future__ import annotations

import re

from support.distribution import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_file_that_it_names_is_there() -> None:
    named = re.findall(r"`([\w./-]+\.(?:py|md|toml|html|yaml))[^`]*`", PAGE)
    places = (ROOT, ROOT / "fedsim", ROOT / "docs")
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert len(named) > 20
    assert not [name for name in missing if "/" in name]


def test_every_room_is_in_the_picture() -> None:
    rooms = {folder.name for folder in (ROOT / "fedsim").iterdir() if (folder / "__init__.py").exists()}
    assert rooms | {"silos", "server", "shuffler"} == set(re.findall(r'(\w+)\["', PAGE))
