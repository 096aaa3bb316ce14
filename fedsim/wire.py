"""Named arrays as canonical bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor


def digest(arrays: Mapping[str, Tensor]) -> bytes:
    """SHA-256 over names, types, shapes and values in sorted order of names, 32 bytes."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        value = arrays[name].detach().cpu()
        total.update(f"{len(name)}:{name}{value.dtype}{tuple(value.shape)}".encode())
        total.update(value.numpy().tobytes())
    return total.digest()
