"""The ledger of a simulated silo."""

from __future__ import annotations

import pytest
import torch

from fedsim.common.errors import Refused
from fedsim.simulation.memory_ledger import MemoryLedger


def test_the_ledger_debits_before_it_knows_a_reply() -> None:
    ledger = MemoryLedger()
    assert ledger.find(4, b"a") is None
    assert ledger.debited == []
    ledger.debit(4, b"a")
    assert ledger.debited == [4]
    with pytest.raises(Refused, match="came to no reply"):
        ledger.find(4, b"a")
    with pytest.raises(Refused, match="paid for already"):
        ledger.debit(4, b"a")
    reply = {"g": torch.zeros(3)}
    ledger.store(4, reply, {})
    assert ledger.find(4, b"a") is reply
    with pytest.raises(Refused):
        ledger.find(4, b"b")
    assert ledger.debited == [4]
