"""Standard normal vectors for a cohort's answers in one round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from silos.entropy import Purpose, SeededEntropy

_BLOCK = 4_000_000
"""Numbers drawn ahead at most (32 MB): drawing many queries' noise at once saves a call per query."""


class RoundNoise:
    """The round's noise, one (members, d) tensor a query, from each silo's own stream in order."""

    def __init__(
        self, entropy: SeededEntropy, members: Sequence[int], round_index: int, queries: int, dimension: int
    ) -> None:
        self._streams = entropy.streams(members, round_index, Purpose.NOISE)
        self._ahead = max(1, min(queries, _BLOCK // max(1, len(members) * dimension)))
        self._dimension, self._drawn, self._used = dimension, torch.empty(0, 0, 0), 0

    def next(self, dtype: torch.dtype) -> Tensor:
        """The next query's noise, (members, d); streams do not depend on how far ahead they are drawn."""
        if self._used == self._drawn.shape[1]:
            block = np.empty((len(self._streams), self._ahead, self._dimension))
            for row, stream in zip(block, self._streams, strict=True):
                stream.standard_normal(out=row)
            self._drawn, self._used = torch.from_numpy(block), 0
        self._used += 1
        return self._drawn[:, self._used - 1].to(dtype)
