"""Frames: the same bytes for the same message, and nothing but `Refused` for bytes that are none."""

import subprocess
import sys

import pytest
import torch

from fedsim.common.errors import Refused
from fedsim.wire.frames import Frame, decode, encode, opened, sealed

FRAME = Frame(
    "reply", {"run": "ab", "round": 3}, {"b": torch.ones(2), "a": torch.zeros(1, dtype=torch.float64)}
)


def test_a_frame_comes_back_as_it_was() -> None:
    body, signature = opened(sealed(encode(FRAME), bytes(range(64))))
    found = decode(body)
    assert (found.kind, found.head, signature) == (FRAME.kind, FRAME.head, bytes(range(64)))
    assert all(torch.equal(found.arrays[name], value) for name, value in FRAME.arrays.items())


def test_equal_frames_are_equal_bytes_in_every_process() -> None:
    """A retry is answered byte for byte, also after a restart."""
    made = "import torch; from fedsim.wire.frames import Frame, encode; "
    made += (
        "f = Frame('x', {'b': 1, 'a': 2}, {'v': torch.ones(2), 'w': torch.ones(1)}); print(encode(f).hex())"
    )
    lines = {subprocess.check_output([sys.executable, "-c", made]) for _ in range(2)}
    assert len(lines) == 1
    assert len({encode(FRAME) for _ in range(50)}) == 1


@pytest.mark.parametrize("body", [b"", b"\xff" * 8, encode(FRAME)[:-1], encode(FRAME) + b"x"])
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(Refused):
        decode(body)
