"""Where data files are that stand neither beside a scenario nor inside a package.

It is the folder that FEDSIM_DATA names, which `--data-dir` sets for a command and for processes that it
starts; else a cache folder of the user, by the platform's convention.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedsim.common.errors import InputError

VARIABLE = "FEDSIM_DATA"
HOW = f"name another folder by --data-dir or {VARIABLE}"


def data_folder() -> Path:
    """The folder, absolute; it need not exist yet."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser().absolute() if named else _cache()


def _cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fedsim"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedsim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsim"


def check_there(field: str, file: Path) -> None:
    """InputError on `field`, one of a scenario's data, unless there is such a file."""
    if not file.is_file():
        hint = (
            f"no such file, nor one of that name in the data folder {data_folder()}: put it there, or {HOW}"
        )
        raise InputError(field, str(file), hint)


def placed(beside: Path, name: Path, fetched: bool) -> Path:
    """Where the file is that a scenario's data name.

    Args:
        beside: the name taken as relative to the scenario.
        name: as the scenario says it.
        fetched: whether it is downloaded where it is missing.

    Returns:
        `beside` if that exists; else the place in the data folder if the file is there or would go there.
    """
    if name.is_absolute() or ".." in name.parts or beside.exists():
        return beside
    place = data_folder() / name
    return place if fetched or place.exists() else beside
