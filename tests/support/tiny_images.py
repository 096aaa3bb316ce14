"""Files in the formats of MNIST and CIFAR-10, with few images that a seed makes."""

import gzip
import struct
from pathlib import Path

import numpy as np

from fedsim.data.images import CIFAR_PIXELS, MNIST_SHA256, PARTS, SIDE


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
    for name in MNIST_SHA256:
        content = idx(images if "images" in name else labels)
        (place / name).write_bytes(gzip.compress(content, 1))
    return folder


def write_cifar10(folder: Path, per_class: int = 3) -> Path:
    """The six files below `folder`, which is a data folder; each holds so many images of each class.

    An image's first pixels say its class, its file (from 1, the test file 6) and its place there.
    """
    place = folder / "cifar10"
    place.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for k, name in enumerate([name for part in PARTS.values() for name in part], 1):
        labels = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), per_class))
        pixels = rng.integers(0, 256, (len(labels), len(CIFAR_PIXELS)), dtype=np.uint8)
        pixels[:, 0], pixels[:, 1], pixels[:, 2] = labels, k, np.arange(len(labels))
        (place / name).write_bytes(np.hstack([labels[:, None], pixels]).tobytes())
    return folder
