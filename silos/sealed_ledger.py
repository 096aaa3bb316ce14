"""The ledger of a run of sums over silos, which holds what the silo sent: sealed reports."""

from __future__ import annotations

import numpy as np
import torch

from fedsim.common.identity import Identity
from fedsim.mechanisms.occasions import Occasions
from fedsim.protocol.reports import seal_report
from silos.ledger import Reply
from silos.pooled import Part
from silos.run_ledger import RunLedger


class SealedLedger(RunLedger):
    """A run's ledger that keeps a silo's contributions as sealed reports, and nowhere in the clear.

    A report is made once, with new shares, and stored before it leaves; whoever asks again gets the same
    bytes. Two reports of one contribution would be two splits of it, of which no two parts must ever meet.
    """

    def __init__(self, run: RunLedger, part: Part, occasions: Occasions, identity: Identity) -> None:
        super().__init__(run._file, run.record)
        self._part, self._occasions, self._identity = part, occasions, identity

    def store(self, round_index: int, reply: Reply, memory: Reply) -> None:
        """See `Ledger`; `reply` has the contributions, by the number of the query, (d,) float64."""
        numbers = np.stack([reply[str(number)].numpy() for number in range(len(reply))])
        occasion = self._occasions.of(round_index)
        if occasion.form.transport == "shares":
            numbers = numbers.astype(np.int64)  # they are integers below 2^53
        position = self._part.share.position
        sealed = seal_report(numbers, occasion, self._part.roster, position, self._identity.sign)
        super().store(round_index, {"report": torch.frombuffer(bytearray(sealed), dtype=torch.uint8)}, memory)
