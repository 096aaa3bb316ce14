"""Whether this machine computes what belongs to one record from that record alone, to the last bit.

`fedsim.problems.exact` has the argument; it rests on how NumPy and its BLAS treat the last numbers of a row,
which another processor may do otherwise. So a daemon tries that when it starts, and an offer's problem before
it is admitted, on made-up numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.problems import exact
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem
from fedsim.protocol.rows import Rows
from silos.vault.layout import MAX_NORM
from silos.vault.records import Records, clipped_sum

_COUNTS, _OFFSETS, _WIDTHS = (1, 2, 3, 5, 7, 8, 17, 33), (0, 1, 2, 5), (1, 3, 13, 50, 129)
_FUNCTIONS = {"e^x": exact.exp, "log": exact.log, "log1p": exact.log1p, "tanh": exact.tanh}


@cache
def check_machine() -> None:
    """Refused if this processor fails; 50 ms, once a process."""
    for what in (*_inexact(), *_by_place()):
        raise Refused(
            f"this machine rounds {what}: a record's gradient would depend on the records beside it"
        )


def _inexact() -> Iterator[str]:
    """Products of whole numbers within a norm of 2^26.5, against Python's integers."""
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-(2**23), 2**23, size) for size in ((7, 66), (66, 9)))
    expected = (left.astype(object) @ right.astype(object)).astype(np.float64)
    a, b = (torch.from_numpy(each.astype(np.float64)) for each in (left, right))
    for name, found in {"NumPy's": exact.product(a, b), "torch's": a @ b}.items():
        if not np.array_equal(found.numpy(), expected):
            yield f"{name} products of whole numbers"


def _by_place() -> Iterator[str]:
    """What NumPy gives for the same numbers at other counts and addresses."""
    made = torch.Generator().manual_seed(0)
    for width in _WIDTHS:
        rows, w = (torch.randn(n, width, dtype=torch.float64, generator=made) for n in (_COUNTS[-1], 2))
        moved = torch.cat([w[0, :1], w[0]])[1:]  # at another address
        alike = torch.equal(exact.sums(rows, w[0]), exact.sums(rows, moved))
        if not (alike and _same(rows, lambda rows: exact.sums(rows, w[0]))):  # noqa: B023
            yield f"a product of {width} numbers by its place"
    for name, function in _FUNCTIONS.items():
        if not _same(torch.rand(_COUNTS[-1], 1, dtype=torch.float64, generator=made), function):
            yield f"{name} by its place"


def _same(rows: Tensor, function: Callable[[Tensor], Tensor]) -> bool:
    """Whether each row gives alone what it gives among others."""
    alone = torch.cat([function(row) for row in torch.split(rows, 1)])
    for count in _COUNTS:
        for offset in _OFFSETS:
            placed = torch.empty(offset + rows[:count].numel(), dtype=rows.dtype)[offset:].view(count, -1)
            if not torch.equal(function(placed.copy_(rows[:count])), alone[:count]):
                return False
    return True


def check_problem(problem: Problem, dtype: torch.dtype) -> None:
    """Refused if a made-up record's gradient has other bits among other records; float32 is not tried."""
    if dtype != torch.float64:
        return
    made = torch.Generator().manual_seed(0)
    record = torch.rand(problem.num_features, dtype=dtype, generator=made)
    point = 0.1 * torch.randn(problem.dimension, dtype=dtype, generator=made)
    found = set()
    for count in (1, 2, 3, 7):
        for place in {0, count - 1}:
            features = torch.zeros(count, problem.num_features, dtype=dtype)
            features[:, 0] = 10 * MAX_NORM  # counts as the zero vector
            features[place] = record
            records = Records([Rows(features.numpy(), np.zeros(count))], problem, dtype)
            total = clipped_sum(problem, records.full([0])[0], [point], None)
            found.add((total + 0.0).numpy().tobytes())  # 0 has one sign
    if len(found) > 1:
        hint = "this machine computes a record's gradient otherwise beside other records"
        raise Refused(f"offer: problem {type(problem).__name__}: {hint}; another model may do")


def one_at_a_time(problem: Problem, dtype: torch.dtype) -> tuple[str, ...]:
    """A line for the report where a network's graph is computed for one record after the other."""
    if isinstance(problem, GeneralisedLinear):
        return ()
    from silos.vault.network import layerwise, strategy, tile  # where there is a network

    if strategy(problem, dtype)[0] is layerwise or tile(problem, dtype) > 1:
        return ()
    return ("records are computed one at a time: together they are too large, or are rounded by place",)
