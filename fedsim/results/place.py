"""A run's directory, before there is anything to put into it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedsim.common.errors import InputError


def check_free(directory: Path) -> Path:
    """Check before any work that a directory is free and can be made; returns its absolute path.

    Raises:
        InputError: it holds another run, or cannot be made.
    """
    place = directory.resolve()
    if place == Path.cwd() or place.is_file() or (place.is_dir() and any(place.iterdir())):
        raise InputError("--out", str(directory), "holds another run or other files; name a new directory")
    parent = next(folder for folder in place.parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        raise InputError("--out", str(directory), f"cannot be written ({error.strerror})") from None
    return place
