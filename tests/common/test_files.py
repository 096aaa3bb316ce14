"""A file or directory is written whole or not at all, and readable as any other that a person makes."""

import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import fedsim
from fedsim.common.beside import pin
from fedsim.common.durable import atomic_file, remove_drafts
from fedsim.common.errors import Refused
from fedsim.common.files import atomic_directory, atomic_files
from fedsim.common.head_file import Head, HeadFile, head_path


def content(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_replaces_what_was_there_once_it_is_complete(tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    place.write_text("old")
    expected = mode(place)
    with atomic_file(place) as draft:
        draft.write_text("new")
        assert place.read_text() == "old"
        assert draft.suffix == ".txt"
    assert content(tmp_path) == {"a.txt": "new"}
    assert mode(place) == expected


def test_a_directory_appears_with_all_its_files(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "one"
    (tmp_path / "other").mkdir()
    with atomic_directory(place) as draft:
        (draft / "inner").mkdir()
        (draft / "inner" / "b").write_text("b")
        assert not place.exists()
    assert content(tmp_path) == {"runs/one/inner/b": "b"}
    assert mode(place) == mode(tmp_path / "other")


def test_files_join_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "page").write_text("old")
    with atomic_files(tmp_path) as draft:
        (draft / "page").write_text("new")
        (draft / "figures").mkdir()
        (draft / "figures" / "f").write_text("f")
        assert (tmp_path / "page").read_text() == "old"
    assert content(tmp_path) == {"kept": "kept", "page": "new", "figures/f": "f"}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["figures", "kept", "page"]


WRITERS: list[tuple[Callable[[Path], AbstractContextManager[Path]], str]] = [
    (lambda folder: atomic_file(folder / "a"), ""),
    (lambda folder: atomic_directory(folder / "b"), "x"),
    (atomic_files, "a"),
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
    with pytest.raises(OSError, match="not empty"), atomic_directory(tmp_path / "run") as draft:
        (draft / "b").write_text("b")
    assert content(tmp_path) == {"run/a": "a"}


def test_drafts_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    context = atomic_file(tmp_path / "a.json", sync=False)
    context.__enter__().write_text("{")
    (tmp_path / "b.json").write_text("{}")
    remove_drafts(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["b.json"]
    del context


# The head file: a chain that has lost its end, or a head that cannot tell, is refused; one ahead is not.


def entry(seq: int) -> Head:
    return Head(seq, bytes([seq]) * 32)


def written(folder: Path, last: int) -> Path:
    chain = folder / "chain"
    HeadFile.create(chain, entry(1))
    file = HeadFile.open(chain, entry(1), bytes(32))
    for seq in range(2, last + 1):
        file.write(entry(seq))
    file.close()
    return chain


def opens(chain: Path, end: int) -> bool:
    try:
        HeadFile.open(chain, entry(end), entry(end - 1).hash).close()
    except Refused:
        return False
    return True


@pytest.mark.parametrize("last", [1, 2, 7, 8])
@pytest.mark.parametrize("ahead", [-2, -1, 0, 1, 2])
def test_a_chain_may_be_one_ahead_and_never_behind(tmp_path: Path, last: int, ahead: int) -> None:
    chain = written(tmp_path, last)
    assert HeadFile.read(chain) == entry(last)
    if last + ahead > 0:
        assert opens(chain, last + ahead) == (ahead in (0, 1))
    assert HeadFile.read(chain) == entry(last + (ahead == 1))


def test_every_flip_reads_whole_or_is_refused(tmp_path: Path) -> None:
    chain = written(tmp_path, 8)
    place = head_path(chain)
    whole = place.read_bytes()
    for start, newest in ((0, True), (4096, False)):
        for offset in range(start, start + 80):
            data = bytearray(whole)
            data[offset] ^= 1
            place.write_bytes(data)
            assert opens(chain, 8) == newest  # of a torn newest slot the other names the entry before
            place.write_bytes(data)
            assert not opens(chain, 7)


@pytest.mark.parametrize("data", [None, b"", bytes(8192)])
def test_a_head_that_is_missing_or_empty_is_refused(tmp_path: Path, data: bytes | None) -> None:
    chain = written(tmp_path, 3)
    head_path(chain).unlink()
    if data is not None:
        head_path(chain).write_bytes(data)
    assert not opens(chain, 3)


def test_a_lost_chain_is_not_begun_anew(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="never begun anew"):
        HeadFile.create(written(tmp_path, 2), entry(1))
    head_path(tmp_path / "chain").unlink()
    HeadFile.create(tmp_path / "chain", entry(1))
    HeadFile.create(tmp_path / "chain", entry(1))  # an enrolment that was cut short


# Packages beside `fedsim` are found, whatever a user's folder holds.

ROOT = Path(fedsim.__file__).parents[1]


def test_a_users_server_and_silos_are_not_ours(tmp_path: Path) -> None:
    for name in ("server", "silos"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('another module ran')\n")
    code = (
        "import sys; sys.path.insert(0, ''); import fedsim; "
        "import server, silos; print(server.__file__, silos.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(ROOT / name / "__init__.py") for name in ("server", "silos")]


def test_a_module_that_took_the_name_before_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("server")
    module.__file__ = "/home/somebody/server.py"
    monkeypatch.setitem(sys.modules, "server", module)
    with pytest.raises(ImportError, match=r"/home/somebody/server.py was imported as 'server'.*rename it"):
        pin()


def test_it_is_pinned_once() -> None:
    before = list(sys.meta_path)
    pin()
    assert sys.meta_path == before
