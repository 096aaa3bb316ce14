"""Files and directories that are whole or not there: written beside their place, and moved to it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

_PREFIX = ".writing-"


@contextmanager
def whole_file(place: Path, sync: bool = True) -> Iterator[Path]:
    """Yield where to write a file; when the block ends, it replaces what is at `place`.

    If the block raises, `place` is left as it was and nothing else stays behind.

    Args:
        place: of the file, in a directory that exists.
        sync: whether the file must outlive a loss of power.

    Raises:
        OSError: it cannot be written.
    """
    draft = place.with_name(f"{_PREFIX}{token_hex(8)}{place.suffix}")
    try:
        yield draft
        if sync:
            _sync(draft)
        os.replace(draft, place)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


@contextmanager
def whole_directory(place: Path) -> Iterator[Path]:
    """Yield a directory to fill; when the block ends, it is at `place`, which must be free or empty.

    Parents are made. Errors as of `whole_file`.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{_PREFIX}{token_hex(8)}")
    draft.mkdir()
    try:
        yield draft
        for file in _files(draft):
            _sync(file)
        os.replace(draft, place)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


@contextmanager
def whole_files(directory: Path) -> Iterator[Path]:
    """Yield a directory to fill; when the block ends, its files go to the same places in `directory`.

    Each file is whole, and none is replaced before the block has ended. Errors as of `whole_file`.
    """
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=directory) as folder:
        draft = Path(folder)
        yield draft
        for file in _files(draft):
            place = directory / file.relative_to(draft)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)


def remove_drafts(directory: Path) -> None:
    """Remove files that a process left half-written in `directory` when it was killed."""
    for draft in directory.glob(f"{_PREFIX}*"):
        draft.unlink()


def _files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.rglob("*") if file.is_file())


def _sync(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
