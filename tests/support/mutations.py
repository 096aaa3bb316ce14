"""Frames that go wrong in every way: true ones, with changes to bytes, numbers and arrays."""

import copy
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsim.wire.frames import Frame, encode, sealed

SCALARS: Sequence[Any] = (None, True, "", "x", "\x00", "a" * 300, -1, 0, 1, 2**31, 2**63, 2**64 - 1, -(2**63))
SCALARS = (*SCALARS, 0.5, -0.0, 5e-324, 1e308, [], [1], {}, {"name": "x"}, "0" * 64, "f" * 64)
NUMBERS = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 5e-324, 1e308, 1e6, 1e7)

Message = tuple[str, Mapping[str, Any], Mapping[str, Tensor]]
"""Kind, head and arrays of a true one."""


def mutated(corpus: Sequence[Message], seed: float) -> Iterator[bytes]:
    """Without end; `corpus` has (kind, head, arrays), and at least one thing is wrong with each as a rule."""
    rng = random.Random(seed)
    while True:
        kind, head, arrays = rng.choice(corpus)
        way = rng.random()
        if way < 0.05:
            yield rng.randbytes(rng.choice([0, 1, 67, 68, 76, 200, 5000]))
            continue
        head = json.loads(json.dumps(head))
        if way < 0.6:
            for _ in range(rng.randint(1, 2)):
                _change(head, rng)
        if 0.5 < way < 0.75:
            arrays = _changed(arrays, rng)
        if way > 0.97:
            kind = rng.choice(["", "reply", "greeting", "Ask", "x" * 1000])
        data = bytearray(sealed(encode(Frame(kind, head, arrays))))
        if way >= 0.75:
            for _ in range(rng.randint(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        yield bytes(data[: rng.randrange(len(data))] if way > 0.9 else data)


def _change(tree: Any, rng: random.Random) -> None:
    """One value somewhere below, a key more, or one less."""
    if not tree:
        return
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = rng.choice(keys)
    if isinstance(tree[key], dict | list) and tree[key] and rng.random() < 0.7:
        _change(tree[key], rng)
    elif isinstance(tree, dict) and rng.random() < 0.2:
        del tree[key]
    elif isinstance(tree, dict) and rng.random() < 0.1:
        tree[rng.choice(["x", "head", "epsilon", "__class__"])] = copy.deepcopy(rng.choice(SCALARS))
    else:
        tree[key] = copy.deepcopy(rng.choice(SCALARS))


def _changed(arrays: Mapping[str, Tensor], rng: random.Random) -> dict[str, Tensor]:
    """Other shapes, types, values or names."""
    made = {}
    for name, value in arrays.items():
        made[rng.choice([name, name, name, "w2", "x" * 500, "\u00e9"])] = rng.choice(
            [
                torch.full_like(value, rng.choice(NUMBERS)),
                value.to(rng.choice([torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])),
                value.repeat(rng.choice([2, 1000])),
                value[None],
                value[:1],
                value.new_zeros((2, 3, 4)),
            ]
        )
    if rng.random() < 0.2:
        made["more"] = torch.ones(3, dtype=torch.float64)
    return made
