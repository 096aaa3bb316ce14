"""No mechanism: for comparison, and for federations that need no privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedsim.privacy.calibrate import Budget
from fedsim.protocol.plan import Census

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NoMechanism:
    """Neither clip nor add noise: the non-private twin, and with local_sgd FedAvg.

    >>> NoMechanism().epsilons((), [(100, 5.0, 1e-6)])
    [inf]
    """

    name: ClassVar[str] = "none"
    private: ClassVar[bool] = False
    clips: ClassVar[bool] = False
    squares_add: ClassVar[bool] = False
    sums_only: ClassVar[bool] = False
    unit: ClassVar[str] = "none"
    guarantee: ClassVar[str] = "none: mechanism none neither clips nor adds noise"
    notices: ClassVar[tuple[str, ...]] = ("No privacy: mechanism none neither clips nor adds noise",)

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Draw nothing."""

    def perturb(
        self,
        total: Tensor,
        noise_ratio: float,
        z: Tensor,
        clip: float | Tensor,
        noise: Callable[[], Tensor],
    ) -> None:
        """Leave the sums as they are."""

    def noise_multipliers(self, census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
        """No noise; it keeps no budget, which a silo sees from the price."""
        return [0.0] * len(budgets)

    def epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """Infinity, whatever is asked."""
        return [inf] * len(cases)

    def accountant(self, samplers: Iterable[str]) -> str:
        """None is needed."""
        return "none"
