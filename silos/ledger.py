"""What a silo has spent and said: debit before noise is drawn, reply before the first byte leaves.

This one lives in memory, for simulation; it keeps the order of operations of a durable one.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedsim.common.errors import Refused

Reply = tuple[Mapping[str, Tensor], int]
"""A cohort's answer {name: (silos, d)}, and the silo's row in it."""


class MemoryLedger:
    """One silo's run: which rounds are paid for, by which broadcast, and the last reply."""

    __slots__ = ("_digests", "_last", "_refused", "_reply", "_row")

    def __init__(self) -> None:
        # Plain values in plain containers: ten thousand silos' ledgers must not slow the garbage collector.
        self._digests: dict[int, bytes] = {}
        self._refused: dict[int, str] = {}  # from the debit on, until there is a reply
        self._reply: Mapping[str, Tensor] | None = None
        self._last, self._row = -1, 0

    def find(self, round_index: int, digest: bytes) -> Reply | None:
        """The stored reply to this broadcast, if there is one; costs nothing.

        A round that was debited and has no reply is over, however it ended: an interrupt too may have come
        after noisy answers were seen, and the same noise at another point would show what it hides. (A
        process that dies takes what it saw with it. A ledger that outlives it may answer such a round
        again, to the same broadcast only; this one does not.)

        Raises:
            Refused: another broadcast for a round already paid for, a reply no longer kept, or a round
                that ended without one.
        """
        paid = self._digests.get(round_index)
        if paid is None:
            return None
        if paid != digest:
            raise Refused(f"round {round_index} was asked for with another broadcast")
        if round_index in self._refused:
            raise Refused(self._refused[round_index])
        if round_index != self._last or self._reply is None:
            raise Refused(f"round {round_index} was answered; only the last reply is kept")
        return self._reply, self._row

    def debit(self, round_index: int, digest: bytes) -> None:
        """Pay for the whole round, once, before noise is drawn."""
        if round_index in self._digests:
            raise Refused(f"round {round_index} is paid for already")
        self._refused[round_index] = f"round {round_index} was begun and came to no reply"
        self._digests[round_index] = digest

    def store(self, round_index: int, reply: Mapping[str, Tensor], row: int) -> None:
        """Keep the reply, before anything of it leaves."""
        self._last, self._reply, self._row = round_index, reply, row
        del self._refused[round_index]

    def refuse(self, round_index: int, reason: str) -> None:
        """Keep a reason: that it happened may depend on noisy answers, so it is this round's only reply."""
        self._refused[round_index] = reason

    @property
    def debited(self) -> list[int]:
        """The rounds paid for."""
        return list(self._digests)

    def digest(self, round_index: int) -> str:
        """The broadcast that a round was paid for, as hexadecimal SHA-256."""
        return self._digests[round_index].hex()
