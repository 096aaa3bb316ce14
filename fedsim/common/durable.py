"""A file that is whole or not there, and on the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

PREFIX = ".writing-"


@contextmanager
def atomic_file(place: Path, sync: bool = True) -> Iterator[Path]:
    """Yield where to write a file; when the block ends, it replaces what is at `place`.

    If the block raises, `place` is left as it was and nothing else stays behind. The directory of `place`
    exists; with `sync` the file outlives a loss of power. OSError if it cannot be written.
    """
    draft = place.with_name(f"{PREFIX}{token_hex(8)}{place.suffix}")
    try:
        yield draft
        if sync:
            to_disk(draft)
        os.replace(draft, place)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def remove_drafts(directory: Path) -> None:
    """Remove what a process left half-written in `directory` when it was killed."""
    for draft in directory.glob(f"{PREFIX}*"):
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink()


def to_disk(place: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
