"""Frames: what travels between a server and a silo, whatever carries it.

    magic and version, 4 bytes | Ed25519 signature, 64 bytes | body

The body is a safetensors file: named arrays, and in its metadata `kind` and `head` (JSON). A silo signs the
bodies of its frames with its identity key; a server's have 64 zeros there, since nothing rests on who asks.
On a socket every frame is preceded by its length, 8 bytes, big-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.protocol.stream import receive as receive
from fedsim.protocol.stream import send as send

MAGIC = b"fds\x01"
UNSIGNED = bytes(64)
_START = len(MAGIC) + len(UNSIGNED)
_HEADER = struct.Struct("<Q")
MAX_HEAD = 4_000_000
"""Bytes of a frame's JSON at most: the rounds and numbers of a long plan."""


@dataclass(frozen=True)
class Frame:
    """One message: its kind, plain values (`fedsim.protocol.messages`) and named arrays of any shape."""

    kind: str
    head: Mapping[str, Any]
    arrays: Mapping[str, Tensor] = field(default_factory=dict)


def encode(frame: Frame) -> bytes:
    """The body's bytes."""
    metadata = {"kind": frame.kind, "head": json.dumps(frame.head, allow_nan=False)}
    return save({name: value.contiguous() for name, value in frame.arrays.items()}, metadata)


def sealed(body: bytes, signature: bytes = UNSIGNED) -> bytes:
    """The frame's bytes."""
    return MAGIC + signature + body


def opened(data: bytes) -> tuple[bytes, bytes]:
    """A frame's (body, signature), not checked.

    Raises:
        Refused: it is no frame of this version.
    """
    if len(data) < _START or data[: len(MAGIC)] != MAGIC:
        raise Refused("not a frame of this version of fedsim")
    return data[_START:], data[len(MAGIC) : _START]


def decode(body: bytes) -> Frame:
    """The body's message; arrays are float64 or float32 on the CPU, of values that may be anything.

    Raises:
        Refused: it is malformed.
    """
    try:
        (header,) = _HEADER.unpack_from(body)
        if header > MAX_HEAD:
            raise Refused(f"a frame's head has {header} bytes, more than {MAX_HEAD}")
        metadata = json.loads(body[_HEADER.size : _HEADER.size + header])["__metadata__"]
        kind, head = metadata["kind"], json.loads(metadata["head"], parse_constant=_refuse_constant)
        arrays = load(body)
    except (SafetensorError, struct.error, ValueError, KeyError, TypeError, RecursionError):
        raise Refused("a frame's body is malformed") from None
    if type(kind) is not str or type(head) is not dict:
        raise Refused("a frame's body is malformed")
    for value in arrays.values():
        if value.dtype not in (torch.float64, torch.float32):
            raise Refused(f"a frame's array is {value.dtype}, not float64 or float32")
    return Frame(kind, head, arrays)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
