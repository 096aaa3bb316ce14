"""A ledger that lives as long as its run: a simulation's."""

from __future__ import annotations

from fedsim.common.errors import Refused
from silos.ledger import Reply


class MemoryLedger:
    """`silos.ledger.Ledger` in memory."""

    __slots__ = ("_digests", "_last", "_refused", "_reply")

    def __init__(self) -> None:
        # Plain values in plain containers: ten thousand silos' ledgers must not slow the garbage collector.
        self._digests: dict[int, bytes] = {}
        self._refused: dict[int, str] = {}  # from the debit on, until there is a reply
        self._last = -1
        self._reply: Reply | None = None

    def find(self, round_index: int, digest: bytes) -> Reply | None:
        """See `Ledger`."""
        paid = self._digests.get(round_index)
        if paid is None:
            return None
        if paid != digest:
            raise Refused(f"round {round_index} was asked for with another broadcast")
        if round_index in self._refused:
            raise Refused(self._refused[round_index] or f"round {round_index} was begun and came to no reply")
        if round_index != self._last or self._reply is None:
            raise Refused(f"round {round_index} was answered; only the last reply is kept")
        return self._reply

    def debit(self, round_index: int, digest: bytes) -> None:
        """See `Ledger`."""
        if round_index in self._digests:
            raise Refused(f"round {round_index} is paid for already")
        self._refused[round_index] = ""
        self._digests[round_index] = digest

    def store(self, round_index: int, reply: Reply, memory: Reply) -> None:
        """See `Ledger`; the gate keeps the memory, since it lives as long."""
        self._last, self._reply = round_index, reply
        del self._refused[round_index]

    def refuse(self, round_index: int, reason: str) -> None:
        """See `Ledger`."""
        self._refused[round_index] = reason

    @property
    def memory(self) -> Reply:
        """See `Ledger`."""
        return {}

    @property
    def debited(self) -> list[int]:
        """See `Ledger`."""
        return list(self._digests)

    def digest(self, round_index: int) -> str:
        """See `Ledger`."""
        return self._digests[round_index].hex()
