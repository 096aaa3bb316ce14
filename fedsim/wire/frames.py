"""Frames: what travels between a server and a silo, whatever carries it.

    magic and version, 4 bytes | Ed25519 signature of SHA-256 of the body, 64 bytes | body

The body is a safetensors file: named arrays, and in its metadata one entry, `message`: JSON of kind and head.
(Of one entry, since safetensors writes several in any order: equal frames are equal bytes.) A silo signs the
bodies of its frames with its identity key; a server's have 64 zeros there, since nothing rests on who asks.
On a socket every frame is preceded by its length, 8 bytes, big-endian.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsim.common.errors import Refused

if TYPE_CHECKING:  # a process that only passes frames on does without torch's 200 MB
    import numpy.typing as npt
    from torch import Tensor

MAGIC = b"fds\x01"
UNSIGNED = bytes(64)
_START = len(MAGIC) + len(UNSIGNED)
LENGTH = struct.Struct(">Q")
_HEADER = struct.Struct("<Q")
MAX_HEAD = 4_000_000  # bytes of a frame's JSON at most: the rounds and numbers of a long plan
MAX_ARRAYS, MAX_AXES = 256, 8
_ARRAY = {"dtype", "shape", "data_offsets"}
_FLOATS = ("F64", "F32")
_NAMES = {"d": "float64", "f": "float32"}  # numpy takes longer to name a type than to copy an array
_OTHERS = {
    "reply": {"report": ("U8",)},
    "shuffle": {"reports": ("U8",)},
    "shuffled": {"inner": ("U8",), "sum": ("U64",)},
}
"""By kind of message: its arrays that are not of floating-point numbers, but bytes or words of 64 bits."""
MALFORMED = "a frame's body is malformed"
CUT = "the stream ended within a frame"


class Frame(NamedTuple):
    """One message: its kind, plain values (`fedsim.wire.messages`) and named arrays of any shape.

    Arrays are torch's, or numpy's in a process that does without torch.
    """

    kind: str
    head: Mapping[str, Any]
    arrays: Mapping[str, Any] = MappingProxyType({})


def encode(frame: Frame) -> bytes:
    """The body's bytes, the same for equal frames whose heads are in the same order."""
    from safetensors import TensorSpec, serialize

    arrays = {name: _array(value) for name, value in frame.arrays.items()}  # alive until the end
    specs = {
        name: TensorSpec(
            dtype=_NAMES.get(value.dtype.char) or str(value.dtype),
            shape=list(value.shape),
            data_ptr=value.__array_interface__["data"][0],  # `ctypes.data` takes five times as long
            data_len=value.nbytes,
        )
        for name, value in arrays.items()
    }
    return bytes(serialize(specs, metadata(frame.kind, frame.head)))


def _array(value: Tensor | npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

    return np.asarray(value if isinstance(value, np.ndarray) else value.detach().numpy(), order="C")


def metadata(kind: str, head: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of the safetensors file: kind and head, as JSON."""
    return {"message": _HEADS.encode([kind, head])}


def sealed(body: bytes, signature: bytes = UNSIGNED) -> bytes:
    """The frame's bytes."""
    return MAGIC + signature + body


def opened(data: bytes) -> tuple[bytes, bytes]:
    """A frame's (body, signature), not checked; Refused if it is no frame of this version."""
    if len(data) < _START or data[: len(MAGIC)] != MAGIC:
        raise Refused("not a frame of this version of fedsim")
    return data[_START:], data[len(MAGIC) : _START]


def decode(body: bytes) -> Frame:
    """The body's message; arrays are on the CPU, of values that may be anything, float64 or float32.

    Only a report in a reply, and what goes to a shuffler and comes from it, are bytes or words. Refused if it
    is malformed.
    """
    from safetensors.torch import load

    return Frame(*checked(body), _loaded(load, body))


def decode_words(body: bytes) -> Frame:
    """As `decode`, with numpy's arrays."""
    from safetensors.numpy import load

    return Frame(*checked(body), _loaded(load, body))


def _loaded(load: Callable[[bytes], dict[str, Any]], body: bytes) -> dict[str, Any]:
    from safetensors import SafetensorError

    try:
        return load(body)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError, TypeError, AssertionError):
        raise Refused(MALFORMED) from None


def checked(body: bytes) -> tuple[str, Mapping[str, Any]]:
    """A body's kind and head; its arrays are safe for safetensors. Refused if it is malformed."""
    kind, head, described = _outline(body)
    others = _OTHERS.get(kind, {})
    if len(described) > MAX_ARRAYS:
        raise Refused(f"a frame has {len(described)} arrays, more than {MAX_ARRAYS}")
    for name, told in described.items():  # safetensors would read these; it checks offsets and sizes itself
        if type(told) is not dict or set(told) != _ARRAY or type(told["shape"]) is not list:
            raise Refused(MALFORMED)
        if told["dtype"] not in others.get(name, _FLOATS):
            raise Refused("a frame's array is of another type than its message's are")
        if len(told["shape"]) > MAX_AXES or 0 in told["shape"]:
            raise Refused(f"a frame's array is empty or has more than {MAX_AXES} axes")
    return kind, head


def head_of(body: bytes) -> tuple[str, Mapping[str, Any]]:
    """The body's kind and head alone; arrays are neither read nor checked; Refused if it is malformed."""
    kind, head, _ = _outline(body)
    return kind, head


def _outline(body: bytes) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Kind, head and what is said of each array."""
    try:
        (header,) = _HEADER.unpack_from(body)
        if header > MAX_HEAD:
            raise Refused(f"a frame's head has {header} bytes, more than {MAX_HEAD}")
        described = _parsed(body[_HEADER.size : _HEADER.size + header])
        kind, head = _parsed(described.pop("__metadata__")["message"])
    except (struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Refused(MALFORMED) from None
    if type(kind) is not str or type(head) is not dict:
        raise Refused(MALFORMED)
    return kind, head, described


def _parsed(text: str | bytes) -> Any:
    """JSON of distinct keys, finite numbers, integers of 64 bits and text that can be written down.
    ValueError or TypeError or RecursionError if it is something else.
    """
    text = text if isinstance(text, str) else text.decode()
    made = _DECODER.decode(text)
    if "\\u" in text:  # only an escape makes half a surrogate pair, which breaks logs and ledgers later
        _ENCODER.encode(made).encode()
    return made


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key twice")
    return made


def _small(digits: str) -> int:
    value = int(digits)
    if not -(2**63) <= value < 2**64:
        raise ValueError("an integer of more than 64 bits")
    return value


def _finite(digits: str) -> float:
    value = float(digits)  # 1e999 is infinite
    if not math.isfinite(value):
        raise ValueError("a number that is not finite")
    return value


_HEADS = json.JSONEncoder(allow_nan=False)
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_DECODER = json.JSONDecoder(
    object_pairs_hook=_distinct, parse_int=_small, parse_float=_finite, parse_constant=_finite
)


def framed(data: bytes) -> bytes:
    """A frame as it stands on a stream."""
    return LENGTH.pack(len(data)) + data


def send(connection: socket.socket, data: bytes) -> None:
    """One frame onto a stream."""
    connection.sendall(framed(data))


def receive(connection: socket.socket, limit: int) -> bytes | None:
    """The next frame of a stream, of `limit` bytes at most; None at its end.

    The connection's own timeout holds for every piece. Refused if it is longer, of which nothing has been
    read; ConnectionError if the stream ended within it; TimeoutError if it took too long.
    """
    length = announced(connection.recv, limit)
    return None if length is None else awaited(connection.recv, length)


Read = Callable[[int], bytes]  # some bytes of a stream, so many at most; none at its end


def announced(read: Read, limit: int) -> int | None:
    """Bytes of the next frame, which `awaited` takes; see `receive`."""
    first = _pieces(read, LENGTH.size)
    if not first:
        return None
    if len(first) < LENGTH.size:
        raise ConnectionError(CUT)
    return length_of(first, limit)


def length_of(first: bytes | bytearray, limit: int) -> int:
    """The length that a frame's first bytes announce; Refused if it is over the limit."""
    (length,) = LENGTH.unpack(first)
    if length > limit:
        raise Refused(f"a frame of {length} bytes is over the limit of {limit}")
    return int(length)


def awaited(read: Read, length: int) -> bytes:
    """A frame of so many bytes; see `receive`."""
    data = _pieces(read, length)
    if len(data) < length:
        raise ConnectionError(CUT)
    return data


def _pieces(read: Read, length: int) -> bytes:
    """So many bytes, or fewer at the stream's end; memory grows with what came, not what was announced."""
    data = bytearray()
    while missing := length - len(data):
        part = read(min(missing, 1 << 20))
        if not part:
            break
        data += part
    return bytes(data)
