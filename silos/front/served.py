"""The driver of a gate: the silo method that answers its rounds, in the same process as the gate.

What it is given are noisy answers, so that its message is post-processing; it is an algorithm that fedsim
ships, or one whose author may err and does not mean harm (a simulation's). A deployed silo runs any other in
a process that holds no record (`fedsim.isolated`), and what stands here for it asks what that process sends.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor

from fedsim.protocol.contract import Algorithm, Asker
from fedsim.protocol.plan import Admitted, Statement
from silos.vault.gate import Gate, OpenRound


def driven(opened: OpenRound, algorithm: Algorithm) -> dict[str, Tensor]:
    """The reply to a round, {name: (members, d)}: the stored one, or the silo method's."""
    if opened.reply is None:
        try:
            message = algorithm.silo(opened.problem, opened.broadcast, cast(Asker, opened.ask), opened.memory)
        except BaseException as error:
            opened.over(error)
            raise
        return opened.keep(message)
    return opened.reply


class Served:
    """A gate, and the algorithm whose silo method answers its rounds, one at a time."""

    def __init__(self, gate: Gate, algorithm: Algorithm) -> None:
        self.gate, self._algorithm, self._lock = gate, algorithm, threading.Lock()

    @property
    def admitted(self) -> list[Admitted]:
        """Each silo's terms, noise multiplier and epsilon, in the order of the cohort."""
        return self.gate.admitted

    def statements(self) -> list[Statement]:
        """See `Gate.statements`."""
        return self.gate.statements()

    def answer(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        """The members' messages of one round of the plan, {name: (members, d)}, to public tensors, each (d,).
        Members are positions in the cohort; all by default. Refused as `Gate.asked`.
        """
        with self._lock:
            return driven(self.gate.asked(round_index, broadcast, members), self._algorithm)
