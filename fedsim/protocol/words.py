"""Frames as `fedsim.protocol.wire` has them, with numpy's arrays: what needs no torch does without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.common.errors import Refused
from fedsim.protocol.wire import MALFORMED, checked, metadata


@dataclass(frozen=True)
class WordFrame:
    """One message: its kind, plain values (`fedsim.protocol.messages`) and named arrays of any shape."""

    kind: str
    head: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


def encode(frame: WordFrame) -> bytes:
    """The body's bytes, the same for equal frames whose heads are in the same order."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(value) for name, value in frame.arrays.items()}
    return bytes(save(arrays, metadata(frame.kind, frame.head)))


def decode(body: bytes) -> WordFrame:
    """The body's message; see `wire.decode`.

    Raises:
        Refused: it is malformed.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    kind, head = checked(body)
    try:
        return WordFrame(kind, head, load(body))
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError, TypeError, AssertionError):
        raise Refused(MALFORMED) from None
