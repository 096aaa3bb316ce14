"""A file that a command writes for its user: whole, and never over another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file


@contextmanager
def new_file(place: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    """Yield where to write; `place` is checked before anything is done for it.

    Raises:
        InputError: it exists, its suffix is none of `suffixes`, or it cannot be written.
    """
    if place.suffix not in suffixes:
        raise InputError("--out", str(place), f"must end in {' or '.join(suffixes)}")
    if place.exists():
        raise InputError("--out", str(place), "exists already; name a new file")
    if not place.parent.is_dir():
        raise InputError("--out", str(place), "is in no folder that exists")
    try:
        with whole_file(place) as draft:
            yield draft
    except OSError as error:
        raise InputError("--out", str(place), f"cannot be written ({error.strerror})") from None
