"""The ledger of a run of sums over silos, which holds what the silo sent: sealed reports."""

from __future__ import annotations

import numpy as np
import torch

from fedsim.common.errors import Refused
from fedsim.common.identity import Identity
from fedsim.mechanisms.occasions import Occasions
from fedsim.protocol.marks import check_follows, check_marked
from fedsim.protocol.messages import Mark
from fedsim.protocol.reports import seal_report
from silos.ledger import Reply
from silos.pooled import Part
from silos.run_ledger import RunLedger


class SealedLedger(RunLedger):
    """A run's ledger that keeps a silo's contributions as sealed reports, and nowhere in the clear.

    A report is made once, with new shares, and stored before it leaves; whoever asks again gets the same
    bytes. Two reports of one contribution would be two splits of it, of which no two parts must ever meet.
    A report is for one start of the shuffler's process (`server.shuffler.store`). None is made for another,
    whatever a server says, so that a shuffler whose notes were set back cannot release the round again.
    """

    def __init__(self, run: RunLedger, part: Part, occasions: Occasions, identity: Identity) -> None:
        super().__init__(run._file, run.record)
        self._part, self._occasions, self._identity = part, occasions, identity
        self._mark: Mark | None = None

    def begin(self, mark: Mark | None) -> None:
        """Take the mark that a round is asked for with; before the gate is asked.

        Raises:
            Refused: there is none, or the roster's shuffler has not signed it.
        """
        if mark is None:
            raise Refused("a round of sums over silos is asked for with the shuffler's mark")
        check_marked(mark, self._part.roster.shuffler.identity)
        self._mark = mark

    def _facts(self) -> dict[str, object]:
        mark, shuffler = self._mark, self._part.roster.shuffler.identity
        assert mark is not None
        check_follows(mark, self.record.mark, self._file.book.marks.get(shuffler))
        return {"shuffler": shuffler, "mark": mark.model_dump()}

    def store(self, round_index: int, reply: Reply, memory: Reply) -> None:
        """See `Ledger`; `reply` has the contributions, by the number of the query, (d,) float64."""
        numbers = np.stack([reply[str(number)].numpy() for number in range(len(reply))])
        assert self._mark is not None
        occasion = self._occasions.of(round_index, self._mark.start)
        if occasion.form.transport == "shares":
            numbers = numbers.astype(np.int64)  # they are integers below 2^53
        position = self._part.share.position
        sealed = seal_report(numbers, occasion, self._part.roster, position, self._identity.sign)
        super().store(round_index, {"report": torch.frombuffer(bytearray(sealed), dtype=torch.uint8)}, memory)
