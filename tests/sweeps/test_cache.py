"""An entry is whole and ours, or it is set aside and said so."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from support.sweep_helpers import result

from fedsim.sweeps.cache import Folder
from fedsim.sweeps.cell import Cell

KEY, OTHER = "ab" * 32, "cd" * 32
CELL = Cell({"name": "cell"}, 0, False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Folder(tmp_path, pytest.fail).put(KEY, CELL, result(0.25, 0.5))
    return tmp_path


def test_what_was_put_is_got_and_nothing_else_is_left(folder: Path) -> None:
    cache = Folder(folder, pytest.fail)
    assert cache.get(KEY) == result(0.25, 0.5)
    assert cache.get(OTHER) is None
    assert [file.name for file in folder.iterdir()] == [f"{KEY}.json"]


def test_infinity_survives(tmp_path: Path) -> None:
    endless = type(result())(0.1, 0.2, None, inf, "a", 0.0, "e", 1.0)
    cache = Folder(tmp_path, pytest.fail)
    cache.put(KEY, CELL, endless)
    assert cache.get(KEY) == endless


def edited(**changes: Any) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | changes)


DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "half-written": (lambda text: text[: len(text) // 2], "half-written"),
    "empty": (lambda text: "", "half-written"),
    "another's": (lambda text: "[1, 2]", "another format"),
    "of another version": (edited(format="fedsim cell 0"), "fedsim cell 0"),
    "of another key": (edited(key=OTHER), "foreign"),
    "changed": (lambda text: text.replace("0.25", "0.24"), "changed after"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_bad_entry_is_named_set_aside_and_replaced(case: str, folder: Path) -> None:
    damage, reason = DAMAGE[case]
    file = folder / f"{KEY}.json"
    broken = damage(file.read_text())
    for count in (1, 2):  # a second bad entry does not overwrite the first
        file.write_text(broken)
        told: list[str] = []
        cache = Folder(folder, told.append)
        assert cache.get(KEY) is None
        assert len(told) == 1
        assert reason in told[0]
        assert file.name in told[0]
        kept = sorted(folder.glob("*.bad"))
        assert [path.read_text() for path in kept] == [broken] * count
        assert not file.exists()
    cache.put(KEY, CELL, result(0.3))
    assert Folder(folder, pytest.fail).get(KEY) == result(0.3)
