"""What a silo has spent and answered in one run: debit before noise is drawn, reply before it leaves.

`Ledger` is what a gate is given; `RunLedger` is a deployed silo's, one run's part of its ledger file.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fedsim.common.errors import Behind, Lost, Refused
from silos.vault.book import Run, contents
from silos.vault.journal import Journal

if TYPE_CHECKING:  # torch is loaded when a reply is
    from torch import Tensor

Reply = Mapping[str, "Tensor"]  # one silo's answer to a round, or its memory between rounds, {name: (d,)}


class Ledger(Protocol):
    """One silo's run: which rounds are paid for, by which broadcast, and the last reply.

    What `debit`, `store` and `refuse` were given is kept once they return. The gate calls `find`, `debit`,
    and `store` or `refuse`, one round at a time.
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

    def debit(self, round_index: int, digest: bytes) -> None:
        """Pay for the whole round, before noise is drawn; Refused if it is paid for already."""

    def store(self, round_index: int, reply: Reply, memory: Reply) -> None:
        """Keep the reply, before anything of it leaves, and the silo method's memory after it.

        Nobody writes to these tensors afterwards.
        """

    def refuse(self, round_index: int, reason: str) -> None:
        """Keep a reason: that it happened may depend on noisy answers, so it is this round's only reply."""

    @property
    def memory(self) -> Reply:
        """The silo method's memory as of the last stored reply, {name: (d,)}; a new gate begins with it."""

    @property
    def debited(self) -> list[int]:
        """The rounds paid for, in the order of their debits."""

    def digest(self, round_index: int) -> str:
        """The broadcast that a round was paid for, as hexadecimal SHA-256."""


_LONGEST = 2_000  # characters of a reason


class RunLedger:
    """`Ledger` on the disk.

    A round that an earlier process paid for and did not answer may be answered again, to the same broadcast:
    what that process saw of its noise died with it. One that this process paid for is over then. So is one
    whose noisy answers plug-in code has seen: whether it came to a reply may be a function of them.

    Attributes:
        resumes: whether rounds of an earlier process may be answered.
        answering: is held while a round of the run is answered.
    """

    def __init__(self, file: Journal, record: Run) -> None:
        self._file, self.record, self.resumes = file, record, True
        self.answering = threading.Lock()

    @property
    def run(self) -> str:
        """Id of the run."""
        return self.record.run

    @property
    def open(self) -> bool:
        """Whether rounds may still be paid for."""
        return self.record.open

    @property
    def offer(self) -> str:
        """The server's offer, JSON."""
        return str(self._row()[0])

    @property
    def secret(self) -> bytes:
        """The run's own."""
        return bytes(self._row()[1])

    def _row(self) -> Any:
        with self._file.lock:
            row = self._file.query("SELECT offer, secret FROM runs WHERE run = ?", (self.run,))
            if row is None or contents(row[0].encode(), row[1]) != self.record.contents:
                raise Refused("the silo's ledger is damaged")
            return row

    def find(self, round_index: int, digest: bytes) -> Reply | None:
        """See `Ledger`."""
        with self._file.lock:
            self._file.check_usable()
            paid = self.record.rounds.get(round_index)
            if paid is None:
                return None
            if paid.broadcast != digest.hex():
                raise Behind(f"round {round_index} was asked for with another broadcast")
            if paid.refusal is not None:
                raise Lost(paid.refusal)
            if paid.reply is not None:
                if round_index != self.record.last:
                    raise Behind(f"round {round_index} was answered; only the last reply is kept")
                return self._stored()[0]
            if paid.boot == self._file.book.boot or not self.resumes:
                raise Lost(f"round {round_index} was begun and came to no reply")
            return None

    def begin(self, mark: object) -> None:
        """Take the shuffler's mark that a round is asked for with: none, but in secure aggregation."""

    def debit(self, round_index: int, digest: bytes) -> None:
        """See `Ledger`; refused too where the run or the silo's life is over, or the round is not its own."""
        with self._file.lock:
            again = round_index in self.record.rounds
            if again and self.find(round_index, digest) is not None:
                raise Refused(f"round {round_index} is paid for already")
            self._file.expire()
            self._file.check_alive()
            if not self.open:
                raise Lost("the run is closed")
            self.record.price.stretch(round_index)
            payload = {"run": self.run, "round": round_index, "broadcast": digest.hex(), **self._facts()}
            self._file.note("resumed" if again else "debited", payload)

    def _facts(self) -> Mapping[str, object]:
        """Further values that a debit notes."""
        return {}

    def store(self, round_index: int, reply: Reply, memory: Reply) -> None:
        """See `Ledger`."""
        rows = packed(reply), packed(memory)
        with self._file.lock:
            self._check_under_way(round_index)
            payload = {"run": self.run, "round": round_index, "contents": contents(*rows)}
            sql = "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)"
            self._file.note("replied", payload, (sql, (self.run, round_index, *rows)))

    def refuse(self, round_index: int, reason: str) -> None:
        """See `Ledger`."""
        with self._file.lock:
            self._check_under_way(round_index)
            self._file.note("refused", {"run": self.run, "round": round_index, "reason": reason[:_LONGEST]})

    def _check_under_way(self, round_index: int) -> None:
        paid = self.record.rounds.get(round_index)
        if paid is None or not paid.under_way or paid.boot != self._file.book.boot:
            raise Refused(f"round {round_index} is not under way")

    @property
    def memory(self) -> Reply:
        """See `Ledger`."""
        with self._file.lock:
            return {} if self.record.last is None else self._stored()[1]

    def _stored(self) -> tuple[Reply, Reply]:
        row = self._file.query("SELECT round, reply, memory FROM replies WHERE run = ?", (self.run,))
        last = self.record.last
        if row is None or row[0] != last or contents(*row[1:]) != self.record.rounds[row[0]].reply:
            raise Refused("the silo's ledger is damaged: a stored reply is not the one that was given")
        return unpacked(row[1]), unpacked(row[2])

    @property
    def debited(self) -> list[int]:
        """See `Ledger`."""
        with self._file.lock:
            return list(self.record.rounds)

    def digest(self, round_index: int) -> str:
        """See `Ledger`."""
        return self.record.rounds[round_index].broadcast

    def head_of(self, round_index: int) -> str:
        """The chain's head right after the round's reply was stored, hexadecimal."""
        head = self.record.rounds[round_index].head
        if head is None:
            raise Refused(f"round {round_index} has no reply")
        return head


def packed(arrays: Reply) -> bytes:
    """Named tensors as bytes."""
    from safetensors.torch import save

    return save({name: value.detach().clone().contiguous() for name, value in arrays.items()})


def unpacked(data: bytes) -> Reply:
    """The inverse of `packed`."""
    from safetensors.torch import load

    return load(data)
