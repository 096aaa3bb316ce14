"""Whatever a server sends, a silo says no, pays nothing, and says nothing that is made of records."""

import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import scenarios
from support.deployed import POLICY, Caller, calling, enrolled, offer_of, resolved_of, write_silos

import silos.front.offers
from fedsim.common import section
from fedsim.common.errors import InputError
from fedsim.common.section import validated
from fedsim.problems.section import ProblemSection
from fedsim.wire.frames import Frame, decode, encode, opened, sealed
from fedsim.wire.messages import Profile
from silos.front.config import Policy
from silos.front.enrolled import largest_dimension

RESOLVED = resolved_of()
OFFER = offer_of(RESOLVED, "silo-00")
POINT = torch.zeros(5, dtype=torch.float64)
GENERIC = "the silo could not answer (see its log)"
OTHER = "cd" * 32
SECRET = 0.123456
STRICT = {
    "max_rounds": 20,
    "max_dimension": 100,
    "max_queries_per_round": 10,
    "max_planned_numbers": 100_000,
    "min_noise_multiplier": 1.5,
    "max_clip": 10.0,
    "max_point": 1000.0,
    "algorithms": [
        "noisy_minibatch_sgd",
        "local_sgd",
        "localized_accelerated_sgd",
        "multi_stage_accelerated_minibatch_sgd",
    ],
    "problems": ["logistic_regression", "neural_network"],
}


@contextmanager
def one(folder: Path, **policy: Any) -> Iterator[Caller]:
    """An enrolled silo of this policy, open."""
    with calling(*enrolled(write_silos(folder, RESOLVED, policy=policy)[:1])) as found:
        yield found


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """One silo that every test here attacks in turn."""
    with one(tmp_path_factory.mktemp("attacked"), **STRICT) as found:
        yield found


def state(caller: Caller) -> tuple[Any, ...]:
    """What a refusal must leave as it was."""
    ledger = caller.silo.ledger
    return (
        ledger.account.left,
        ledger.head,
        {run: dict(each.rounds) for run, each in ledger.book.runs.items()},
    )


def changed(path: str, value: Any, offer: Mapping[str, Any] = OFFER) -> dict[str, Any]:
    """The offer with the dotted field set."""
    return scenarios.changed(offer, {path: value})


MLP = {"name": "neural_network", "model": {"name": "mlp", "hidden": [1_000_000, 1_000_000]}}
LOCAL = {"name": "local_sgd", "num_rounds": 2, "local_steps": 11, "step_size": 0.1, "clip_norm": 1.0}
PHASES = {
    "name": "localized_accelerated_sgd",
    "phases": 9,
    "phase_rounds": 1,
    "step_size": 1.0,
    "regularisation": 0.1,
    "growth": 1.0,
    "clip_norm": 1.0,
}
STAGES = {
    "name": "multi_stage_accelerated_minibatch_sgd",
    "num_rounds": 10**9,
    "smoothness": 1.0,
    "strong_convexity": 1.0,
    "initial_excess": 1.0,
    "noise": 0.0,
    "clip_norm": 1.0,
}


def test_malformed_offers_leave_nothing_in_memory():
    """Offers cost no budget: if each left a model of its own in a cache, a server could fill the memory."""

    def refused_offer(key):
        with pytest.raises(InputError, match="unknown key"):
            validated(ProblemSection, "problem", {"name": "logistic_regression", key: 1})
        return section._fields_of.cache_info().currsize

    assert refused_offer("one") == refused_offer("another")


QUANTILE = {"quantile": 0.9, "rounds": 3, "share": 0.1}
OFFERS: dict[str, tuple[str, Any, str]] = {
    "an unlimited budget": ("epsilon", "unlimited", "offer.epsilon: 'unlimited': "),
    "no budget": ("epsilon", 0.0, "offer.epsilon: 0.0: "),
    "delta one": ("delta", 1.0, "offer.delta: 1.0: "),
    "another silo": ("silo", "silo-01", "it is for silo 'silo-01'"),
    "another n": ("shape.sizes", {"silo-00": 31}, "has 32 records, the offer says 31"),
    "a federation without the silo": ("shape.sizes", {"silo-01": 32}, "has 32 records, the offer says None"),
    "other features": ("shape.num_features", 6, "has 5 features, the offer says 6"),
    "other classes": ("shape.num_classes", 3, "has 2 classes, the offer says 3"),
    "too few weights": ("weights", [0.5, 0.5], "weights must be 3 positive numbers"),
    "a negative weight": ("weights", [0.5, 1.0, -0.5], "weights must be 3 positive numbers"),
    "an unknown algorithm": ("algorithm", {"name": "fed_avg"}, "does not allow algorithm 'fed_avg'"),
    "an algorithm that is not listed": ("algorithm", {"name": "prox_svrg"}, "does not allow algorithm"),
    "an algorithm without a name": ("algorithm", {}, "does not allow algorithm None"),
    "a name that is a list": ("algorithm", {"name": ["prox_svrg"]}, "does not allow algorithm"),
    "an unknown number": ("algorithm.clip", 1.0, "offer: algorithm.clip: 1.0: unknown key"),
    "a number left to a theorem": (
        "algorithm",
        {"name": "noisy_minibatch_sgd", "parameters": "theorem"},
        "the theorem does not set it",
    ),
    "a clip sought for too long": (
        "algorithm.clip_norm",
        QUANTILE | {"rounds": 7},
        "offer: algorithm.clip_norm.rounds: 7: at most the algorithm's 6 rounds",
    ),
    "a problem that is not listed": ("problem.name", "linear_regression", "does not allow problem"),
    "a network of a million by a million": ("problem", MLP, "dimension 1000009000002 exceeds"),
    "a module of the installation": (
        "problem",
        {"name": "neural_network", "model": {"name": "module", "path": "os:abort"}},
        "does not list the network 'os:abort'",
    ),
    "an endless plan": ("algorithm.num_rounds", 10**9, "limit of 20 rounds"),
    "endless stages": ("algorithm", STAGES, "limit of 20 rounds"),
    "too many queries": ("algorithm", LOCAL, "limit of 10 queries"),
    "too many numbers": (
        "algorithm",
        {**LOCAL, "num_rounds": 10, "local_steps": 9},
        "limit of 100000 numbers",
    ),
    "too many phases": ("algorithm", PHASES, "offer: algorithm.phases: 9: at most "),
    "a part of no units": (
        "algorithm.batch",
        {"sampler": "part", "start": 0.5, "stop": 0.5 + 1e-6},
        "the part from 0.5 to 0.500001 holds none of the silo's",
    ),
    "a part that ends before it begins": (
        "algorithm.batch",
        {"sampler": "part", "start": 0.5, "stop": 0.2},
        "offer: algorithm.batch.stop: 0.2: above start, which is 0.5",
    ),
    "a quantile that is no number": (
        "algorithm.clip_norm",
        QUANTILE | {"quantile": "a"},
        "offer: algorithm.clip_norm.quantile: 'a': input should be a valid number",
    ),
    "a clip above the policy's": ("algorithm.clip_norm", 100.0, "clip is neither 0 nor within [1e-06, 10]"),
    "rounds out of order": ("rounds", [1, 0], "not ascending rounds of the plan"),
    "rounds that are not in the plan": ("rounds", [0, 6], "not ascending rounds of the plan"),
    "a negative round": ("rounds", [-1], "offer.rounds.0: -1: "),
    "less noise than the budget's": ("noise_multiplier", 0.9, "its budget is 2"),
    "no noise": ("noise_multiplier", 0.0, "its budget is 2"),
    "noise that is no number": ("noise_multiplier", "much", "offer.noise_multiplier: 'much': "),
    "an unknown field": ("code", "print(1)", "offer.code: 'print(1)': "),
    "a session that is no digest": ("session", "ab", "offer.session: 'ab': "),
    "a head that it never had": ("head", OTHER, "does not hold what this server has seen"),
    "a study without a name": ("study", {"name": ""}, "offer.study.name: '': "),
    "a long name": ("study", {"name": "a" * 101}, "at most 100 characters"),
    "a long purpose": ("study", {"name": "a", "purpose": "a " * 501}, "at most 1000 characters"),
    "a name that moves the cursor": ("study", {"name": "a\x1b[2J"}, r"'a\x1b[2J': "),
    "a purpose of two lines": ("study", {"name": "a", "purpose": "a\nb"}, r"'a\nb': "),
    "a purpose from right to left": ("study", {"name": "a", "purpose": "a\u202eb"}, r"'a\u202eb': "),
    "persons": ("unit", "person", "account protects a record"),
    "persons, one more or fewer": (
        "unit",
        {"name": "person", "relation": "add_remove"},
        "it is of unit person (add_remove)",
    ),
    "another unit": ("unit", "household", "does not match any of the expected tags: 'record', 'person'"),
    "an endless h": (
        "unit",
        {"name": "person", "bound": "limit", "h": 10**9},
        "offer.unit.person.h.number: 1000000000: Input should be less",
    ),
    "another format": ("format", 2, "offer.format: 2: "),
}


@pytest.mark.parametrize(("path", "value", "said"), OFFERS.values(), ids=OFFERS)
def test_an_offer_outside_the_policy_is_refused_in_words(caller, path, value, said):
    before = state(caller)
    assert said in caller.refused("offer", **changed(path, value))
    assert state(caller) == before


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("rounds", [[]] * 5000, "offer.rounds.0: []: "),
        ("weights", [[]] * 5000, "offer.weights.0: []: "),
        ("shape.sizes", {f"{i}": [] for i in range(5000)}, "offer: 5,000 things are wrong with it"),
        ("problem", {"name": "logistic_regression", **{f"{i}": 0 for i in range(5000)}}, "5,000 things"),
        ("algorithm", {"name": "local_sgd", **{f"{i}": 0 for i in range(5000)}}, " things are wrong"),
    ],
)
def test_a_thousand_mistakes_are_counted_and_not_listed(caller, path, value, said):
    """A frame of 4 MB holds a million, each of which would cost a kilobyte to put into words."""
    assert said in caller.refused("offer", **changed(path, value))


def test_no_noise_is_refused_of_sampled_batches_too(caller):
    sampled = changed("algorithm.batch", {"sampler": "poisson", "fraction": 0.5})
    assert "its budget is 2" in caller.refused("offer", **sampled | {"noise_multiplier": 0.0})


def test_less_noise_than_the_policys_is_refused_though_the_budget_has_room(caller):
    one_round = changed("algorithm.num_rounds", 1, {**OFFER, "epsilon": 100.0, "delta": 1e-2})
    assert "asks for 1.5" in caller.refused("offer", **changed("noise_multiplier", 1.4, one_round))
    assert "asks for 1.5" in caller.refused("offer", **{**one_round, "noise_multiplier": None})


def test_a_silo_takes_the_smaller_of_its_budget_and_the_offers(caller):
    offer = {**OFFER, "epsilon": 100.0, "delta": 1e-2, "session": "11" * 32}
    own = caller.admitted(offer)
    assert (own["epsilon"], own["delta"]) == (4.0, 1e-5)
    caller.closed(own["run"])


@pytest.fixture(scope="module")
def run(caller):
    """A run whose round 0 was answered."""
    found = str(caller.admitted({**OFFER, "session": "22" * 32, "rounds": [0, 1, 2]})["run"])
    caller.asked(found, 0, w=POINT)
    return found


NAN, FAR = POINT.clone(), POINT.clone()
NAN[2], FAR[2] = float("nan"), 1001.0
ASKS: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor], str]] = {
    "an unknown run": ({"run": OTHER, "round": 0}, {"w": POINT}, "no run of this id"),
    "a round of another silo": ({"round": 3}, {"w": POINT}, "round 3 is not in its plan"),
    "a round beyond the plan": ({"round": 6}, {"w": POINT}, "round 6 is not in its plan"),
    "a negative round": ({"round": -1}, {"w": POINT}, "ask.round: -1: "),
    "a second plan's point for a round that was answered": (
        {"round": 0},
        {"w": POINT + 1},
        "asked for with another broadcast",
    ),
    "another dimension": ({"round": 1}, {"w": torch.zeros(6, dtype=torch.float64)}, "a point is (6,)"),
    "a matrix": ({"round": 1}, {"w": torch.zeros(1, 5, dtype=torch.float64)}, "a point is (1, 5)"),
    "another type": ({"round": 1}, {"w": POINT.float()}, "torch.float32"),
    "an array of another name": ({"round": 1}, {"v": POINT}, "other arrays than w"),
    "an array more": ({"round": 1}, {"v": POINT, "w": POINT}, "other arrays than w"),
    "no array": ({"round": 1}, {}, "other arrays than w"),
    "not a number": ({"round": 1}, {"w": NAN}, "a point has an entry of size nan"),
    "a point beyond the policy's": ({"round": 1}, {"w": FAR}, "the limit is 1000"),
    "another statistic": ({"round": 1, "statistic": "loss"}, {"w": POINT}, "ask.statistic: 'loss': "),
    "a head that it never had": ({"round": 1, "head": OTHER}, {"w": POINT}, "does not hold what this server"),
}


@pytest.mark.parametrize(("head", "broadcast", "said"), ASKS.values(), ids=ASKS)
def test_an_ask_outside_the_plan_is_refused_and_costs_nothing(caller, run, head, broadcast, said):
    before = state(caller)
    assert said in caller.refused("ask", broadcast, **{"run": run, **head})
    assert state(caller) == before


def test_an_old_reply_is_not_given_again(caller):
    found = caller.admitted({**OFFER, "session": "33" * 32, "epsilon": 0.5})["run"]
    for r in range(2):
        caller.asked(found, r, w=POINT)
    before = state(caller)
    assert "only the last reply is kept" in caller.refused("ask", {"w": POINT}, run=found, round=0)
    assert state(caller) == before
    caller.closed(found)
    assert caller.refused("ask", {"w": POINT}, run=found, round=2) == "the run is closed"
    assert "no run of this id" in caller.refused("close", run=OTHER)


def test_a_session_with_another_offer_is_refused(caller):
    caller.closed(caller.admitted({**OFFER, "session": "44" * 32})["run"])
    other = changed("algorithm.step_size", 0.25, {**OFFER, "session": "44" * 32})
    assert caller.refused("offer", **other) == "this session is known with another offer"


def test_a_broken_round_says_nothing_of_what_broke_it(caller, monkeypatch, caplog):
    found = caller.admitted({**OFFER, "session": "55" * 32, "epsilon": 0.5})["run"]

    def broken(*_):
        raise ValueError(f"record 7 has the value {SECRET}")

    monkeypatch.setattr("silos.vault.records.Records.clipped_sum", broken)
    with caplog.at_level(logging.DEBUG):
        assert caller.refused("ask", {"w": POINT}, run=found, round=0) == GENERIC
    assert "ValueError" in caplog.text
    assert str(SECRET) not in caplog.text
    monkeypatch.undo()
    reason = caller.refused("ask", {"w": POINT}, run=found, round=0)  # its noise was drawn: it is over
    assert reason == "round 0 failed in the silo"
    caller.asked(found, 1, w=POINT)
    caller.closed(found)


def test_a_plug_in_that_raises_in_the_dry_run_is_not_quoted(caller, monkeypatch, caplog):
    """It holds no records then, but may have kept what earlier rounds told it."""

    def broken(*_):
        raise ValueError(f"record 7 had the value {SECRET}")

    monkeypatch.setattr("fedsim.algorithms.noisy_minibatch_sgd.NoisyMinibatchSGD.silo", broken)
    with caplog.at_level(logging.DEBUG):
        assert caller.refused("offer", **{**OFFER, "session": "77" * 32}) == GENERIC
    assert "PluginError" in caplog.text
    assert str(SECRET) not in caplog.text


def test_an_offer_does_not_wait_for_another_and_rounds_wait_for_neither(caller, run, monkeypatch):
    entered, go, real = threading.Event(), threading.Event(), silos.front.offers.admissible

    def dear(*given):
        entered.set()
        assert go.wait(60)
        return real(*given)

    monkeypatch.setattr("silos.front.offers.admissible", dear)
    offer, other = ({**OFFER, "session": name * 32, "epsilon": 0.5} for name in ("88", "99"))
    with ThreadPoolExecutor(1) as first:
        admitted = first.submit(caller.silo.answer, sealed(encode(Frame("offer", offer))))
        assert entered.wait(60)
        said = caller.send("offer", **other).head
        assert said == {"reason": "the silo is trying out another offer; ask again", "again": True}
        caller.asked(run, 2, w=POINT)
        go.set()
        assert decode(opened(admitted.result())[0]).kind == "admission"
    assert caller.send("offer", **other).kind == "admission"
    for each in (offer, other):
        caller.closed(caller.admitted(each)["run"])


def test_a_frame_is_no_longer_than_the_silos_own_features_make_it():
    """d follows from them, where no network may be offered."""
    policy = Policy.model_validate({**POLICY, "max_dimension": 10**6})
    own = Profile(silo="silo-00", n=32, num_features=5, num_classes=3)
    assert largest_dimension(policy, own) == 10**6
    linear = policy.model_copy(update={"problems": ("logistic_regression", "softmax_regression")})
    assert largest_dimension(linear, own) == 15
    assert largest_dimension(linear.model_copy(update={"max_dimension": 10}), own) == 10


@pytest.mark.parametrize("kind", ["hello", "close"])
def test_only_an_ask_has_arrays(caller, run, kind):
    head = {} if kind == "hello" else {"run": run}
    assert "has no arrays" in caller.refused(kind, {"w": POINT}, **head)


def test_a_kind_that_no_server_sends_is_refused(caller):
    assert "not 'admission'" in caller.refused("admission")


def test_which_refusal_is_given_does_not_depend_on_records(tmp_path):
    """Neighbouring data sets, and sets that have nothing in common but their size."""
    said = []
    for rows in (0, 1, 32):  # as they are, one record replaced, all others
        (path, *_) = write_silos(tmp_path / str(rows), RESOLVED, policy=STRICT)
        file = path.parent / "records.npz"
        arrays = dict(np.load(file))
        arrays["features"][:rows] = 1e300
        arrays["target"][:rows] = 1 - arrays["target"][:rows]
        np.savez(file, **arrays)
        with calling(*enrolled([path])) as caller:
            found = caller.admitted({**OFFER, "rounds": [0, 1, 2]})["run"]
            caller.asked(found, 0, w=POINT)
            said.append([caller.refused("offer", **changed(at, value)) for at, value, _ in OFFERS.values()])
            said[-1] += [
                caller.refused("ask", sent, **{"run": found, **head}) for head, sent, _ in ASKS.values()
            ]
    assert said[0] == said[1] == said[2]


def test_a_life_has_so_many_runs(tmp_path):
    with one(tmp_path, max_runs=1) as only:
        assert only.closed(only.admitted({**OFFER, "session": "ef" * 32})["run"])["epsilon_spent"] == 0
        run = only.admitted(OFFER)["run"]  # as the one before was closed unused
        only.asked(run, 0, w=POINT)
        only.closed(run)
        assert "allows 1 runs" in only.refused("offer", **{**OFFER, "session": OTHER})


def test_offers_at_the_same_time_are_admitted_no_more_often_than_the_policy_says(tmp_path, monkeypatch):
    """Both have been tried out, and found room, before either is in the ledger."""
    both = threading.Barrier(2, timeout=60)
    monkeypatch.setattr("silos.vault.vault.new_secret", lambda: bytes(32 + 0 * both.wait()))

    def offered(session):
        caller = Caller(only.silo)
        while True:
            answer = caller.send("offer", **{**OFFER, "session": session})
            if not answer.head.get("again"):
                return answer

    with one(tmp_path, max_runs=1) as only, ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(offered, ["ab" * 32, OTHER]))
        assert sorted(answer.kind for answer in answers) == ["admission", "refusal"]
        assert len(only.silo.ledger.book.runs) == 1


def test_an_offer_that_is_too_long_to_keep_is_refused_before_it_is_tried_out(tmp_path, monkeypatch):
    monkeypatch.setattr("silos.front.offers.proposal_of", None)
    shape = {**OFFER["shape"], "sizes": {f"{name:0100}": 1 for name in range(2_000)}}
    with one(tmp_path) as only:
        assert "a ledger keeps 200,000" in only.refused("offer", **{**OFFER, "shape": shape})


def test_a_silo_releases_nothing_after_its_last_day(tmp_path, monkeypatch):
    clock = {"now": lambda _: datetime(2019, 12, 31, tzinfo=UTC), "fromtimestamp": datetime.fromtimestamp}
    monkeypatch.setattr(
        "silos.front.enrolment.datetime", SimpleNamespace(**clock)
    )  # enrolled before that day
    with one(tmp_path, lifetime={**POLICY["lifetime"], "expires": "2020-01-01"}) as over:
        assert "lifetime budget has expired" in over.refused("offer", **OFFER)
        assert over.refused("hello") == "Lifetime has ended on 2020-01-02"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-5, 2**62)
    | st.sampled_from([5e-324, 1e-308, 1e308, 0.1, 1.0])
)
FIELDS = [
    "seed", "epsilon", "delta", "noise_multiplier", "weights", "rounds", "dtype", "shape.sizes",
    "algorithm.num_rounds", "algorithm.step_size", "algorithm.clip_norm", "algorithm.strong_convexity",
    "algorithm.batch", "problem.regulariser", "problem.constraint", "problem.ridge", "problem.smoothing",
    "problem.model", "algorithm", "problem", "shape",
]  # fmt: skip
BATCHES = st.fixed_dictionaries(
    {"sampler": st.sampled_from(["full", "fresh", "subsample", "poisson", "with_replacement"])},
    optional={"fraction": st.sampled_from([1e-9, 0.01, 0.03, 0.5, 1.0])},
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(FIELDS[:-3]), NUMBERS | JSON | BATCHES, min_size=1, max_size=3),
    st.integers(0, 2**128),
)
def test_a_weird_offer_is_refused_or_admitted_within_the_budget(caller, fields, session):
    offer = {**OFFER, "session": f"{session:064x}"}
    for path, value in fields.items():
        offer = changed(path, value, offer)
    before = state(caller)
    try:
        frame = caller.send("offer", **offer)
    except ValueError:  # no JSON of it: a float that is no number
        return
    if frame.kind == "refusal":
        assert state(caller) == before
        assert frame.head["reason"] != GENERIC, fields
        return
    own = frame.head
    assert own["epsilon_guaranteed"] <= own["epsilon"] <= 4.0
    assert own["delta"] <= 1e-5
    assert own["noise_multiplier"] >= 1.5 or own["releases"] == 0
    caller.closed(own["run"])
    assert caller.silo.ledger.account.left == before[0]
