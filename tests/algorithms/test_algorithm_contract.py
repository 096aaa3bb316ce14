"""Properties of every algorithm: see `algorithm_table`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from support.algorithm_table import ROWS, Row
from support.helpers import drive, open_gate, plan_of, problems, public_of, silos_of
from torch import Tensor

from fedsim.algorithms.registry import algorithms
from fedsim.problems.composite import Composite, L2Ball
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.protocol.batch import FULL, Batch, Fresh
from fedsim.protocol.contract import Algorithm, Asker, Combined, Memory, Public, Query, ServerHalf
from fedsim.protocol.dryrun import dry_run, server_rng
from fedsim.protocol.limits import Limits
from fedsim.protocol.memory import CohortMemory
from fedsim.protocol.plain import plain_queries
from fedsim.protocol.plan import Ask
from server.aggregate import coefficients, combine
from server.participation import Schedule, rounds_of_silos, schedule
from silos.gate import Gate

every_algorithm = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
LONG = {"accelerated_minibatch_sgd"}
"""They take ten times the rounds of others to their optimum."""

SIZES = (30, 45, 60)
WEIGHTS = (0.6, 0.3, 0.1)


@dataclass(frozen=True)
class Case:
    """A strongly convex problem with its optimum, found without the code under test."""

    problem: GeneralisedLinear
    data: list[tuple[np.ndarray, np.ndarray]]
    optimum: np.ndarray
    smoothness: float

    def distance(self, w: Tensor) -> float:
        return float(np.linalg.norm(w.numpy() - self.optimum))


def _pooled(
    data: list[tuple[np.ndarray, np.ndarray]], weights: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All records, each with its weight p_i / n_i in the objective."""
    share = [np.full(len(y), p / len(y)) for p, (_, y) in zip(weights, data, strict=True)]
    return np.concatenate([x for x, _ in data]), np.concatenate([y for _, y in data]), np.concatenate(share)


def _linear_optimum(x: np.ndarray, y: np.ndarray, share: np.ndarray, radius: float = np.inf) -> np.ndarray:
    """Normal equations; on the sphere, the multiplier at which the solution has length `radius`."""
    gram, moment = x.T @ (share[:, None] * x), x.T @ (share * y)

    def solution(multiplier: float) -> np.ndarray:
        return np.linalg.solve(gram + multiplier * np.eye(len(gram)), moment)

    if np.linalg.norm(solution(0)) <= radius:
        return solution(0)
    on_sphere = optimize.brentq(lambda m: np.linalg.norm(solution(m)) - radius, 0, 1e3, xtol=1e-14)
    return solution(on_sphere)


def _entropy_optimum(x: np.ndarray, y: np.ndarray, share: np.ndarray, classes: int, l2: float) -> np.ndarray:
    """Zero of the gradient of the multinomial (two classes: binomial) log loss plus l2 / 2 |w|^2."""

    def gradient(flat: np.ndarray) -> np.ndarray:
        if classes == 2:
            return x.T @ (share * (1 / (1 + np.exp(-x @ flat)) - y)) + l2 * flat
        scores = x @ flat.reshape(x.shape[1], classes)
        likely = np.exp(scores - scores.max(1, keepdims=True))
        likely /= likely.sum(1, keepdims=True)
        return (x.T @ (share[:, None] * (likely - np.eye(classes)[y.astype(int)]))).ravel() + l2 * flat

    size = x.shape[1] if classes == 2 else x.shape[1] * classes
    found = optimize.root(gradient, np.zeros(size), tol=1e-13)
    assert np.linalg.norm(gradient(found.x)) < 1e-10
    return found.x


def _case(name: str, weights: Sequence[float] = WEIGHTS) -> Case:
    l2 = 0.0 if name.startswith("linear") else 0.2
    composite = Composite(l2=l2, constraint=L2Ball(0.3)) if name == "linear in a ball" else Composite(l2=l2)
    kinds = {"logistic": LogisticRegression, "softmax": SoftmaxRegression}
    kind = kinds.get(name, LinearRegression)
    problem = kind(4, 3 if name == "softmax" else 1, composite)
    data = silos_of(problem, SIZES, seed=5)
    if isinstance(problem, LinearRegression):
        slope = np.array([0.5, -0.3, 0.2, 0.1])
        data = [(x, x @ slope + 0.3 * y) for x, y in data]
    x, y, share = _pooled(data, weights)
    curvature = np.linalg.eigvalsh(x.T @ (share[:, None] * x))[-1]
    if isinstance(problem, LinearRegression):
        radius = 0.3 if name == "linear in a ball" else np.inf
        return Case(problem, data, _linear_optimum(x, y, share, radius), curvature)
    classes = 3 if name == "softmax" else 2
    return Case(problem, data, _entropy_optimum(x, y, share, classes, l2), curvature / classes + l2)


def _answers(case: Case, algorithm: Algorithm) -> list[Tensor]:
    """What the server would return before every round of a noise-free run, and at its end."""
    gate = open_gate(case.data, case.problem, algorithm, epsilon=np.inf, mechanism="none")
    rounds = _all_take_part(algorithm, case.problem, len(SIZES))
    return [p.answer for p in drive(gate, algorithm, case.problem, public_of(SIZES, WEIGHTS), rounds)]


def _all_take_part(algorithm: Algorithm, problem: GeneralisedLinear, silos: int) -> Schedule:
    return schedule(silos, None, [False] * len(plan_of(algorithm, problem, [1] * silos).rounds), 0, 0)


def _marks(row: Row, case_name: str) -> list[pytest.MarkDecorator]:
    long = case_name != "linear" and row.name in LONG
    off = row.unconstrained is not None and case_name == "linear in a ball"
    cannot = pytest.mark.xfail(raises=AssertionError, strict=True, reason=str(row.unconstrained))
    return [pytest.mark.slow] * long + [cannot] * off


CASE_NAMES = ("logistic", "softmax", "linear", "linear in a ball")
every_case = pytest.mark.parametrize("case_name", CASE_NAMES)
every_pair = pytest.mark.parametrize(
    ("row", "case_name"),
    [
        pytest.param(
            row,
            case_name,
            id=f"{case_name}-{row.name}",
            marks=_marks(row, case_name),
        )
        for case_name in CASE_NAMES
        for row in ROWS
    ],
)


def test_every_registered_algorithm_has_a_row() -> None:
    assert [row.name for row in sorted(ROWS, key=lambda row: row.name)] == list(algorithms())


@every_pair
def test_without_noise_the_known_optimum_is_reached(row: Row, case_name: str) -> None:
    case = _case(case_name)
    # Other weights have another optimum: reaching this one shows that p_i is used.
    assert np.linalg.norm(_case(case_name, [1 / 3] * 3).optimum - case.optimum) > 5 * row.tolerance
    answers = _answers(case, row.convergent(1 / case.smoothness))
    assert case.distance(row.estimate(answers)) <= row.tolerance
    assert case.distance(answers[0]) > 100 * row.tolerance


@pytest.mark.parametrize("row", [row for row in ROWS if row.averaged], ids=lambda row: row.name)
@every_case
def test_without_noise_a_mean_of_iterates_nears_the_optimum_as_one_over_r(row: Row, case_name: str) -> None:
    case = _case(case_name)
    answers = _answers(case, row.convergent(1 / case.smoothness))
    half = (len(answers) - 1) // 2
    # Progress r holds the mean of the first r + 1 iterates.
    ratio = case.distance(answers[2 * half - 1]) / case.distance(answers[half - 1])
    assert ratio == pytest.approx(0.5, rel=1e-3)


@every_pair
def test_without_noise_the_optimum_is_a_fixed_point(row: Row, case_name: str) -> None:
    case = _case(case_name)
    algorithm = row.convergent(1 / case.smoothness)
    gate = open_gate(case.data, case.problem, algorithm, epsilon=np.inf, mechanism="none")
    public = public_of(SIZES, WEIGHTS)
    coroutine = algorithm.server(torch.from_numpy(case.optimum), case.problem, public, server_rng(0))
    assert case.distance(_played(coroutine, gate, public)) <= row.tolerance


def _played(coroutine: ServerHalf, gate: Gate, public: Public) -> Tensor:
    """What a server half returns, from wherever it was started."""
    step, r = next(coroutine), 0
    everyone = coefficients(public.weights, range(len(public.names)), len(public.names))
    try:
        while True:
            step = coroutine.send(Combined(combine(gate.answer(r, step.broadcast), everyone), 1.0))
            r += 1
    except StopIteration as stop:
        model: Tensor = stop.value
        return model


@every_algorithm
def test_no_message_holds_what_must_not_be_scaled(row: Row) -> None:
    """Where no silo has anything to say (the optimum of each, no noise), no coefficient moves the model.

    A message that held a model, or a public estimate, would move it: coefficients need not sum to 1.
    """
    problem = LinearRegression(3)
    truth = np.array([0.5, -0.2, 0.1])
    data = [(x, x @ truth) for x, _ in silos_of(problem, (20, 30, 40, 50), seed=1)]
    algorithm = row.short(FULL)
    trace = plan_of(algorithm, problem, (20, 30, 40, 50))
    rounds = [[r % 4] for r in range(len(trace.rounds))]
    gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
    public = public_of((20, 30, 40, 50), (1 / 6, 1 / 6, 1 / 6, 1 / 2))
    coroutine = algorithm.server(torch.from_numpy(truth), problem, public, server_rng(0))
    step = next(coroutine)
    for r, members in enumerate(rounds):
        np.testing.assert_allclose(step.answer, truth, atol=1e-12)
        reply = gate.answer(r, step.broadcast, members)
        try:
            step = coroutine.send(Combined(combine(reply, coefficients(public.weights, members, 4)), 1 / 4))
        except StopIteration as stop:
            np.testing.assert_allclose(stop.value, truth, atol=1e-12)


def _statements_after(row: Row, batch: Batch, active: int | None, epsilon: float = 1.0) -> Any:
    problem = problems(4)["logistic"]
    sizes = (40, 40, 40)
    algorithm = row.short(batch)
    trace = dry_run(algorithm, problem, public_of(sizes), 0, Limits())
    rounds = schedule(3, active, trace.holds, seed=1, trial=0)
    gate = open_gate(
        silos_of(problem, sizes),
        problem,
        algorithm,
        epsilon=epsilon,
        rounds=rounds_of_silos(rounds, 3),
        plan=trace.plan,
    )
    drive(gate, algorithm, problem, public_of(sizes), rounds)
    return trace.plan, rounds_of_silos(rounds, 3), gate.statements()


@every_algorithm
@pytest.mark.parametrize("batch", [FULL, Fresh(1 / 12)], ids=["full", "fresh"])
def test_the_ledger_equals_the_plan(row: Row, batch: Batch) -> None:
    plan, _, statements = _statements_after(row, batch, active=None)
    asked = {ask.batch for asks in plan.rounds for ask in asks}
    assert asked == {batch} | row.anchors
    for statement in statements:
        assert statement.rounds == list(range(len(plan.rounds)))
        assert statement.epsilon_spent == statement.admitted.epsilon_guaranteed
        assert 0.999 <= statement.epsilon_spent <= 1.0
        assert statement.admitted.releases == sum(len(a.queries) for asks in plan.rounds for a in asks)


@every_algorithm
def test_with_m_of_n_a_silo_pays_for_its_own_rounds(row: Row) -> None:
    plan, own, statements = _statements_after(row, FULL, active=1)
    _, _, everyone = _statements_after(row, FULL, active=None)
    assert sum(len(rounds) for rounds in own) == len(plan.rounds)
    for rounds, statement, always in zip(own, statements, everyone, strict=True):
        assert statement.rounds == list(rounds)
        assert statement.epsilon_spent == statement.admitted.epsilon_guaranteed
        # Gaussian releases of equal weight: mu^2 adds, so z grows with the square root of the rounds.
        expected = always.admitted.noise_multiplier * (len(rounds) / len(plan.rounds)) ** 0.5
        assert statement.admitted.noise_multiplier == pytest.approx(expected, rel=1e-6)
        assert 0.999 <= statement.epsilon_spent <= 1.0 or not rounds


@every_algorithm
def test_a_silo_that_misses_planned_rounds_spends_less(row: Row) -> None:
    problem = problems(4)["logistic"]
    algorithm = row.short(FULL)
    gate = open_gate(silos_of(problem, (10, 10)), problem, algorithm)
    rounds = _all_take_part(algorithm, problem, 2)
    drive(gate, algorithm, problem, public_of((10, 10)), [*rounds[:-1], [1]])
    one, two = gate.statements()
    assert (len(one.rounds), len(two.rounds)) == (len(rounds) - 1, len(rounds))
    assert 0 < one.epsilon_spent < two.epsilon_spent == two.admitted.epsilon_guaranteed


@dataclass(frozen=True)
class Watched:
    """An algorithm whose silo half writes down what it asks."""

    inner: Algorithm
    rounds: list[list[Ask]] = field(default_factory=list)

    def server(self, w: Tensor, problem: Any, public: Public, rng: np.random.Generator) -> ServerHalf:
        return self.inner.server(w, problem, public, rng)

    def silo(
        self, problem: Any, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        self.rounds.append([])

        def watched(*queries: Query) -> Any:
            self.rounds[-1].append(plain_queries(queries)[0])
            return ask(*queries)

        return self.inner.silo(problem, broadcast, watched, memory)


@every_algorithm
def test_the_dry_run_is_what_the_gate_is_asked(row: Row) -> None:
    problem = problems(4)["softmax"]
    sizes = (24, 30)
    algorithm = row.short(Fresh(1 / 12))
    plan = plan_of(algorithm, problem, sizes)
    watched = Watched(algorithm)
    gate = open_gate(silos_of(problem, sizes), problem, watched, plan=plan)
    drive(gate, watched, problem, public_of(sizes), _all_take_part(algorithm, problem, 2))
    assert tuple(map(tuple, watched.rounds)) == plan.rounds
    assert plan == plan_of(algorithm, problem, (7, 7))


@every_algorithm
def test_a_run_is_a_function_of_its_seed(row: Row) -> None:
    problem = problems(4)["logistic"]
    algorithm = row.short(FULL)

    def end(seed: int) -> Tensor:
        gate = open_gate(silos_of(problem, (9, 12)), problem, algorithm, seed=seed)
        rounds = _all_take_part(algorithm, problem, 2)
        return drive(gate, algorithm, problem, public_of((9, 12)), rounds)[-1].answer

    assert torch.equal(end(3), end(3))
    assert not torch.equal(end(3), end(4))


@every_algorithm
@pytest.mark.parametrize("leading", [(1,), (25,)])
def test_a_cohort_is_answered_row_by_row(row: Row, leading: tuple[int, ...]) -> None:
    """The silo half computes on (silos, d) what it computes on each row."""
    problem = replace(problems(4)["linear"], composite=Composite(0.1, 0.2, L2Ball(0.5)))
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.normal(size=4))
    broadcast = next(row.short(FULL).server(start, problem, public_of((5,)), server_rng(0))).broadcast
    asks = len(plan_of(row.short(FULL), problem, (5,)).rounds[0])
    answers = torch.from_numpy(rng.normal(size=(asks, *leading, 4)))

    def replay(taken: Tensor) -> Mapping[str, Tensor]:
        left = iter(taken)
        memory = CohortMemory(taken.shape[1], 4, taken.dtype)
        return row.short(FULL).silo(problem, broadcast, lambda *queries: next(left), memory)

    together = replay(answers)
    for i in range(leading[0]):
        alone = replay(answers[:, i : i + 1])
        for name, value in together.items():
            assert torch.equal(value[i : i + 1], alone[name].expand(1, 4))


def test_minibatch_sgd_takes_projected_steps_and_returns_the_mean() -> None:
    """w <- project(w - eta (sum p_i g_i + l2 w)), written out in NumPy."""
    problem = LinearRegression(3, composite=Composite(l2=0.1, constraint=L2Ball(0.2)))
    data = silos_of(problem, SIZES)
    algorithm = algorithms()["noisy_minibatch_sgd"](num_rounds=6, step_size=0.4, clip_norm=1.0)  # type: ignore[call-arg]
    gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
    progress = drive(
        gate, algorithm, problem, public_of(SIZES, WEIGHTS), schedule(3, None, [False] * 6, 0, 0)
    )
    x, y, share = _pooled(data, WEIGHTS)
    w, iterates = np.zeros(3), []
    for _ in range(6):
        iterates.append(w)
        w = w - 0.4 * (x.T @ (share * (x @ w - y)) + 0.1 * w)
        w = w * min(1.0, 0.2 / np.linalg.norm(w))
    for r, event in enumerate(progress[:-1]):
        np.testing.assert_allclose(event.answer, np.mean(iterates[: r + 1], 0), atol=1e-14)
    np.testing.assert_allclose(progress[-1].answer, np.mean(iterates, 0), atol=1e-14)


def test_local_sgd_averages_where_the_silos_end() -> None:
    """K projected steps of each silo from the common point, written out in NumPy."""
    problem = LinearRegression(3, composite=Composite(l2=0.1, constraint=L2Ball(0.2)))
    data = silos_of(problem, SIZES)
    algorithm = algorithms()["local_sgd"](num_rounds=3, local_steps=4, step_size=0.3, clip_norm=1.0)  # type: ignore[call-arg]
    gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
    progress = drive(
        gate, algorithm, problem, public_of(SIZES, WEIGHTS), schedule(3, None, [False] * 3, 0, 0)
    )
    common = np.zeros(3)
    for event in progress:
        np.testing.assert_allclose(event.answer, common, atol=1e-14)
        ends = []
        for x, y in data:
            w = common
            for _ in range(4):
                w = w - 0.3 * (x.T @ (x @ w - y) / len(y) + 0.1 * w)
                w = w * min(1.0, 0.2 / np.linalg.norm(w))
            ends.append(w)
        common = np.average(ends, axis=0, weights=WEIGHTS)
