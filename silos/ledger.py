"""What a silo has spent and said: debit before noise is drawn, reply before the first byte leaves.

This one lives in memory, for simulation; it keeps the order of operations of a durable one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedsim.protocol.errors import Refused


class Reply(NamedTuple):
    """A silo's row in the tensors of a cohort's answer, {name: (silos, d)}."""

    tensors: Mapping[str, Tensor]
    row: int


@dataclass(slots=True)
class _Entry:
    digest: bytes
    answered: bool = False


class MemoryLedger:
    """One silo's run: which rounds are paid for, by which broadcast, and the last reply."""

    __slots__ = ("_entries", "_last", "_last_round")

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._last_round, self._last = -1, None

    _last: Reply | None

    def open(self, round_index: int, digest: bytes) -> Reply | None:
        """Debit the whole round, once, and return the stored reply if there is one.

        A round that was debited without a stored reply proves that nothing left: it may be answered
        again, for the same broadcast only, without a second debit and without a refund.

        Raises:
            Refused: another broadcast for a round already paid for, or a reply no longer kept.
        """
        entry = self._entries.get(round_index)
        if entry is None:
            self._entries[round_index] = _Entry(digest)
            return None
        if entry.digest != digest:
            raise Refused(f"round {round_index} was asked for with another broadcast")
        if not entry.answered:
            return None
        if round_index != self._last_round:
            raise Refused(f"round {round_index} was answered; only the last reply is kept")
        return self._last

    def store(self, round_index: int, reply: Reply) -> None:
        """Keep the reply, before anything of it leaves."""
        self._entries[round_index].answered = True
        self._last_round, self._last = round_index, reply

    @property
    def debited(self) -> list[int]:
        """The rounds paid for."""
        return list(self._entries)

    def digest(self, round_index: int) -> str:
        """The broadcast that a round was paid for, as hexadecimal SHA-256."""
        return self._entries[round_index].digest.hex()
