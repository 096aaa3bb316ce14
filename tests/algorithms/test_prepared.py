"""Stages before training come to the model of records prepared by hand, with memory and epochs too."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import pytest
import torch
from support.helpers import DELTA, drive, names_of, public_of, silos_of
from torch import Tensor

from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prepared import Prepared, PrincipalComponents, Ranges, StageKind, Standardise
from fedsim.algorithms.prox_svrg import ProxSVRG
from fedsim.algorithms.scaffold import Scaffold
from fedsim.common.errors import Refused
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.composite import Composite
from fedsim.problems.glm import GeneralisedLinear, LogisticRegression, SoftmaxRegression
from fedsim.problems.regularisers import L2Ball
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Algorithm, Asker, Combined, Memory, Message, PublicProblem, Query
from fedsim.protocol.copies import CohortMemory
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import LIMITS, Limits
from fedsim.protocol.moments import svec
from fedsim.protocol.plan import QueryShape, Terms
from fedsim.protocol.unit import Person
from fedsim.simulation.host import MemoryLedger
from fedsim.testing.federations import Silo
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out
from silos.vault.owners import Owners
from silos.vault.records import Records
from silos.vault.terms import summed

SIZES = (40, 60, 50)
FEATURES = 6
SGD = NoisyMinibatchSGD(num_rounds=5, step_size=0.5, clip_norm=1.0)
STANDARDISE = Standardise(share=0.1, clip=600.0)
PCA = PrincipalComponents(share=0.1, clip=600.0, components=3)


def records(problem: GeneralisedLinear, seed: int = 4) -> list[Silo]:
    """Silos' records whose features differ in mean and scale."""
    scale = np.array([0.5, 3.0, 1.0, 2.0, 0.4, 1.0])
    shift = np.array([1.0, -2.0, 0.0, 5.0, 0.1, 0.0])
    return [(x * scale + shift * 1.0, y) for x, y in silos_of(problem, SIZES, seed)]


def standardised(data: Sequence[Silo]) -> np.ndarray:
    x = np.concatenate([x for x, _ in data])[:, :-1]
    matrix = np.diag(np.append(1 / x.std(axis=0), 1.0))
    matrix[:-1, -1] = -x.mean(axis=0) / x.std(axis=0)
    return matrix


def components(data: Sequence[Silo], count: int) -> np.ndarray:
    x = np.concatenate([x for x, _ in data])[:, :-1]
    vectors = np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :count].T
    matrix = np.zeros((count + 1, x.shape[1] + 1))
    matrix[:-1, :-1], matrix[:-1, -1], matrix[-1, -1] = vectors, -vectors @ x.mean(axis=0), 1.0
    return matrix


def by_hand(data: Sequence[Silo], stages: Sequence[StageKind]) -> np.ndarray:
    """T of the stages on all records, without noise."""
    whole = np.eye(FEATURES)
    for stage in stages:
        mapped = [(x @ whole.T, y) for x, y in data]
        own = components(mapped, stage.components) if isinstance(stage, PrincipalComponents) else None
        whole = (standardised(mapped) if own is None else own) @ whole
    return whole


def open_gate(
    data: Sequence[Silo],
    problem: GeneralisedLinear,
    algorithm: Algorithm,
    epsilon: float = math.inf,
    limits: Limits = LIMITS,
) -> Served:
    """A gate that takes broadcasts of the trace's sizes, as a run's does; without noise for infinity."""
    sizes = [len(target) for _, target in data]
    trace, names = dry_run(algorithm, problem, public_of(sizes), 0, limits), names_of(len(data))
    everything = range(len(trace.plan.rounds))
    return Served(
        Gate(
            lay_out(data, problem, torch.float64),
            problem,
            trace.plan,
            [Terms(name, n, epsilon, DELTA, everything) for name, n in zip(names, sizes, strict=True)],
            MECHANISMS["gaussian"],
            SeededEntropy(0, 0, names, ["a test's run"] * len(names)),
            [MemoryLedger() for _ in names],
            limits,
            torch.float64,
            trace.broadcasts,
        ),
        algorithm,
    )


def trained(algorithm: Algorithm, problem: GeneralisedLinear, data: Sequence[Silo]) -> list[Tensor]:
    """What the server would return before each round and at the end, clipped and without noise."""
    sizes = [len(y) for _, y in data]
    gate = open_gate(data, problem, algorithm)
    rounds = [range(len(data))] * len(dry_run(algorithm, problem, public_of(sizes), 0, LIMITS).plan.rounds)
    return [event.answer for event in drive(gate, algorithm, problem, public_of(sizes), rounds)]


BOUNDS = [Person("clip"), Person("mean"), Person("limit", 9), Person("smooth", 9)]


def weighed(x: np.ndarray, who: np.ndarray, unit: Person, clip: float) -> np.ndarray:
    """What a record's v v^T counts by a unit's bound, by definition, if no person has more than h records."""
    length, weight = (x**2).sum(1), np.zeros(len(x))
    for person in np.unique(who):
        own = np.flatnonzero(who == person)
        if unit.weighted:
            shares = np.minimum(1, clip / length[own]) / max(cast(int, unit.h), len(own))
        else:
            shares = np.full(len(own), 1 / len(own) if unit.bound == "mean" else 1.0)
            together = np.linalg.norm((x[own] * shares[:, None]).T @ x[own])
            shares = shares * min(1, clip / together)
        weight[own] = shares
    return weight


@pytest.mark.parametrize("clip", [3.0, 600.0])  # 3 shortens every record and is below a mean's square
@pytest.mark.parametrize("unit", BOUNDS, ids=lambda unit: unit.bound)
def test_features_of_persons_are_standardised_by_the_moments_of_weighed_records(
    unit: Person, clip: float
) -> None:
    """One feature is constant: its mean is itself and its variance none, however records are weighed."""
    rng = np.random.default_rng(6)
    counts = rng.choice([1, 1, 2, 6], 80)
    who = np.repeat(np.arange(80), counts)
    x = np.column_stack([rng.normal(counts[who], 0.5), np.full(len(who), 3.0), np.ones(len(who))])
    problem, stage = LogisticRegression(3), Standardise(share=0.1, clip=clip)
    records = Records([(x, np.zeros(len(x)))], problem, torch.float64, Owners.of(unit, [who], (0, 0, ["s"])))
    ((block,), (query,)) = records.full([0]), stage.queries(3, 1.0)
    shape = QueryShape(query.statistic, 0, 1.0, query.options)
    terms = partial(summed, records.clipped_sum, shape)
    if records.units.summed:
        terms = partial(records.unit_sum, terms, size=6)
    answer = terms(problem, block, (), clip)[0] / 80
    weight = weighed(x, who, unit, clip)
    mean = weight @ x / weight.sum()
    variance = weight @ (x - mean) ** 2 / weight.sum()
    made = stage.map(answer, 3, 0.0)
    centre = torch.linalg.solve(made[:2, :2], -made[:2, 2])
    assert centre.numpy() == pytest.approx(mean[:2])
    assert 1 / made[0, 0] ** 2 == pytest.approx(variance[0])
    assert 1 / made[1, 1] ** 2 == pytest.approx(1e-4 * clip)  # the least


def test_a_deviation_is_at_least_that_of_the_noise_on_a_variance() -> None:
    """Which is the noise on the sum over what records weigh, here a tenth."""
    rng, stage, noise, weight = np.random.default_rng(2), Standardise(share=0.1, clip=4.0), 0.01, 0.1
    v = np.array([0.5, 1.0])
    for _ in range(400):
        drawn = torch.from_numpy(rng.standard_normal(3) * noise)
        made = stage.map(svec(torch.from_numpy(weight * np.outer(v, v))) + drawn, 2, noise)
        assert 1 / made[0, 0] ** 2 >= noise / weight / 1.5


@pytest.mark.parametrize("stages", [(STANDARDISE,), (PCA,), (STANDARDISE, PCA), (PCA, STANDARDISE)])
@pytest.mark.parametrize(
    "algorithm",
    [
        SGD,
        Scaffold(num_rounds=3, local_steps=2, step_size=0.1, clip_norm=1.0),
        ProxSVRG(epochs=2, inner_steps=2, step_size=0.1, clip_norm=1.0, difference_clip=1.0),
    ],
    ids=["sgd", "memory", "epochs"],
)
@pytest.mark.parametrize("problem", [LogisticRegression(FEATURES), SoftmaxRegression(FEATURES, 3)])
def test_it_comes_to_the_model_of_records_prepared_by_hand(
    problem: GeneralisedLinear, algorithm: Algorithm, stages: tuple[StageKind, ...]
) -> None:
    data = records(problem)
    transform = by_hand(data, stages)
    inner = type(problem)(len(transform), problem.num_outputs)
    by_hands = trained(algorithm, inner, [(x @ transform.T, y) for x, y in data])[-1]
    mine = trained(Prepared(stages, (1.0,) * len(stages), algorithm), problem, data)[-1]
    expected = transform.T @ by_hands.view(len(transform), -1).numpy()
    np.testing.assert_allclose(mine.view(FEATURES, -1), expected, atol=1e-6)
    assert mine.abs().max() > 0.01
    x = torch.from_numpy(data[0][0])
    scores = inner.scores(x @ torch.from_numpy(transform).T, by_hands)
    torch.testing.assert_close(problem.scores(x, mine), scores, atol=1e-6, rtol=0.0)


def test_regulariser_and_constraint_are_of_the_model_on_prepared_features() -> None:
    composite = Composite(l2=0.1, constraint=L2Ball(radius=0.05))
    problem = LogisticRegression(FEATURES, composite=composite)
    data = records(problem)
    transform = by_hand(data, [STANDARDISE])
    by_hands = trained(SGD, problem, [(x @ transform.T, y) for x, y in data])[-1]
    mine = trained(Prepared((STANDARDISE,), (1.0,), SGD), problem, data)[-1]
    assert 0.01 < float(by_hands.norm()) < 0.05  # a mean of iterates in the ball
    np.testing.assert_allclose(mine, transform.T @ by_hands.numpy(), atol=1e-6)


def test_ranges_are_between_quantiles_to_a_bin() -> None:
    rng = np.random.default_rng(0)
    low, high = np.array([-0.9, -0.2, 0.5]), np.array([0.4, 0.3, 0.95])
    x = np.hstack([rng.uniform(low, high, (4000, 3)), np.ones((4000, 1))])
    problem = LogisticRegression(4)
    stage = Ranges(share=0.1, quantiles=(0.05, 0.95), bins=64)
    queries = stage.queries(4, 0.5)
    assert sum(query.noise_ratio**-2 for query in queries) == pytest.approx(0.5**-2)
    algorithm = Prepared((stage,), (1.0,), SGD)
    data = [(x[:1000], rng.integers(2, size=1000)), (x[1000:], rng.integers(2, size=3000))]
    gate = open_gate(data, problem, algorithm)
    server = algorithm.server(torch.zeros(4).double(), problem, public_of((1000, 3000)), rng)
    answers = gate.answer(0, next(server).broadcast)["h"]
    sums = Combined({"h": torch.tensor([0.25, 0.75]).double() @ answers}, 1.0)
    transform = server.send(sums).broadcast["prepared by"].view(4, 4).numpy()
    ends = np.vstack([np.quantile(x[:, :3], stage.quantiles, axis=0).T, np.ones((1, 2))])  # (4, 2)
    a_bin = 2 * (2 / 64) / (high - low).min()
    np.testing.assert_allclose(transform @ ends, [[-1, 1]] * 3 + [[1, 1]], atol=a_bin)
    # Noise of half a per cent of the records in every bin, at which a tenth of its range is 5 % of them.
    noisy = sums["h"] + torch.from_numpy(rng.normal(0, 0.005, sums["h"].shape))
    np.testing.assert_allclose((stage.map(noisy, 4, 0.005).numpy() @ ends)[:3], [[-1, 1]] * 3, atol=0.4)


def test_noise_makes_no_feature_large() -> None:
    """A variance below the noise's standard deviation counts as that; a range has four bins at least."""
    moment = torch.zeros(10).double()
    transform = Standardise(share=0.1, clip=2.0).map(moment, 4, 2**0.5 * 0.5 * 2.0)
    assert float(transform.diagonal()[:3].max()) == pytest.approx((2**0.5 * 0.5 * 2.0) ** -0.5)
    narrow = torch.zeros(3, 64).double()
    narrow[:, 20] = 1.0
    ranges = Ranges(share=0.1).map(narrow.flatten(), 4, 0.0)
    assert float(ranges.diagonal()[:3].max()) == pytest.approx(2 / (4 * 2 / 64))


def test_a_request_that_is_repeated_is_answered_with_the_same_bytes() -> None:
    problem, algorithm = LogisticRegression(FEATURES), Prepared((STANDARDISE, PCA), (1.0, 1.0), SGD)
    gate = open_gate(records(problem), problem, algorithm, epsilon=1.0)
    first = gate.answer(0, {"stage 0": torch.zeros(1).double()})
    again = gate.answer(0, {"stage 0": torch.zeros(1).double()})
    assert torch.equal(first["h"], again["h"])
    assert [statement.rounds for statement in gate.statements()] == [[0]] * 3
    with pytest.raises(Refused):
        gate.answer(0, {"stage 0": torch.ones(1).double()})  # another question in a round that is over
    with pytest.raises(Refused, match="other arrays than stage 1"):
        gate.answer(1, {"stage 0": torch.zeros(1).double()})  # the plan's second round is of the second stage


def test_each_stage_is_sent_the_map_of_those_before_it() -> None:
    problem, algorithm = LogisticRegression(FEATURES), Prepared((STANDARDISE, PCA), (1.0, 1.0), SGD)
    server = algorithm.server(
        torch.zeros(FEATURES).double(), problem, public_of(SIZES), np.random.default_rng(0)
    )
    assert {name: len(value) for name, value in next(server).broadcast.items()} == {"stage 0": 1}
    moment = Combined({"h": torch.zeros(21).double()}, 1.0)
    assert {k: len(v) for k, v in server.send(moment).broadcast.items()} == {"stage 1": FEATURES**2}
    step = server.send(moment)
    assert {k: len(v) for k, v in step.broadcast.items()} == {"w": 4, "prepared by": 4 * FEATURES}
    assert len(step.answer) == FEATURES


def test_a_silo_refuses_a_moment_of_more_numbers_than_its_policy_allows() -> None:
    problem, algorithm = LogisticRegression(FEATURES), Prepared((STANDARDISE,), (1.0,), SGD)
    with pytest.raises(Refused, match="second_moment of dimension 21 exceeds the silo's limit 20"):
        open_gate(records(problem), problem, algorithm, limits=Limits(max_dimension=20))
    open_gate(records(problem), problem, algorithm, limits=Limits(max_dimension=21))


def test_noise_counts_for_more_where_fewer_silos_answer() -> None:
    """The mean over M of N silos, scaled up to all, has noise of sqrt(N / M) times the deviation."""
    problem, stage = LogisticRegression(4), Standardise(share=0.1, clip=2.0)
    public = replace(public_of(SIZES), noise_multipliers=torch.ones(3).double())
    found = []
    for share in (1.0, 0.25):
        algorithm = Prepared((stage,), (3.0,), SGD)
        server = algorithm.server(torch.zeros(4).double(), problem, public, np.random.default_rng(0))
        next(server)
        step = server.send(Combined({"h": torch.tensor([0.0] * 9 + [1.0]).double()}, share))
        found.append(float(step.broadcast["prepared by"][0]) ** -2)
    noise = public.noise(Query("second_moment", (), 2.0, FULL, 3.0))
    assert found == pytest.approx([noise * times for times in (1, 2)])


def test_an_algorithms_own_transform_is_of_prepared_features() -> None:
    asked = []

    def ask(*queries: Query) -> Tensor:
        asked.extend(queries)
        return torch.zeros(1, 4).double()

    class Halving(NoisyMinibatchSGD):
        def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
            half = torch.eye(4).double() / 2
            return {"g": ask(Query("gradient", (broadcast["w"],), 1.0, transform=half))}

    algorithm = Prepared((PCA,), (1.0,), Halving(num_rounds=1, step_size=1.0, clip_norm=1.0))
    transform = torch.arange(4.0 * FEATURES).double()
    memory = CohortMemory(1, FEATURES, torch.float64)
    broadcast = {"w": torch.zeros(4).double(), "prepared by": transform}
    algorithm.silo(LogisticRegression(FEATURES), broadcast, cast(Asker, ask), memory)
    assert torch.equal(asked[0].transform, transform.view(4, FEATURES) / 2)
