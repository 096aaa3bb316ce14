"""What a test needs to know of an algorithm: numbers for a few rounds, and for enough of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedsim.protocol.batch import Batch
from fedsim.protocol.contract import Algorithm


def final(answers: Sequence[Tensor]) -> Tensor:
    """The model returned."""
    return answers[-1]


def last_of_averaged(answers: Sequence[Tensor]) -> Tensor:
    """The last iterate R a_R - (R-1) a_{R-1}, where a_r is the mean of r iterates.

    The mean itself keeps its first iterates for ever and comes near the optimum only as 1 / R.
    """
    rounds = len(answers) - 1
    return rounds * answers[-1] - (rounds - 1) * answers[-3]


def before_the_last_round(answers: Sequence[Tensor]) -> Tensor:
    """The last iterate that was broadcast, where the model returned is a random earlier one."""
    return answers[-2]


def require(holds: bool, reason: str) -> None:
    """Say why a property does not hold.

    Raises:
        AssertionError: it does not.
    """
    if not holds:
        raise AssertionError(reason)


@dataclass(frozen=True, kw_only=True)
class Example:
    """An algorithm with numbers to test it by.

    Args:
        short: a few rounds (2 to 12 queries in all) on batches of the given kind.
        convergent: enough rounds for `tolerance`, given the inverse smoothness 1 / L.
        estimate: from the answers before every round and the final one, what reaches the optimum.
        tolerance: L2 distance to the optimum that it must reach without noise; where the run starts, the
            distance is 0.3 to 1.
        steps: what 1 / L is multiplied by before `convergent` gets it; the first that reaches counts.
        anchors: batches that it asks for besides the one it is given; None: they are not compared.
        left_out: {name of a property, or of a case of several: why it cannot hold}, such as
            {"linear in a ball": "a Euclidean projection after steps scaled by coordinate"}.
    """

    short: Callable[[Batch], Algorithm]
    convergent: Callable[[float], Algorithm]
    estimate: Callable[[Sequence[Tensor]], Tensor] = final
    tolerance: float = 1e-3
    steps: tuple[float, ...] = (1.0,)
    anchors: frozenset[Batch] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
