"""Retries, memory and cohorts: the same bytes again, one debit, nothing kept without a reply."""

import warnings
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from support.algorithm_table import ROWS
from support.helpers import (
    Scripted,
    SiloHalf,
    Switch,
    Unrepeatable,
    asking,
    open_gate,
    problems,
    public_of,
    scripted,
    silos_of,
)
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.batch import FULL, Batch, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.contract import Asker, Combined, Memory, Query
from fedsim.simulation.host import MemoryLedger, MemoryLedgers

D = 4
PROBLEM = LogisticRegression(D)
ZERO = {"w": torch.zeros(D, dtype=torch.float64)}
ONE = {"w": torch.ones(D, dtype=torch.float64)}
SIZES = (3, 7, 8, 20, 41)


def _spent(gate: object) -> list[list[int]]:
    return [statement.rounds for statement in gate.statements()]


def test_a_retry_gets_the_same_bytes_for_one_debit_whatever_became_of_the_first_reply():
    """The silo's part of the algorithm does not run again."""
    runs = []

    def half(w, ask, memory):
        runs.append(w)
        return {"g": ask(Query("gradient", (w,), 1.0))}

    gate = open_gate(silos_of(PROBLEM, SIZES), PROBLEM, scripted(half))
    first = gate.answer(0, ZERO)
    kept, statements, before = first["g"].clone(), gate.statements(), len(runs)
    for reply in (first, gate.answer(0, {"w": ZERO["w"].clone()}), gate.answer(0, ZERO, [0, 1, 2])):
        reply["g"] += 1
        reply.clear()
    assert torch.equal(gate.answer(0, ZERO)["g"], kept)
    assert len(runs) == before
    assert gate.statements() == statements
    assert _spent(gate) == [[0]] * 5


def test_a_retry_by_part_of_a_cohort_gets_that_parts_bytes():
    gate = open_gate(silos_of(PROBLEM, SIZES), PROBLEM, scripted(asking()))
    some = gate.answer(0, ZERO, [1, 3])["g"]
    everyone = gate.answer(0, ZERO)["g"]
    assert torch.equal(everyone[[1, 3]], some)
    assert torch.equal(gate.answer(0, ZERO, [0, 3, 4])["g"], everyone[[0, 3, 4]])
    assert _spent(gate) == [[0]] * 5


class Crash(BaseException):
    """Something other than a refusal, after records were read."""


def _crashing(honest: SiloHalf, times: int) -> SiloHalf:
    left = iter(range(times))

    def half(w, ask, memory):
        reply = honest(w, ask, memory)
        memory["seen"] = memory["seen"] + 100
        if next(left, None) is not None:
            raise Crash
        return reply

    return half


@pytest.mark.parametrize("ending", [Crash, KeyboardInterrupt, SystemExit, GeneratorExit, ValueError, Refused])
def test_a_round_that_ends_by_whatever_exception_is_over(ending):
    """The silo method has seen the answer: one at another point would show what its noise hides."""
    seen: list[Tensor] = []

    def half(w, ask, memory):
        seen.append(ask(Query("gradient", (w + len(seen),), 1.0)))
        raise ending

    switch = Switch(asking())
    gate = open_gate(silos_of(PROBLEM, [12]), PROBLEM, Scripted(switch))
    switch.half = half
    with pytest.raises(ending):
        gate.answer(0, ZERO)
    for silo_method in (half, asking()):
        switch.half = silo_method
        for _ in range(2):
            with pytest.raises(Refused):
                gate.answer(0, ZERO)
            with pytest.raises(Refused, match="another broadcast"):
                gate.answer(0, ONE)
    assert len(seen) == 1
    assert _spent(gate) == [[0]]
    fresh = open_gate(silos_of(PROBLEM, [12]), PROBLEM, scripted(asking()))
    assert torch.equal(gate.answer(1, ONE)["g"], fresh.answer(1, ONE)["g"])


def test_an_interrupt_before_the_reply_is_stored_ends_the_round_too(monkeypatch):
    """Wherever it comes, also where nothing could catch it."""

    def interrupted(*_):
        raise KeyboardInterrupt

    for place in ("store", "refuse"):
        switch = Switch(asking())
        gate = open_gate(silos_of(PROBLEM, [12, 13]), PROBLEM, Scripted(switch))
        with monkeypatch.context() as patch:
            patch.setattr(MemoryLedger, place, interrupted)
            if place == "refuse":
                switch.half = _crashing(asking(), 1)
            with pytest.raises(KeyboardInterrupt):
                gate.answer(0, ZERO)
        switch.half = asking()
        with pytest.raises(Refused, match="came to no reply"):
            gate.answer(0, ZERO)
        assert _spent(gate) == [[0], [0]]


def test_a_refusal_after_the_debit_is_final():
    """Whether an answer leads out of bounds is a release too: a retry must not draw it anew.

    The second point of this silo method is refused exactly when the first noisy answer is positive, so
    every retry that draws fresh noise would tell one more bit of the same record.
    """

    def half(w, ask, memory):
        first = ask(Query("gradient", (w,), 1.0))
        return {"g": ask(Query("gradient", (torch.where(first[:, :1] > 0, 1e7, 0.0) + w,), 1.0))}

    problem = LogisticRegression(1500)  # long enough that no noise is kept from one attempt to the next
    zero = {"w": torch.zeros(1500, dtype=torch.float64)}
    gate = open_gate(silos_of(problem, [12]), problem, scripted(half, 12), entropy=Unrepeatable())

    def outcome(r):
        try:
            return str(gate.answer(r, zero)["g"].tolist())
        except Refused as refusal:
            return str(refusal)

    for r in range(12):
        assert len({outcome(r) for _ in range(8)}) == 1


def test_an_ask_kept_beyond_its_round_is_refused():
    kept: list[Asker] = []

    def keeping(w, ask, memory):
        kept.append(ask)
        return {"g": w}

    switch = Switch(asking())
    gate = open_gate(silos_of(PROBLEM, [12]), PROBLEM, Scripted(switch))
    switch.half = keeping
    with pytest.raises(Refused, match="0 were made"):
        gate.answer(0, ZERO)
    with pytest.raises(Refused, match="round is over"):
        kept[0](Query("gradient", (ZERO["w"],), 1.0))


def test_a_reply_carries_no_way_back_to_the_records():
    """A broadcast that asks for gradients would leave the records in the reply's graph, without noise."""
    gate = open_gate(silos_of(PROBLEM, [12]), PROBLEM, scripted(asking()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reply = gate.answer(0, {"w": torch.zeros(D, dtype=torch.float64, requires_grad=True)})["g"]
    assert not reply.requires_grad


def test_the_statement_names_the_broadcasts_paid_for():
    gate = open_gate(silos_of(PROBLEM, [12]), PROBLEM, scripted(asking()))
    gate.answer(1, ONE)
    gate.answer(0, ZERO)
    (statement,) = gate.statements()
    assert statement.rounds == [1, 0]
    assert len(set(statement.digests)) == 2
    assert all(len(bytes.fromhex(digest)) == 32 for digest in statement.digests)


# Memory.


def _remembering(w: Tensor, ask: Asker, memory: Memory) -> Mapping[str, Tensor]:
    memory["sum"] = memory["sum"] + ask(Query("gradient", (w,), 1.0))
    return {"sum": memory["sum"], "rounds": memory["rounds"] + 0}


def _counting(w: Tensor, ask: Asker, memory: Memory) -> Mapping[str, Tensor]:
    memory["rounds"] = memory["rounds"] + 1
    return _remembering(w, ask, memory)


def test_memory_keeps_the_rows_of_absent_silos():
    data = silos_of(PROBLEM, SIZES)
    gate = open_gate(data, PROBLEM, scripted(_counting, 4))
    alone = [
        open_gate([silo], PROBLEM, scripted(_counting, 4), names=[f"silo{m}"]) for m, silo in enumerate(data)
    ]
    visits = [[0, 1, 2, 3, 4], [1, 3], [0, 2, 3], [3]]
    seen = [0] * 5
    for r, members in enumerate(visits):
        reply = gate.answer(r, ONE, members)
        for row, member in enumerate(members):
            seen[member] += 1
            assert reply["rounds"][row].tolist() == [seen[member]] * D
            expected = alone[member].answer(r, ONE)["sum"][0]
            torch.testing.assert_close(
                reply["sum"][row], expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max())
            )
    assert seen == [2, 2, 2, 4, 1]


def test_memory_is_kept_only_with_the_reply():
    switch = Switch(_counting)
    gate = open_gate(silos_of(PROBLEM, [5, 6]), PROBLEM, Scripted(switch, 3))
    assert gate.answer(0, ZERO)["rounds"][:, 0].tolist() == [1, 1]
    switch.half = _crashing(_counting, 1)
    with pytest.raises(Crash):
        gate.answer(1, ZERO)
    switch.half = _counting
    for _ in range(2):
        assert gate.answer(2, ZERO)["rounds"][:, 0].tolist() == [2, 2]


def test_memory_changed_in_place_is_kept_only_with_the_reply():
    def in_place(w, ask, memory):
        told = ask(Query("gradient", (w,), 1.0))
        memory["rounds"] += torch.ones_like(told)
        return {"rounds": memory["rounds"]}

    switch = Switch(in_place)
    gate = open_gate(silos_of(PROBLEM, [5, 6]), PROBLEM, Scripted(switch, 3))
    gate.answer(0, ZERO)
    switch.half = _crashing(in_place, 1)
    with pytest.raises(Crash):
        gate.answer(1, ZERO, [1])
    switch.half = in_place
    assert gate.answer(2, ZERO)["rounds"][:, 0].tolist() == [2, 2]


# Cohorts.

BATCHES: list[Batch] = [FULL, Subsample(0.4), WithReplacement(0.4), Poisson(0.4), Fresh(0.05)]


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() <= 1e-9 * other.norm())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("batch", BATCHES, ids=repr)
@pytest.mark.parametrize("name", ["logistic", "softmax", "linear"])
def test_one_cohort_answers_as_cohorts_of_one_do(row, batch, name):
    """Five unequal silos: to rounding, since a product over many silos rounds otherwise."""
    problem = problems(D)[name]
    data = silos_of(problem, [max(n, 12) if isinstance(batch, Fresh) else n for n in SIZES])
    # Sampling is calibrated by search, one search a size: noise as large, in less time, with no budget.
    budget = [0.5, 1.0, 2.0, 4.0, 8.0] if isinstance(batch, type(FULL) | Fresh) else [np.inf] * 5
    together = open_gate(data, problem, row.short(batch), epsilon=budget)
    alone = [
        open_gate([silo], problem, row.short(batch), epsilon=budget[m], names=[f"silo{m}"])
        for m, silo in enumerate(data)
    ]
    algorithm = row.short(batch)
    start = torch.full((problem.dimension,), 0.1, dtype=torch.float64)
    coroutine = algorithm.server(start, problem, public_of([1] * 5), np.random.default_rng(0))
    step = next(coroutine)
    for r in range(3):
        replies = together.answer(r, step.broadcast)
        for message, rows in replies.items():
            for gate, mine in zip(alone, rows, strict=True):
                assert _close(mine, gate.answer(r, step.broadcast)[message][0])
        step = coroutine.send(Combined({message: rows.mean(0) for message, rows in replies.items()}, 1.0))


def test_sampled_noise_is_the_same_in_a_cohort_and_alone():
    data = silos_of(PROBLEM, [15, 15, 15])
    algorithm = ROWS[0].short(Subsample(0.4))
    together = open_gate(data, PROBLEM, algorithm).answer(0, ONE)["g"]
    for m, silo in enumerate(data):
        assert _close(
            together[m], open_gate([silo], PROBLEM, algorithm, names=[f"silo{m}"]).answer(0, ONE)["g"][0]
        )


@pytest.mark.parametrize("batch", BATCHES, ids=repr)
def test_part_of_a_cohort_answers_as_the_whole_does(batch):
    data = silos_of(PROBLEM, [12, 13, 14, 20, 41])
    budget = [0.5, 1.0, 2.0, 4.0, 8.0] if isinstance(batch, type(FULL) | Fresh) else [np.inf] * 5

    def gate():
        return open_gate(data, PROBLEM, ROWS[0].short(batch), epsilon=budget)

    whole = gate().answer(1, ONE)["g"]
    for members in ([0], [4], [1, 2], [0, 3], [0, 1, 2, 3], [1, 2, 3, 4]):
        part = gate().answer(1, ONE, members)["g"]
        for mine, member in zip(part, members, strict=True):
            assert _close(mine, whole[member])


def test_points_and_clips_of_each_silos_own_go_to_that_silo():
    """(silos, d) points and (silos, 1) clips, across blocks of unlike sizes and parts of the cohort."""
    data = silos_of(PROBLEM, [41, 3, 20, 7, 8])
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(5, D)))
    clips = torch.tensor([[0.3], [0.1], [2.0], [0.05], [0.2]], dtype=torch.float64)

    def own(members):
        def half(w, ask, memory):
            return {"g": ask(Query("gradient", (points[members],), clips[members]))}

        return half

    def answer(silos, members, chosen=None):
        switch = Switch(asking())
        names = [f"silo{m}" for m in range(5)] if chosen is not None else [f"silo{m}" for m in members]
        gate = open_gate(silos, PROBLEM, Scripted(switch), names=names)
        switch.half = own(members)
        return gate.answer(0, ZERO, chosen)["g"]

    alone = torch.cat([answer([data[m]], [m]) for m in range(5)])
    everyone = answer(data, list(range(5)), list(range(5)))
    some = answer(data, [0, 2, 3], [0, 2, 3])
    for m in range(5):
        assert _close(everyone[m], alone[m])
    for row, m in enumerate([0, 2, 3]):
        assert _close(some[row], alone[m])


def test_the_records_given_to_a_gate_are_its_own():
    """What the caller does with its arrays afterwards changes nothing."""
    data = silos_of(PROBLEM, [6])
    gate = open_gate(data, PROBLEM, scripted(asking()))
    untouched = open_gate(silos_of(PROBLEM, [6]), PROBLEM, scripted(asking())).answer(0, ONE)["g"]
    data[0][0][:] = 0
    data[0][1][:] = 1 - data[0][1]
    assert torch.equal(gate.answer(0, ONE)["g"], untouched)


def _refusing_far(w, ask, memory):
    """Replies that depend on all earlier ones."""
    answer = ask(Query("gradient", (w,), 1.0))
    if float(w[0]) > 2:
        raise Refused("too far")
    memory["sum"] = memory["sum"] + answer
    return {"g": memory["sum"]}


@pytest.mark.parametrize("seed", range(12))
def test_a_cohort_that_is_asked_together_has_the_ledgers_of_silos_asked_apart(seed):
    """Whatever is asked of whom, in whatever order: replies, refusals, statements and memory are equal."""
    rng, outcomes = np.random.default_rng(seed), []
    asked = [(int(r), int(w), int(who)) for r, w, who in rng.integers(0, [6, 4, 12], (40, 3))]
    for together in (True, False):
        gate = open_gate(silos_of(PROBLEM, [12, 13, 14]), PROBLEM, scripted(_refusing_far, 6))
        ledgers = MemoryLedgers(3) if together else gate.gate._ledgers
        gate.gate._ledgers = ledgers
        found = []
        for step, (r, w, who) in enumerate(asked):
            whom = [m for m in range(3) if who >> m & 1] if 0 < who < 7 and step > seed else None
            try:
                reply = gate.answer(r, {"w": torch.full((PROBLEM.dimension,), w, dtype=torch.float64)}, whom)
                found.append({name: value.tolist() for name, value in reply.items()})
            except Refused as refusal:
                found.append(str(refusal))
        memory = [{name: value.tolist() for name, value in own.memory.items()} for own in ledgers]
        outcomes.append((found, memory, [(own.rounds, own.digests) for own in gate.statements()]))
    assert outcomes[0] == outcomes[1]
    assert any(isinstance(each, dict) for each in outcomes[0][0])
    assert any(isinstance(each, str) for each in outcomes[0][0])
