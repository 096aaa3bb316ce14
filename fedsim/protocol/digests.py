"""Named arrays as canonical bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor


def digests(arrays: Mapping[str, Tensor], rows: int) -> list[bytes]:
    """`digest` of what each of `rows` receivers is sent: (d,) goes to all, (rows, d) a row to each."""
    if all(value.dim() == 1 for value in arrays.values()):
        return [digest(arrays)] * rows
    totals = [hashlib.sha256() for _ in range(rows)]
    for name in sorted(arrays):
        value = arrays[name].detach().cpu()
        values = value.expand(rows, value.shape[-1]).numpy()
        header = f"{len(name)}:{name}{value.dtype}{tuple(value.shape[-1:])}".encode()
        for total, row in zip(totals, values, strict=True):
            total.update(header + row.tobytes())
    return [total.digest() for total in totals]


def digest(arrays: Mapping[str, Tensor]) -> bytes:
    """SHA-256 over names, types, shapes and values in sorted order of names, 32 bytes."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        value = arrays[name].detach().cpu()
        total.update(f"{len(name)}:{name}{value.dtype}{tuple(value.shape)}".encode())
        total.update(value.numpy().tobytes())
    return total.digest()
