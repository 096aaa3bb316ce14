"""Bytes of a hostile server: `Refused` and nothing else, and no memory for what was only announced."""

import json
import random
import socket
import struct
import threading
import tracemalloc
from typing import Any

import pytest
import torch
from safetensors.torch import save

from fedsim.common.errors import Refused
from fedsim.wire.frames import (
    MAX_ARRAYS,
    MAX_AXES,
    MAX_HEAD,
    Frame,
    decode,
    encode,
    head_of,
    opened,
    receive,
    sealed,
    send,
)

MESSAGE = {"message": '["ask", {}]'}


def body(described: Any, data: bytes = b"") -> bytes:
    header = described if isinstance(described, bytes) else json.dumps(described).encode()
    return struct.pack("<Q", len(header)) + header + data


def arrays(data: bytes = b"", **described: Any) -> bytes:
    return body({"__metadata__": MESSAGE, **described}, data)


def array(shape: Any, start: int = 0, end: int = 8, dtype: str = "F64") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def message(text: str) -> bytes:
    return body({"__metadata__": {"message": text}})


def head(value: str) -> bytes:
    return message(f'["ask", {{"x": {value}}}]')


def test_the_helpers_make_frames_that_are_read():
    """So that every refusal below is of what its name says."""
    assert decode(head("1.5")).head == {"x": 1.5}
    assert decode(arrays(bytes(8), a=array([1]))).arrays["a"].tolist() == [0.0]


HOSTILE = {
    "nothing": b"",
    "a length alone": struct.pack("<Q", 2),
    "a head longer than the body": struct.pack("<Q", 100) + b"{}",
    "a head of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
    "no object": body([1]),
    "no metadata": body({"a": array([1])}, bytes(8)),
    "metadata of a list": body({"__metadata__": [1]}),
    "metadata without a message": body({"__metadata__": {}}),
    "a message that is no text": body({"__metadata__": {"message": ["ask", {}]}}),
    "a message of one part": message('["ask"]'),
    "a message of three parts": message('["ask", {}, {}]'),
    "a message of two letters": message('"ab"'),
    "a kind that is no text": message("[1, {}]"),
    "a head that is no object": message('["ask", []]'),
    "UTF-16": body(json.dumps({"__metadata__": MESSAGE}).encode("utf-16")),
    "infinity": head("Infinity"),
    "infinity in digits": head("1e999"),
    "not a number": head("NaN"),
    "an integer of 70 bits": head(str(2**70)),
    "an integer of 5000 digits": head("9" * 5000),
    "a key twice": message('["ask", {"x": 1, "x": 2}]'),
    "half a surrogate pair": head('"\\ud800"'),
    "half a surrogate pair as a key": message('["ask", {"\\udfff": 1}]'),
    "deep lists": message("[" * 100_000),
    "deep objects": body(b'{"a":' * 100_000),
    "an array twice": body(
        b'{"__metadata__":{"message":"[\\"ask\\",{}]"},"a":%s,"a":%s}'
        % ((json.dumps(array([1])).encode(),) * 2),
        bytes(8),
    ),
    "metadata twice": body(
        b'{"__metadata__":{"message":"[\\"a\\",{}]"},"__metadata__":{"message":"[\\"b\\",{}]"}}'
    ),
    "overlapping arrays": arrays(bytes(8), a=array([1]), b=array([1])),
    "half overlapping arrays": arrays(bytes(16), a=array([1]), b=array([1], 4, 12)),
    "a hole": arrays(bytes(24), a=array([1]), b=array([1], 16, 24)),
    "bytes after the arrays": arrays(bytes(9), a=array([1])),
    "bytes missing": arrays(bytes(7), a=array([1])),
    "offsets backwards": arrays(bytes(8), a=array([1], 8, 0)),
    "negative offsets": arrays(bytes(8), a=array([1], -8, 0)),
    "a shape too large for its bytes": arrays(bytes(8), a=array([10**9])),
    "a shape over 2^64": arrays(bytes(8), a=array([2**62, 4])),
    "a negative shape": arrays(bytes(8), a=array([-1])),
    "a fractional shape": arrays(bytes(8), a=array([1.0])),
    "a shape that is a number": arrays(bytes(8), a=array(1)),
    "an empty array": arrays(a=array([0], 0, 0)),
    "an empty array of 2^62 columns": arrays(a=array([0, 2**62], 0, 0)),
    "an empty array of 2^64 - 1 columns": arrays(a=array([0, 2**64 - 1], 0, 0)),
    "too many axes": arrays(bytes(8), a=array([1] * (MAX_AXES + 1))),
    "an array that is a number": arrays(a=1),
    "an unknown field": arrays(bytes(8), a={**array([1]), "code": "x"}),
    **{
        f"{dtype}": arrays(bytes(8), a=array([8 // size], dtype=dtype))
        for dtype, size in {"F16": 2, "BF16": 2, "I64": 8, "U8": 1, "BOOL": 1, "F8_E8M0": 1, "C64": 8}.items()
    },
    "a type of four bits": arrays(bytes(8), a=array([16], dtype="F4")),
    "a type that does not exist": arrays(bytes(8), a=array([1], dtype="F128")),
    "a type that is a list": arrays(bytes(8), a={**array([1]), "dtype": ["F64"]}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_body_is_refused(data):
    with pytest.raises(Refused):
        decode(data)


def test_arrays_are_counted_before_they_are_made():
    one = torch.ones(1, dtype=torch.float64)
    many = save({f"a{i}": one.clone() for i in range(MAX_ARRAYS + 1)}, MESSAGE)
    with pytest.raises(Refused, match=f"{MAX_ARRAYS + 1} arrays"):
        decode(many)


def test_a_long_head_is_refused_unread():
    with pytest.raises(Refused, match="more than"):
        decode(body(b" " * (MAX_HEAD + 1)))


@pytest.mark.parametrize(
    "data", [b"", b"fds\x01" + bytes(63), b"fds\x00" + bytes(80), b"GET / HTTP/1.1\r\n" * 8]
)
def test_no_frame_of_this_version(data):
    with pytest.raises(Refused, match="not a frame"):
        opened(data)


def test_a_head_is_read_without_the_arrays():
    whole = encode(Frame("reply", {"round": 3}, {"g": torch.ones(1000)}))
    assert head_of(whole[:-4000]) == ("reply", {"round": 3})


def test_mutated_frames_are_read_or_refused():
    rng = random.Random(0)
    whole = encode(Frame("ask", {"round": 3, "run": "ab" * 32}, {"w": torch.ones(4), "v": torch.zeros(2, 2)}))
    read = 0
    for _ in range(5000):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            found = decode(bytes(changed[: rng.choice([len(changed), rng.randrange(len(changed))])]))
        except Refused:
            continue
        read += 1
        assert sum(v.numel() * v.element_size() for v in found.arrays.values()) == 32
    assert read > 100  # or every mutation would have been refused for one dull reason


def test_a_frame_crosses_a_stream_in_pieces():
    data = sealed(encode(Frame("ask", {}, {"w": torch.ones(100_000)})))
    a, b = socket.socketpair()
    with a, b:
        sender = threading.Thread(target=send, args=(a, data))
        sender.start()
        assert receive(b, len(data)) == data
        sender.join()
        a.shutdown(socket.SHUT_WR)
        assert receive(b, 10) is None


@pytest.mark.parametrize("length", [101, 2**31, 2**64 - 1])
def test_a_frame_over_the_limit_is_refused_before_it_is_read(length):
    a, b = socket.socketpair()
    with a, b:
        a.sendall(struct.pack(">Q", length) + bytes(50))
        with pytest.raises(Refused, match="over the limit of 100"):
            receive(b, 100)
        assert b.recv(100) == bytes(50)


def test_announced_bytes_cost_no_memory():
    a, b = socket.socketpair()
    with a, b:
        a.sendall(struct.pack(">Q", 2**31) + bytes(1000))
        a.shutdown(socket.SHUT_WR)
        tracemalloc.start()
        with pytest.raises(ConnectionError):
            receive(b, 2**31)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20


@pytest.mark.parametrize("sent", [bytes(3), struct.pack(">Q", 10) + bytes(3)])
def test_a_stream_that_ends_within_a_frame_is_an_error(sent):
    a, b = socket.socketpair()
    with b:
        with a:
            a.sendall(sent)
        with pytest.raises(ConnectionError):
            receive(b, 100)
