"""Frames of bytes and words: who may carry them, and how little they need."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from fedsim.common.errors import Refused
from fedsim.wire import frames
from fedsim.wire.frames import Frame, decode, encode, opened, sealed

REPORT = np.arange(10, dtype=np.uint8)
SUM = np.array([0, 1, 2**64 - 1], np.uint64)


def body(kind: str, **arrays: np.ndarray) -> bytes:
    return bytes(save(arrays, frames.metadata(kind, {"round": 3})))


@pytest.mark.parametrize(
    ("kind", "arrays"),
    [
        ("reply", {"report": REPORT}),
        ("shuffle", {"reports": REPORT.reshape(2, 5)}),
        ("shuffled", {"inner": REPORT.reshape(2, 5), "sum": SUM}),
        ("reply", {"g": np.ones(3), "report": REPORT}),
    ],
)
def test_bytes_and_words_arrive_in_the_messages_that_carry_them(kind, arrays):
    sent = frames.encode(Frame(kind, {"round": 3}, arrays))
    found, as_torch = frames.decode_words(sent), frames.decode(sent)
    assert (found.kind, found.head) == (kind, {"round": 3})
    assert set(found.arrays) == set(as_torch.arrays) == set(arrays)
    for name, value in arrays.items():
        assert found.arrays[name].dtype == value.dtype
        assert (found.arrays[name] == value).all()
        assert (as_torch.arrays[name].numpy() == value).all()


@pytest.mark.parametrize(
    "sent",
    [
        body("ask", report=REPORT),
        body("reply", g=REPORT),
        body("reply", report=SUM),
        body("reply", report=np.ones(3)),
        body("shuffle", report=REPORT),
        body("shuffle", reports=REPORT.astype(np.int8)),
        body("shuffled", inner=SUM),
        body("shuffled", sum=SUM.view(np.int64)),
        body("shuffled", inner=REPORT, sum=np.ones(3)),
    ],
)
def test_no_other_message_carries_them(sent):
    for read in (frames.decode_words, frames.decode):
        with pytest.raises(Refused, match="another type"):
            read(sent)


def test_both_ways_of_writing_a_frame_are_one():
    array = np.arange(6.0).reshape(2, 3)
    ours = frames.encode(Frame("ask", {"round": 1}, {"w": array}))
    assert ours == frames.encode(frames.Frame("ask", {"round": 1}, {"w": torch.from_numpy(array)}))


@pytest.mark.parametrize("cut", [0, 7, 8, 40, -1])
def test_a_frame_that_is_cut_short_is_refused(cut):
    whole = frames.encode(Frame("shuffle", {}, {"reports": REPORT.reshape(2, 5)}))
    with pytest.raises(Refused):
        frames.decode_words(whole[:cut])


def test_a_slice_is_written_as_it_looks():
    rows = np.arange(20, dtype=np.uint8).reshape(4, 5)[::2, ::2]
    sent = frames.encode(Frame("shuffle", {}, {"reports": rows}))
    assert (frames.decode_words(sent).arrays["reports"] == rows).all()


# Frames: the same bytes for the same message, and nothing but `Refused` for bytes that are none.

FRAME = Frame(
    "reply", {"run": "ab", "round": 3}, {"b": torch.ones(2), "a": torch.zeros(1, dtype=torch.float64)}
)


def test_a_frame_comes_back_as_it_was():
    body, signature = opened(sealed(encode(FRAME), bytes(range(64))))
    found = decode(body)
    assert (found.kind, found.head, signature) == (FRAME.kind, FRAME.head, bytes(range(64)))
    assert all(torch.equal(found.arrays[name], value) for name, value in FRAME.arrays.items())


def test_equal_frames_are_equal_bytes_in_every_process():
    """A retry is answered byte for byte, also after a restart."""
    made = "import torch; from fedsim.wire.frames import Frame, encode; "
    made += (
        "f = Frame('x', {'b': 1, 'a': 2}, {'v': torch.ones(2), 'w': torch.ones(1)}); print(encode(f).hex())"
    )
    lines = {subprocess.check_output([sys.executable, "-c", made]) for _ in range(2)}
    assert len(lines) == 1
    assert len({encode(FRAME) for _ in range(50)}) == 1
