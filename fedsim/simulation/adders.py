"""How the contributions of a simulated round are added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor


class Adder(Protocol):
    """Adds up the silos' contributions of a round."""

    def __call__(
        self, round_index: int, members: Sequence[int], rows: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Sums over the members, {query: (d,)}, of contributions {query: (members, d)}."""
        ...


def at_once(round_index: int, members: Sequence[int], rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The sums without a protocol: what it gives, whatever way it takes."""
    return {name: value.sum(0) for name, value in rows.items()}
