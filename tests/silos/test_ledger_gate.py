"""A gate over a ledger on disk: as over one in memory, restarts and failing disks included."""

from collections.abc import Mapping

import pytest
import torch
from support.helpers import LIMITS, Scripted, Switch, Unrepeatable, names_of, open_gate, plan_of, silos_of
from support.ledgers import enrolled, hexed, open_run
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.contract import Asker, Memory, Query
from fedsim.protocol.plan import Terms
from silos.account import Price
from silos.admission import price
from silos.entropy import SeededEntropy
from silos.gate import Gate, lay_out
from silos.ledger_file import LedgerFile

D, ROUNDS = 4, 6
PROBLEM = LogisticRegression(D)
DATA = silos_of(PROBLEM, [20])
TERMS = Terms("silo0", 20, 1.0, 1e-6, range(ROUNDS))


def half(w: Tensor, ask: Asker, memory: Memory) -> Mapping[str, Tensor]:
    """Answers depend on all that was answered before."""
    answer = ask(Query("gradient", (w,), 1.0))
    memory["sum"] = memory["sum"] + answer
    return {"g": answer, "sum": memory["sum"] / 2}


ALGORITHM = Scripted(Switch(half), ROUNDS)
PLAN = plan_of(ALGORITHM, PROBLEM, [20])


def gate_over(file: LedgerFile, entropy: object | None = None) -> Gate:
    """The gate of session 1, as a silo's process makes it when it is first asked."""
    return Gate(
        lay_out(DATA, PROBLEM, torch.float64),
        PROBLEM,
        ALGORITHM,
        PLAN,
        [TERMS],
        GAUSSIAN,
        SeededEntropy(0, 0, names_of(1), ["a test's run"]) if entropy is None else entropy,
        [file.session(hexed(1)) or open_run(file, price=_price())],
        LIMITS,
        torch.float64,
    )


def _price() -> Price:
    gate = open_gate(DATA, PROBLEM, ALGORITHM, epsilon=1.0, plan=PLAN)
    return price(PLAN, gate.admitted[0], GAUSSIAN)


def point(round_index: int) -> dict[str, Tensor]:
    return {"w": torch.full((D,), float(round_index), dtype=torch.float64)}


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_restarts_between_rounds_change_no_bit(tmp_path):
    path = enrolled(tmp_path)[0]
    unbroken = tmp_path / "unbroken"
    unbroken.mkdir()
    with LedgerFile.open(enrolled(unbroken)[0]) as file:
        gate = gate_over(file)
        expected = [gate.answer(r, point(r)) for r in range(ROUNDS)]
    for r in range(ROUNDS):
        with LedgerFile.open(path) as file:
            assert same(gate_over(file).answer(r, point(r)), expected[r])
        with LedgerFile.open(path) as file:
            assert same(gate_over(file).answer(r, point(r)), expected[r])  # as stored
            assert gate_over(file).statements()[0].rounds == list(range(r + 1))


@pytest.mark.parametrize("step", ["debit", "store"])
def test_a_disk_that_fails_lets_nothing_out_and_the_round_may_be_answered_after_a_restart(
    tmp_path, step, monkeypatch
):
    path = enrolled(tmp_path)[0]
    with LedgerFile.open(path) as file:
        gate = gate_over(file, Unrepeatable())
        first = gate.answer(0, point(0))
        at = {"debit": 1, "store": 2}[step]
        _fail_at(file, at, monkeypatch)
        for _ in range(3):
            with pytest.raises(Refused, match="cannot be written"):
                gate.answer(1, point(1))
        with pytest.raises(Refused):
            gate.answer(0, point(0))
    with LedgerFile.open(path) as file:
        gate, run = gate_over(file, Unrepeatable()), file.session(hexed(1))
        assert run is not None
        assert run.debited == ([0] if step == "debit" else [0, 1])
        assert same(gate.answer(0, point(0)), first)
        if step == "store":  # it is paid for, by its first broadcast
            with pytest.raises(Refused, match="another broadcast"):
                gate.answer(1, point(2))
        again = gate.answer(1, point(1))
        assert same(gate.answer(1, point(1)), again)


def _fail_at(file: LedgerFile, write: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write of this number from now on fails, as on a disk that is full."""
    left, note = [write], file.note

    def failing(*arguments):
        left[0] -= 1
        if left[0] == 0:
            file._connection.execute("PRAGMA query_only = 1")
        return note(*arguments)

    monkeypatch.setattr(file, "note", failing)


def test_an_interrupt_that_the_gate_saw_ends_the_round_for_good(tmp_path):
    path = enrolled(tmp_path)[0]

    def interrupted(w, ask, memory):
        half(w, ask, memory)
        raise KeyboardInterrupt

    with LedgerFile.open(path) as file:
        gate = gate_over(file)
        ALGORITHM.switch.half = interrupted
        try:
            with pytest.raises(KeyboardInterrupt):
                gate.answer(0, point(0))
        finally:
            ALGORITHM.switch.half = half
        with pytest.raises(Refused, match="failed in the silo"):
            gate.answer(0, point(0))
    with LedgerFile.open(path) as file, pytest.raises(Refused, match="failed in the silo"):
        gate_over(file).answer(0, point(0))  # how it ended was kept
