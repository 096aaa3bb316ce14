"""Files and directories that are whole or not there: written beside their place, and moved to it.

The data folder is where data files are that stand neither beside a scenario nor inside a package: the folder
that FEDSIM_DATA names, which `--data-dir` sets for a command and for processes that it starts; else a cache
folder of the user, by the platform's convention.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from secrets import token_hex

from fedsim.common.durable import PREFIX, to_disk
from fedsim.common.errors import InputError

RECORD, SCENARIO, OF_TRIAL = "record.sqlite", "scenario.yaml", "trial-"
"""A directory of a run has two files from its beginning (`fedsim.report.resume`), and until it has ended
those of each finished trial's models, whose names begin with the third.
"""


def remove_models(directory: Path) -> None:
    """Remove the models of single trials, which a run that has ended has in one file."""
    for file in directory.glob(f"{OF_TRIAL}*"):
        file.unlink()


@contextmanager
def atomic_directory(place: Path) -> Iterator[Path]:
    """Yield a directory to fill; when the block ends, it is at `place`, which must be free or empty.

    Parents are made. Errors as of `atomic_file`.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{PREFIX}{token_hex(8)}")
    draft.mkdir()
    try:
        yield draft
        for file in files_below(draft):
            to_disk(file)
        os.replace(draft, place)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


@contextmanager
def atomic_files(directory: Path) -> Iterator[Path]:
    """Yield a directory to fill; when the block ends, its files go to the same places in `directory`.

    Each file is whole, and none is replaced before the block has ended. Errors as of `atomic_file`.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=directory) as folder:
        draft = Path(folder)
        yield draft
        for file in files_below(draft):
            to_disk(file)
            place = directory / file.relative_to(draft)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)


def files_below(directory: Path) -> list[Path]:
    """All of them, at any depth, sorted."""
    return sorted(file for file in directory.rglob("*") if file.is_file())


VARIABLE = "FEDSIM_DATA"
HOW = f"name another folder by --data-dir or {VARIABLE}"


def data_folder() -> Path:
    """The data folder, absolute; it need not exist yet."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fedsim"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedsim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsim"


def check_there(field: str, file: Path) -> None:
    """InputError on `field`, one of a scenario's data, unless there is such a file."""
    if not file.is_file():
        missing = f"no such file, nor one of that name in the data folder {data_folder()}"
        raise InputError(field, str(file), f"{missing}: put it there, or {HOW}")


def placed(beside: Path, name: Path, fetched: bool) -> Path:
    """The place of a file that a scenario's data section names: `beside`, the name taken as relative to the
    scenario, if that exists; else the place in the data folder if the file is there, or is `fetched`.
    """
    if name.is_absolute() or ".." in name.parts or beside.exists():
        return beside
    place = data_folder() / name
    return place if fetched or place.exists() else beside


def check_free(directory: Path) -> Path:
    """The absolute path of a directory that holds no run and can be made, checked before any work."""
    place = directory.resolve()
    if place == Path.cwd() or place.is_file() or (place.is_dir() and any(place.iterdir())):
        raise InputError("--out", str(directory), "holds another run or other files; name a new directory")
    parent = next(folder for folder in place.parents if folder.exists())
    with writing(directory):
        tempfile.TemporaryFile(dir=parent).close()
    return place


def of_this_version(field: str, directory: Path) -> None:
    """InputError on `field` where an earlier version of fedsim began a run or sweep that has not ended."""
    for old in ("unfinished", "cells.sqlite"):
        if (directory / old).exists() and not (directory / RECORD).exists():
            hint = f"is of an earlier version of fedsim ({old}), and stays as it is; name a new directory"
            raise InputError(field, str(directory), hint)


def to_resume(directory: Path) -> Path:
    """The scenario of a run that began in a directory; InputError if none did."""
    of_this_version("--resume", directory)
    if not (directory / RECORD).is_file() or not (directory / SCENARIO).is_file():
        raise InputError("--resume", str(directory), "holds no run that can go on")
    return directory / SCENARIO


def taken(directory: Path) -> Path:
    """Make a directory that no other process has made, numbered where its name is taken; returns it."""
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


@contextmanager
def writing(path: Path, field: str = "--out") -> Iterator[None]:
    """Inside, what the system refuses to write is an InputError on `field`."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, field) from None


def unwritable(path: Path, error: OSError, field: str = "--out") -> InputError:
    """What to say of a directory that the system does not let us write."""
    return InputError(field, str(path), f"cannot be written ({error.strerror or error})")
