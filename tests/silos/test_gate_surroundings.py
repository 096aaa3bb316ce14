"""Requests at the same time, and what torch has switched on."""

import copy
import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import Scripted, SiloHalf, Switch, Unrepeatable, asking, open_gate, scripted, silos_of
from torch import Tensor
from torch.autograd import forward_ad

from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.common.errors import Refused
from fedsim.problems.glm import LogisticRegression
from fedsim.problems.network import NeuralNetwork
from fedsim.protocol.contract import Query
from silos.front.served import Served
from silos.vault.records import Records

D = 3
PROBLEM = LogisticRegression(D)
DATA = silos_of(PROBLEM, [10])
ZERO = {"w": torch.zeros(D, dtype=torch.float64)}
ONE = {"w": torch.ones(D, dtype=torch.float64)}
HONEST = open_gate(DATA, PROBLEM, scripted(asking())).answer(0, ZERO)["g"]


def _turned(sneaky: SiloHalf, honest: SiloHalf | None = None, **options: Any) -> Served:
    switch = Switch(honest or asking())
    found = open_gate(DATA, PROBLEM, Scripted(switch), **options)
    switch.half = sneaky
    return found


def _started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# Threads.


def test_two_requests_at_the_same_time_are_one_answer():
    """Where the noise cannot be repeated, two answers for one debit would halve it."""
    runs: list[int] = []
    replies: list[Tensor] = []
    others: list[threading.Thread] = []

    def half(w, ask, memory):
        runs.append(threading.get_ident())
        if not others:  # the second request comes while the first is at work
            others.append(_started(lambda: replies.append(gate.answer(0, ZERO)["g"])))
            others[0].join(0.5)
        return {"g": ask(Query("gradient", (w,), 1.0))}

    gate = _turned(half, entropy=Unrepeatable())
    replies.append(gate.answer(0, ZERO)["g"])
    others[0].join(30)
    assert len(runs) == 1
    assert len(replies) == 2
    assert torch.equal(*replies)
    assert [said.rounds for said in gate.statements()] == [[0]]


def test_two_broadcasts_at_the_same_time_are_one_answer():
    refused: list[str] = []
    others: list[threading.Thread] = []

    def second():
        try:
            gate.answer(0, ONE)
        except Refused as refusal:
            refused.append(str(refusal))

    def half(w, ask, memory):
        if not others:
            others.append(_started(second))
            others[0].join(0.5)
        return {"g": ask(Query("gradient", (w,), 1.0))}

    gate = _turned(half)
    assert torch.equal(gate.answer(0, ZERO)["g"], HONEST)
    others[0].join(30)
    assert len(refused) == 1
    assert "another broadcast" in refused[0]


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt])
def test_an_ask_that_breaks_down_ends_the_round_whatever_the_silo_method_makes_of_it(failure, monkeypatch):
    real, failures = Records.clipped_sum, iter([failure])

    def failing(*arguments):
        for kind in failures:
            raise kind
        return real(*arguments)

    def half(w, ask, memory):
        with suppress(failure):
            ask(Query("gradient", (w,), 1.0))
        with suppress(Refused):
            return {"g": ask(Query("gradient", (w,), 1.0))}
        return {"g": w}

    def twice(w, ask, memory):
        return {"g": ask(Query("gradient", (w,), 1.0)) + ask(Query("gradient", (w,), 1.0))}

    gate = _turned(half, twice)
    monkeypatch.setattr(Records, "clipped_sum", failing)
    for _ in range(2):
        with pytest.raises(Refused, match="broke down"):
            gate.answer(0, ZERO)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy, copy.copy], ids=["pickle", "deep", "copy"])
def test_a_gate_stays_where_it_is(copied):
    with pytest.raises(TypeError, match="stays in its process"):
        copied(open_gate(DATA, PROBLEM, NoisyMinibatchSGD(2, 0.1, 1.0)).gate)


# What torch has switched on.


SWITCHED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("kind", SWITCHED)
def test_no_ask_is_answered_under_a_setting_that_changes_sums(kind, monkeypatch):
    """They change what the gate computes from records, or whether it answers."""

    def half(w, ask, memory):
        with SWITCHED[kind]():
            return {"g": ask(Query("gradient", (w,), 1.0))}

    gate = _turned(half)
    monkeypatch.setattr(Records, "clipped_sum", lambda *_: pytest.fail("records were read"))
    with pytest.raises(Refused, match="switched on") as refusal:
        gate.answer(0, ZERO)
    assert kind.split()[0] in str(refusal.value)
    with SWITCHED[kind](), pytest.raises(Refused, match="switched on"):
        gate.answer(1, ZERO)
    assert [said.rounds for said in gate.statements()] == [[0]]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own forward mode
@pytest.mark.parametrize("transform", ["vmap", "jvp", "grad", "functionalize"])
def test_no_ask_is_answered_under_a_transform(transform):
    """One ask for many points, or its slope beside its value, without noise of their own."""

    def half(w, ask, memory):
        def inner(w):
            return ask(Query("gradient", (w,), 1.0)).sum()

        if transform == "vmap":
            return {"g": torch.func.vmap(inner)(torch.stack([w, w + 1]))}
        if transform == "jvp":
            return {"g": torch.func.jvp(inner, (w,), (w + 1,))[1] + w}
        return {"g": getattr(torch.func, transform)(inner)(w) + w}

    with pytest.raises(Refused, match="transform"):
        _turned(half).answer(0, ZERO)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_an_answer_has_no_slope():
    """Neither forward nor backward: a graph would lead from it to the records."""

    def half(w, ask, memory):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(w.clone().requires_grad_(), torch.ones_like(w))
            clip = forward_ad.make_dual(torch.ones(()).to(w), torch.ones(()).to(w))
            answer = ask(Query("gradient", (dual,), clip))
            assert forward_ad.unpack_dual(answer).tangent is None
        assert answer.grad_fn is None
        assert not answer.requires_grad
        return {"g": answer}

    assert torch.equal(_turned(half).answer(0, ZERO)["g"], HONEST)


def test_float32_sums_are_of_float32_products():
    """A product of 16-bit numbers is off by more than the clip holds back for rounding."""

    def half(w, ask, memory):
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        return {"g": ask(Query("gradient", (w,), 1.0))}

    kept = torch.backends.mkldnn.matmul.fp32_precision
    try:
        gate = _turned(half, dtype=torch.float32)
        with pytest.raises(Refused, match="precision"):
            gate.answer(0, {"w": ZERO["w"].float()})
        assert torch.equal(_turned(half).answer(0, ZERO)["g"], HONEST)  # no float32 there
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = kept


SETTINGS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "no gradients": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "default type": (
        lambda: torch.set_default_dtype(torch.float16),
        lambda: torch.set_default_dtype(torch.float32),
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "threads": (lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1)),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["linear", "network"])
def test_a_setting_of_the_silo_method_s_changes_no_answer(setting, kind):
    problem: Any = PROBLEM if kind == "linear" else NeuralNetwork(D, 2)
    data = [(DATA[0][0], np.abs(DATA[0][1]))]
    change, restore = SETTINGS[setting]
    point = {"w": torch.full((problem.dimension,), 0.1, dtype=torch.float64)}

    def half(w, ask, memory):
        change()
        return {"g": ask(Query("gradient", (w,), 1.0))}

    expected = open_gate(data, problem, scripted(asking())).answer(0, point)["g"]
    switch = Switch(asking())
    gate = open_gate(data, problem, Scripted(switch))
    switch.half = half
    try:
        found = gate.answer(0, point)["g"]
    finally:
        restore()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    assert found.dtype == torch.float64
