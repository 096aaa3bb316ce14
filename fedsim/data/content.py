"""What is in a file, as SHA-256, and how far it is unpacked to find out."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import inf
from pathlib import Path

from fedsim.common.errors import InputError

MOST = 4 << 30
"""Bytes that are unpacked of one file at most: a small one may hold more than any disk."""


class TooLongError(Exception):
    """More than was to be read."""


def content(path: Path, field: str) -> str:
    """SHA-256 of a file's content, 64 hexadecimal digits.

    Of a file that ends in .gz it is what is compressed in it: many hands compress the same data anew.

    Raises:
        InputError: on `field`: it cannot be read, is no whole gzip file, or unpacks to more than `MOST`.
    """
    return _digest(path, field, path.suffix == ".gz")


def packed(path: Path, field: str) -> str:
    """As `content`, of the file's own bytes whatever it ends in."""
    return _digest(path, field, False)


def blocks(read: Callable[[int], bytes], most: float) -> Iterator[bytes]:
    """All that a file has, piece by piece, by what reads so many bytes of it.

    Raises:
        TooLongError: after `most` bytes there are more.
    """
    seen = 0
    while block := read(1 << 20):
        seen += len(block)
        if seen > most:
            raise TooLongError
        yield block


def _digest(path: Path, field: str, unpack: bool) -> str:
    try:
        found = path.stat()
        return _read(path, unpack, found.st_mtime_ns, found.st_size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(field, str(path), f"is damaged, or cut short? ({error})") from None
    except TooLongError:
        raise InputError(field, str(path), f"unpacks to more than {MOST:,} bytes, the most allowed") from None
    except OSError as error:
        raise InputError(field, str(path), f"cannot be read ({error.strerror})") from None


@lru_cache(maxsize=1024)  # read once a process, and again after a change
def _read(path: Path, unpack: bool, changed: int, size: int) -> str:
    digest = hashlib.sha256()
    with gzip.open(path) if unpack else path.open("rb") as file:
        for block in blocks(file.read, MOST if unpack else inf):
            digest.update(block)
    return digest.hexdigest()
