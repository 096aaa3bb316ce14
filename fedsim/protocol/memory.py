"""A cohort's state between rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsim.protocol.plain import plain_arrays


class CohortMemory(dict[str, Tensor]):
    """Named tensors (silos, d) that are zero until they are written."""

    def __init__(self, silos: int, dimension: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.silos, self._dimension, self._dtype = silos, dimension, dtype

    def __missing__(self, name: str) -> Tensor:
        return torch.zeros(self.silos, self._dimension, dtype=self._dtype)

    def select(self, members: list[int]) -> CohortMemory:
        """A copy of the rows of `members`, to work on until the reply is stored."""
        part = CohortMemory(len(members), self._dimension, self._dtype)
        part.update({name: value[members] for name, value in self.items()})
        return part

    def commit(self, members: list[int], part: CohortMemory) -> None:
        """Write the rows of `members` back, as copies.

        Raises:
            Refused: something else than plain tensors was written.
        """
        plain = plain_arrays(part, "memory")
        merged = {name: self[name].clone() for name in plain}
        for name, value in plain.items():
            merged[name][members] = value
        self.update(merged)  # all of it or, where a shape is wrong, nothing
