"""What a silo has spent and said: debit before noise is drawn, reply before the first byte leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

Reply = Mapping[str, Tensor]
"""One silo's answer to a round, or its memory between rounds, {name: (d,)}."""


class Ledger(Protocol):
    """One silo's run: which rounds are paid for, by which broadcast, and the last reply.

    What `debit`, `store` and `refuse` were told is kept once they return. The gate calls `find`, `debit`, and
    `store` or `refuse`, one round at a time.
    """

    def find(self, round_index: int, digest: bytes) -> Reply | None:
        """The stored reply to the broadcast of this digest; None for a round that is not paid for yet.

        A round that was debited and has no reply is over, however it ended: an interrupt too may have come
        after noisy answers were seen, and the same noise at another point would show what it hides. (A
        process that dies takes what it saw with it, so a ledger that outlives it may answer such a round
        again, to the same broadcast only.)

        Raises:
            Refused: another broadcast for a round already paid for, a reply no longer kept, or a round
                that ended without one.
        """
        ...

    def debit(self, round_index: int, digest: bytes) -> None:
        """Pay for the whole round, before noise is drawn.

        Raises:
            Refused: it is paid for already.
        """
        ...

    def store(self, round_index: int, reply: Reply, memory: Reply) -> None:
        """Keep the reply, before anything of it leaves, and the silo half's memory after it.

        Nobody writes to these tensors afterwards.
        """
        ...

    def refuse(self, round_index: int, reason: str) -> None:
        """Keep a reason: that it happened may depend on noisy answers, so it is this round's only reply."""
        ...

    @property
    def memory(self) -> Reply:
        """The silo half's memory when the last reply was stored, {name: (d,)}; a new gate begins with it."""
        ...

    @property
    def debited(self) -> list[int]:
        """The rounds paid for, in the order of their debits."""
        ...

    def digest(self, round_index: int) -> str:
        """The broadcast that a round was paid for, as hexadecimal SHA-256."""
        ...
