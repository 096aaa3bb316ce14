"""Every way round the gate, refused.

`attacked` checks what all refusals share: the text holds no number of the records, a refusal before the
debit costs nothing, and one after it costs its round once and binds it to its broadcast.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import (
    DELTA,
    LIMITS,
    Scripted,
    SiloHalf,
    Switch,
    asking,
    names_of,
    open_gate,
    plan_of,
    public_of,
    scripted,
    silos_of,
)
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.registry import GAUSSIAN, NONE
from fedsim.problems.glm import LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample
from fedsim.protocol.contract import Query
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Terms
from fedsim.simulation.host import MemoryLedger
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out
from silos.vault.records import Records

D = 3
PROBLEM = LinearRegression(D)
N = 6
ZERO = {"w": torch.zeros(D, dtype=torch.float64)}
ONE = {"w": torch.ones(D, dtype=torch.float64)}


def _telling(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Records whose every number, 413 to 487, stands in no limit, plan or broadcast of these tests."""
    rng = np.random.default_rng(8)
    return rng.uniform(413, 487, (n, D)), rng.uniform(413, 487, n)


def _says_nothing_of_records(text: str) -> bool:
    numbers = [float(found) for found in re.findall(r"\d+\.?\d*(?:e[+-]?\d+)?", text)]
    return not any(400 <= number <= 500 for number in numbers)


def attacked(
    gate: Served,
    round_index: int,
    broadcast: Mapping[str, Tensor],
    says: str,
    *,
    debits: bool,
    members: Sequence[int] | None = None,
) -> None:
    before = [statement.rounds for statement in gate.statements()]
    with pytest.raises(Refused, match=says) as refusal:
        gate.answer(round_index, broadcast, members)
    assert _says_nothing_of_records(str(refusal.value))
    after = [statement.rounds for statement in gate.statements()]
    if not debits:
        assert after == before
    else:
        assert after == [[*rounds, round_index] for rounds in before]
        with pytest.raises(Refused, match="another broadcast"):
            gate.answer(round_index, {"w": broadcast["w"] + 0.5}, members)


def _turned(honest: SiloHalf, sneaky: SiloHalf, **options: Any) -> Served:
    """A gate that admitted the honest half's plan and then runs the sneaky one."""
    switch = Switch(honest)
    gate = open_gate([_telling()], PROBLEM, Scripted(switch), **options)
    switch.half = sneaky
    return gate


def test_the_reader_of_texts_sees_a_record():
    (features, target) = _telling()
    assert not _says_nothing_of_records(f"a term of size {features[0, 0]:.3g}")
    assert not _says_nothing_of_records(f"{target}")
    assert _says_nothing_of_records("round 3: limit 1e+06, 0.25 of 6")


# Requests that are refused before the debit.


def test_an_extra_round_is_refused():
    gate = open_gate([_telling()], PROBLEM, scripted(asking(), 2))
    for r in (2, 100, -1):
        attacked(gate, r, ZERO, "not in its plan", debits=False)


def test_a_round_that_is_not_the_silos_own_is_refused():
    gate = open_gate([_telling(), _telling()], PROBLEM, scripted(asking(), 3), rounds=[[0, 2], [0, 1, 2]])
    attacked(gate, 1, ZERO, "'silo0': round 1 is not in its plan", debits=False)
    attacked(gate, 1, ZERO, "'silo0'", debits=False, members=[0])
    assert gate.answer(1, ZERO, [1])["g"].shape == (1, D)


def test_a_second_broadcast_for_a_round_paid_for_is_refused():
    gate = open_gate([_telling()], PROBLEM, scripted(asking()))
    first = gate.answer(0, ZERO)["g"]
    moved = {"w": ZERO["w"].clone()}
    moved["w"][1] = 1e-300
    for other in (ONE, moved, {"v": ZERO["w"]}, {**ZERO, "v": ZERO["w"]}):
        attacked(gate, 0, other, "another broadcast", debits=False)
    assert torch.equal(gate.answer(0, ZERO)["g"], first)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e7, -1.0001e6, 1.7e308])
@pytest.mark.parametrize("at", range(D))
def test_a_broadcast_point_out_of_bounds_is_refused(value, at):
    gate = open_gate([_telling()], PROBLEM, scripted(asking()))
    point = torch.tensor([1.0, math.nan if math.isnan(value) else 2.0, 3.0], dtype=torch.float64)
    point[at] = value
    attacked(gate, 0, {"w": point}, "a point has an entry of size", debits=False)
    # Any named array is a point to the gate, whatever the silo method makes of it.
    attacked(gate, 0, {**ZERO, "v": point}, "a point has an entry of size", debits=False)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 33, 1000])
def test_one_entry_that_is_not_finite_is_found_wherever_it_stands(length):
    for at in {0, length // 2, length - 1}:
        for value in (math.nan, math.inf, -math.inf, 1e7):
            for dtype in (torch.float32, torch.float64):
                point = torch.zeros(length, dtype=dtype)
                point[at] = value
                with pytest.raises(Refused):
                    LIMITS.check_point(point)


def test_a_point_at_the_bound_is_answered():
    gate = open_gate([_telling()], PROBLEM, scripted(asking()))
    point = torch.tensor([1e6, -1e6, 1e6], dtype=torch.float64)
    assert gate.answer(0, {"w": point})["g"].isfinite().all()


@pytest.mark.parametrize(
    "broadcast",
    [
        *({"w": torch.zeros(length, dtype=torch.float64)} for length in (1, 2, 4, 12)),
        {"w": torch.zeros(2, D, dtype=torch.float64)},
        {"w": torch.zeros(1, D, dtype=torch.float64)},
        {"w": torch.zeros((), dtype=torch.float64)},
        {"w": torch.zeros(D, dtype=torch.float32)},
        {"w": torch.zeros(D, dtype=torch.int64)},
    ],
    ids=lambda b: f"{tuple(b['w'].shape)} {b['w'].dtype}",
)
def test_a_broadcast_of_another_shape_or_type_is_refused_before_the_debit(broadcast):
    gate = open_gate([_telling()], PROBLEM, scripted(asking()))
    attacked(gate, 0, broadcast, "dimension", debits=False)


@pytest.mark.parametrize("members", [[0, 0], [1, 1, 1], [2, 1], [1, 0, 2], [2, 1, 0], [3], [-1], [-1, 0]])
def test_members_that_are_not_distinct_positions_in_order_are_refused(members):
    """A silo named twice would answer twice for one debit; another order would mix up budgets."""
    gate = open_gate([_telling()] * 3, PROBLEM, scripted(asking()), epsilon=[0.1, 1.0, 100.0])
    attacked(gate, 0, ZERO, "members", debits=False, members=members)


def test_a_cohort_is_not_debited_where_one_silo_refuses():
    """Silos 0 and 2 have said nothing, so round 0 must not be bound to the refused broadcast."""
    gate = open_gate([_telling()] * 3, PROBLEM, scripted(asking()))
    gate.answer(0, ZERO, [1])
    attacked(gate, 0, ONE, "another broadcast", debits=False)


# Admission.


def test_a_budget_that_cannot_be_afforded_at_the_noise_limit_is_refused():
    algorithm = scripted(asking(), 100)
    silos = [_telling()] * 3
    open_gate(silos, PROBLEM, algorithm, epsilon=[1.0, 1.0, 0.1], limits=Limits(max_noise_multiplier=1e3))
    with pytest.raises(Refused, match=r"'silo2'.*noise multiplier 10.*budget is 0\.1") as refusal:
        open_gate(
            silos, PROBLEM, algorithm, epsilon=[50.0, 60.0, 0.1], limits=Limits(max_noise_multiplier=10)
        )
    assert _says_nothing_of_records(str(refusal.value))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_a_budget_that_is_not_positive_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        open_gate([_telling()], PROBLEM, scripted(asking()), epsilon=epsilon)


def _gate_with(terms: Terms, mechanism: Mechanism = GAUSSIAN, names: list[str] | None = None) -> Served:
    algorithm = scripted(asking(batch=Subsample(0.2)) if terms.n != N else asking())
    plan = plan_of(algorithm, PROBLEM, [N])
    records = lay_out([_telling()], PROBLEM, torch.float64)
    names = names or names_of(1)
    entropy = SeededEntropy(0, 0, names, ["run"] * len(names))
    ledgers, dtype = [MemoryLedger()], torch.float64
    return Served(
        Gate(records, PROBLEM, plan, [terms], mechanism, entropy, ledgers, LIMITS, dtype), algorithm
    )


@pytest.mark.parametrize("n", [1000, N - 1])
def test_a_silo_that_states_another_number_of_records_than_it_holds_is_refused(n):
    """Sampling is priced by the stated n and done on the records held."""
    with pytest.raises((Refused, ValueError)):
        _gate_with(Terms("silo0", n, 1.0, DELTA, range(2)))


def test_a_finite_budget_without_noise_is_refused():
    """Mechanism `none` guarantees nothing: a statement of epsilon 1 would be false."""
    with pytest.raises((Refused, ValueError)):
        _gate_with(Terms("silo0", N, 1.0, DELTA, range(2)), NONE)


def test_two_silos_of_one_name_are_refused():
    """A simulated silo's noise follows from its name: two of one name would share it, and it would cancel."""
    with pytest.raises((Refused, ValueError)):
        open_gate([_telling()] * 2, PROBLEM, scripted(asking()), names=["silo0", "silo0"])


def test_two_silos_of_one_ledger_are_refused():
    """A debit of the one would pay for the other."""
    algorithm, names = scripted(asking()), names_of(2)
    plan, ledger = plan_of(algorithm, PROBLEM, [N, N]), MemoryLedger()
    terms = [Terms(name, N, 1.0, DELTA, range(2)) for name in names]
    entropy = SeededEntropy(0, 0, names, ["run"] * 2)
    records = lay_out([_telling()] * 2, PROBLEM, torch.float64)
    with pytest.raises(Refused, match="same ledger"):
        Served(
            Gate(records, PROBLEM, plan, terms, GAUSSIAN, entropy, [ledger] * 2, LIMITS, torch.float64),
            algorithm,
        )


# What the silo method asks, against the plan: refused before records are read.


@pytest.fixture
def sealed(monkeypatch):
    """Call it to make every later reading of records fail."""

    def opened(*args):
        raise AssertionError("records were read")

    def seal():
        monkeypatch.setattr(Records, "full", opened)
        monkeypatch.setattr(Records, "batch", opened)

    return seal


def _raw(*queries: Query) -> SiloHalf:
    def half(w, ask, memory):
        answers = ask(*queries)
        return {"g": answers[0] if isinstance(answers, tuple) else answers}

    return half


def _times(count: int) -> SiloHalf:
    def half(w, ask, memory):
        for _ in range(count):
            w = ask(Query("gradient", (w * 0,), 1.0))
        return {"g": w}

    return half


def _ratios(first: float, second: float) -> SiloHalf:
    def half(w, ask, memory):
        ask(Query("gradient", (w,), 1.0, noise_ratio=first))
        return {"g": ask(Query("gradient", (w,), 1.0, noise_ratio=second))}

    return half


def _at(*points: Tensor) -> SiloHalf:
    return _raw(Query("gradient" if len(points) == 1 else "gradient_difference", points, 1.0))


def _far(value: float) -> Tensor:
    point = W.clone()
    point[2] = value
    return point


W = torch.zeros(D, dtype=torch.float64)
ONCE = Query("gradient", (W,), 1.0)
SAMPLED = Query("gradient", (W,), 1.0, Subsample(0.2))
PLAN, BATCH, FAR = "the plan has", "must name one batch", "a point has an entry of size"
SNEAKY = {
    "another statistic": (asking(), asking("gradient_difference"), PLAN),
    "more points": (asking(), _raw(Query("gradient", (W, W + 1), 1.0)), PLAN),
    "fewer points": (asking("gradient_difference"), _raw(Query("gradient_difference", (W,), 1.0)), PLAN),
    "a smaller noise ratio": (asking(), asking(noise_ratio=0.99), PLAN),
    "noise ratio zero": (asking(), asking(noise_ratio=0.0), PLAN),
    "a negative noise ratio": (asking(), asking(noise_ratio=-1.0), PLAN),
    "a noise ratio that is not a number": (asking(), asking(noise_ratio=math.nan), PLAN),
    "a larger noise ratio": (asking(), asking(noise_ratio=2.0), PLAN),
    "a larger subsample": (asking(batch=Subsample(0.2)), asking(batch=Subsample(0.4)), PLAN),
    "a full batch for a subsample": (asking(batch=Subsample(0.2)), asking(), PLAN),
    "another sampler of the same fraction": (asking(batch=Poisson(0.2)), asking(batch=Subsample(0.2)), PLAN),
    "a full batch for a fresh one": (asking(batch=Fresh(0.2)), asking(), PLAN),
    "a larger fresh batch": (asking(batch=Fresh(0.2)), asking(batch=Fresh(0.3)), PLAN),
    "two queries in an ask of one": (asking(), _raw(ONCE, ONCE), PLAN),
    "one query in an ask of two": (_raw(ONCE, ONCE), asking(), PLAN),
    "asks in another order": (_ratios(1.0, 2.0), _ratios(2.0, 1.0), PLAN),
    "no statistic of a problem": (
        asking(),
        _raw(Query("loss", (W,), 1.0)),
        "'loss' is not one of gradient, ",
    ),
    "two batches in one ask": (_raw(SAMPLED, SAMPLED), _raw(SAMPLED, ONCE), BATCH),
    "an ask of nothing": (asking(), _raw(), BATCH),
    "a second point out of bounds": (asking("gradient_difference"), _at(W, W + math.nan), FAR),
    **{f"a point of {n} numbers": (asking(), _at(torch.zeros(n).double()), "dimension") for n in (1, 2, 4)},
    **{
        f"a point of shape {shape}": (asking(), _at(torch.zeros(shape).double()), ".")
        for shape in ((2, D), (1, 1, D), (D, D))
    },
    **{
        f"a point with {value} in shape {shape}": (asking(), _at(_far(value).view(shape)), FAR)
        for value in (math.nan, math.inf, -math.inf, 3e38, 1.0001e6)
        for shape in ((D,), (1, D))
    },
}


@pytest.mark.parametrize("way", SNEAKY)
def test_an_ask_that_is_not_the_plans_is_refused(way, sealed):
    honest, sneaky, says = SNEAKY[way]
    gate = _turned(honest, sneaky)
    sealed()
    attacked(gate, 0, ZERO, says, debits=True)


def test_no_plan_has_two_batches_in_one_ask():
    with pytest.raises(Refused, match=BATCH):
        plan_of(scripted(_raw(SAMPLED, ONCE)), PROBLEM, [N])


@pytest.mark.parametrize(("asks", "says"), [(3, "this is one more"), (1, "1 were made"), (0, "0 were made")])
def test_as_many_asks_are_made_as_were_planned(asks, says):
    attacked(_turned(_times(2), _times(asks)), 0, ZERO, says, debits=True)


BAD_CLIPS = [math.nan, math.inf, -1.0, -1e-300, 1e-9, 9.9e-7, 1.1e6, 1e9]


@pytest.mark.parametrize("clip", BAD_CLIPS)
@pytest.mark.parametrize("kind", ["number", "tensor", "of a silo"])
def test_a_clip_out_of_bounds_is_refused(clip, kind, sealed):
    tensor = torch.tensor([[clip]], dtype=torch.float64)
    shaped = {"number": clip, "tensor": tensor.squeeze(), "of a silo": tensor}[kind]
    sneaky = _raw(Query("gradient", (W,), shaped))
    with pytest.raises(Refused, match="clip"):
        plan_of(scripted(sneaky), PROBLEM, [N])
    gate = _turned(asking(), sneaky)
    sealed()
    attacked(gate, 0, ZERO, "clip", debits=True)


@pytest.mark.parametrize("clip", [0.0, 1e-6, 1e6])
def test_a_clip_at_its_bounds_is_answered(clip):
    gate = _turned(asking(), asking(clip=clip))
    assert gate.answer(0, ZERO)["g"].isfinite().all()


@pytest.mark.parametrize("shape", [(D,), (1, D), (N,), (1, N), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize("n", [D, N])
def test_a_clip_is_one_number_for_each_silo(shape, n):
    """A clip for each coordinate or record would scale the noise by one entry and the terms by another."""
    switch = Switch(asking())
    gate = open_gate([_telling(n)], PROBLEM, Scripted(switch))
    clip = torch.full(shape, 1e-6, dtype=torch.float64)
    clip.view(-1)[0] = 1.0
    switch.half = _raw(Query("gradient", (W,), clip))
    attacked(gate, 0, ZERO, "clip", debits=True)


# Answers stay finite.


@pytest.mark.parametrize(
    "problem", [LogisticRegression(D), SoftmaxRegression(D, 3), LinearRegression(D)], ids=repr
)
@pytest.mark.parametrize("statistic", ["gradient", "gradient_difference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_no_record_makes_an_answer_infinite(problem, statistic, dtype):
    """Terms that overflow count as zero vectors: the answer is finite at every allowed point."""
    (silo,) = silos_of(problem, [8])
    hostile = [[3e38] * D, [1e300] * D, [math.inf] * D, [math.nan] * D, [1e12, -1e12, 1e12], [-math.inf] * D]
    silo[0][:6] = hostile
    silo[1][6] = math.nan
    with np.errstate(over="ignore"):
        gate = open_gate([silo], problem, scripted(asking(statistic), 3), dtype=dtype)
    for r, size in enumerate((0.0, 1.0, 1e6)):
        point = torch.full((problem.dimension,), size, dtype=dtype)
        assert gate.answer(r, {"w": point})["g"].isfinite().all()


# Plans.


def _dependent(kind: str) -> SiloHalf:
    def half(w, ask, memory):
        told = ask(Query("gradient", (w,), 1.0))
        quiet = bool((told == 0).all())
        if kind == "number of asks" and not quiet:
            ask(Query("gradient", (w,), 1.0))
        if kind == "batch":
            ask(Query("gradient", (w,), 1.0, FULL if quiet else Subsample(0.5)))
        if kind == "noise ratio":
            ask(Query("gradient", (w,), 1.0, FULL, 1.0 if quiet else 0.5))
        if kind == "statistic":
            both = ("gradient", (w,)) if quiet else ("gradient_difference", (w, w))
            ask(Query(*both, 1.0))
        if kind == "memory":
            seen = memory["seen"]
            memory["seen"] = seen + told
            if bool((seen != 0).any()):
                ask(Query("gradient", (w,), 1.0))
        return {"g": told}

    return half


@pytest.mark.parametrize(
    ("kind", "r"), [("number of asks", 0), ("batch", 0), ("noise ratio", 0), ("statistic", 0), ("memory", 1)]
)
def test_a_plan_that_depends_on_the_answers_is_refused_naming_the_round(kind, r):
    with pytest.raises(Refused, match=f"round {r}: the queries depend on the answers"):
        dry_run(scripted(_dependent(kind), 3), PROBLEM, public_of([N]), 0, LIMITS)
