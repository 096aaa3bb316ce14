"""A file or directory is written whole or not at all, and readable as any other that a person makes."""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fedsim.common.files import remove_drafts, whole_directory, whole_file, whole_files


def content(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_replaces_what_was_there_once_it_is_complete(tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    place.write_text("old")
    expected = mode(place)
    with whole_file(place) as draft:
        draft.write_text("new")
        assert place.read_text() == "old"
        assert draft.suffix == ".txt"
    assert content(tmp_path) == {"a.txt": "new"}
    assert mode(place) == expected


def test_a_directory_appears_with_all_its_files(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "one"
    (tmp_path / "other").mkdir()
    with whole_directory(place) as draft:
        (draft / "inner").mkdir()
        (draft / "inner" / "b").write_text("b")
        assert not place.exists()
    assert content(tmp_path) == {"runs/one/inner/b": "b"}
    assert mode(place) == mode(tmp_path / "other")


def test_files_join_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "page").write_text("old")
    with whole_files(tmp_path) as draft:
        (draft / "page").write_text("new")
        (draft / "figures").mkdir()
        (draft / "figures" / "f").write_text("f")
        assert (tmp_path / "page").read_text() == "old"
    assert content(tmp_path) == {"kept": "kept", "page": "new", "figures/f": "f"}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["figures", "kept", "page"]


WRITERS: list[tuple[Callable[[Path], AbstractContextManager[Path]], str]] = [
    (lambda folder: whole_file(folder / "a"), ""),
    (lambda folder: whole_directory(folder / "b"), "x"),
    (whole_files, "a"),
]


@pytest.mark.parametrize(("write", "name"), WRITERS, ids=["file", "directory", "files"])
def test_a_failure_leaves_what_was_there_and_nothing_else(
    write: Callable[[Path], AbstractContextManager[Path]], name: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), write(tmp_path) as draft:
        (draft / name if name else draft).write_text(f"half {1 // 0}")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_directory_that_holds_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_text("a")
    with pytest.raises(OSError, match="not empty"), whole_directory(tmp_path / "run") as draft:
        (draft / "b").write_text("b")
    assert content(tmp_path) == {"run/a": "a"}


def test_drafts_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    context = whole_file(tmp_path / "a.json", sync=False)
    context.__enter__().write_text("{")
    (tmp_path / "b.json").write_text("{}")
    remove_drafts(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["b.json"]
    del context
