"""A run's directory, before there is anything to put into it."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path

from fedsim.common.errors import InputError

UNFINISHED = "unfinished"
"""The folder of a run directory that has what a run needs to go on; it goes when the run has ended."""


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
        raise unwritable(directory, error) from None
    return place


def taken(directory: Path) -> Path:
    """Make a directory that no other process has made, numbered where its name is taken; returns it.

    Raises:
        InputError: it cannot be made.
    """
    for number in count(2):
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir()
            return directory
        except FileExistsError:
            stem = directory.name if number == 2 else directory.name.rpartition("-")[0]
            directory = directory.with_name(f"{stem}-{number}")
        except OSError as error:
            raise unwritable(directory, error) from None
    raise AssertionError


def unwritable(path: Path, error: OSError, field: str = "--out") -> InputError:
    """What to say of a directory that the system does not let us write."""
    return InputError(field, str(path), f"cannot be written ({error.strerror or error})")
