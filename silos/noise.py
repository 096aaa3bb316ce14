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
        self._streams = [entropy.stream(member, round_index, Purpose.NOISE) for member in members]
        self._ahead = max(1, min(queries, _BLOCK // max(1, len(members) * dimension)))
        self._dimension, self._block, self._used = dimension, np.empty((0, 0, 0)), 0

    def next(self, dtype: torch.dtype) -> Tensor:
        """The next query's noise, (members, d); streams do not depend on how far ahead they are drawn."""
        if self._used == self._block.shape[1]:
            self._block = np.empty((len(self._streams), self._ahead, self._dimension))
            for row, stream in zip(self._block, self._streams, strict=True):
                stream.standard_normal(out=row)
            self._used = 0
        self._used += 1
        return torch.from_numpy(self._block[:, self._used - 1]).to(dtype)
