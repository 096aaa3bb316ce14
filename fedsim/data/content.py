"""What is in a file, as SHA-256."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from functools import lru_cache
from pathlib import Path

from fedsim.common.errors import InputError


def content(path: Path, field: str) -> str:
    """SHA-256 of a file's content, 64 hexadecimal digits.

    Of a file that ends in .gz it is what is compressed in it: many hands compress the same data anew.

    Raises:
        InputError: on `field`: it cannot be read, or is no whole gzip file.
    """
    return _digest(path, field, path.suffix == ".gz")


def packed(path: Path, field: str) -> str:
    """As `content`, of the file's own bytes whatever it ends in."""
    return _digest(path, field, False)


def _digest(path: Path, field: str, unpack: bool) -> str:
    try:
        found = path.stat()
        return _read(path, unpack, found.st_mtime_ns, found.st_size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(field, str(path), f"is damaged, or cut short? ({error})") from None
    except OSError as error:
        raise InputError(field, str(path), f"cannot be read ({error.strerror})") from None


@lru_cache(maxsize=1024)  # read once a process, and again after a change
def _read(path: Path, unpack: bool, changed: int, size: int) -> str:
    with gzip.open(path) if unpack else path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
