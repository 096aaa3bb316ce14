"""Files of LeCun's idx format, compressed with gzip: whole numbers 0..255 in an array.

A file has the bytes 0, 0, 8 (numbers of one byte), the number of axes, each axis's length in four bytes, most
significant first, and then the numbers, the last axis fastest.

References: Y. LeCun, C. Cortes, C. Burges: The MNIST database of handwritten digits, 1998.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import InputError
from fedsim.data.content import MOST

Bytes = NDArray[np.uint8]
_BYTES = 8  # the format's code for numbers of one byte


def read_idx(path: Path, axes: int, field: str) -> Bytes:
    """The file's array, read-only.

    Args:
        path: of the file.
        axes: that the array has.
        field: what an error is about.

    Raises:
        InputError: it is missing, no whole gzip file, of another format, or not as long as it says.
    """
    try:
        found = path.stat()
        return _read(path, axes, field, found.st_mtime_ns, found.st_size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(field, str(path), f"is no whole gzip file, cut short? ({error})") from None
    except OSError as error:
        raise InputError(field, str(path), f"cannot be read ({error.strerror})") from None


@lru_cache(maxsize=2)  # images and labels: trials of one process read them once
def _read(path: Path, axes: int, field: str, changed: int, size: int) -> Bytes:
    with gzip.open(path) as file:
        head = file.read(4 + 4 * axes)
        if head[:4] != bytes([0, 0, _BYTES, axes]) or len(head) < 4 + 4 * axes:
            expected = f"must be an idx file of bytes with {axes} axes: it begins with {head[:4].hex(' ')}"
            raise InputError(field, str(path), expected)
        shape: tuple[Any, ...] = struct.unpack(f">{axes}I", head[4:])
        said, count = f"says that it has {' x '.join(map(str, shape))} numbers", prod(shape)
        if count > MOST:
            raise InputError(field, str(path), f"{said}: at most {MOST:,} are unpacked")
        numbers = np.frombuffer(file.read(count + 1), dtype=np.uint8)  # no more, whatever is in it
    if len(numbers) != count:
        found = f"{len(numbers):,}" if len(numbers) < count else "more"
        raise InputError(field, str(path), f"{said}, and has {found}")
    return numbers.reshape(shape)
