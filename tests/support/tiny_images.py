"""Files in the formats of MNIST and CIFAR-10, with few images that a seed makes."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from fedsim.data.mnist import PUBLISHED, SIDE


def idx(array: np.ndarray) -> bytes:
    """An array of bytes in the idx format."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def digits(per_digit: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose first pixel says their place in the file and whose second their digit; labels."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), per_digit))
    images = rng.integers(0, 256, (len(labels), SIDE, SIDE), dtype=np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.arange(len(labels)), labels
    return images, labels


def write_mnist(folder: Path, per_digit: int = 12) -> Path:
    """The four files below `folder`, which is a data folder; both parts hold the same."""
    place = folder / "mnist"
    place.mkdir(parents=True)
    images, labels = digits(per_digit)
    for name in PUBLISHED:
        content = idx(images if "images" in name else labels)
        (place / name).write_bytes(gzip.compress(content, 1))
    return folder
