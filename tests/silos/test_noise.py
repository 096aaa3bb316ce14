"""The noise of a gate's answers against the sigma that it claims."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from support.helpers import (
    DELTA,
    FALSE_ALARM,
    Silo,
    divisor,
    open_gate,
    problems,
    public_of,
    scripted,
    silos_of,
)
from torch import Tensor

from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.glm import LinearRegression, LogisticRegression
from fedsim.protocol.batch import FULL, Batch, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.contract import Asker, Memory, Public, Query, Round, ServerHalf
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import Limits
from silos.vault.entropy import Noise, SeededEntropy

D = 300
ROUNDS = 5
CLIPS = (1.0, 0.25, 3.0)
RATIOS = (1.0, 2.0, 0.5)


def _half_on(batch: Batch) -> object:
    """Three queries a round, the first two on one draw of the batch."""

    def half(w, ask, memory):
        a, b = ask(
            Query("gradient", (w,), CLIPS[0], batch, RATIOS[0]),
            Query("gradient", (w + 1,), CLIPS[1], batch, RATIOS[1]),
        )
        c = ask(Query("gradient_difference", (w, w + 1), CLIPS[2], batch, RATIOS[2]))
        return {"a": a, "b": b, "c": c}

    return half


def _answers(data: list[Silo], batch: Batch, epsilon: float | list[float]) -> tuple[Tensor, list[float]]:
    """(rounds, queries, silos, d), and the silos' noise multipliers."""
    problem = LogisticRegression(D)
    gate = open_gate(data, problem, scripted(_half_on(batch), ROUNDS), epsilon=epsilon)
    zero = {"w": torch.zeros(D, dtype=torch.float64)}
    replies = [gate.answer(r, zero) for r in range(ROUNDS)]
    stacked = torch.stack([torch.stack([reply[name] for name in "abc"]) for reply in replies])
    return stacked, [admitted.noise_multiplier for admitted in gate.admitted]


def _standardised(batch: Batch, sizes: list[int], epsilon: list[float]) -> np.ndarray:
    """(answer - un-noised answer) / (noise_ratio z 2C / K), in the shape of `_answers`."""
    data = silos_of(LogisticRegression(D), sizes)
    noisy, multipliers = _answers(data, batch, epsilon)
    clean, silent = _answers(data, batch, math.inf)
    assert silent == [0.0] * len(sizes)
    sigma = [
        [ratio * z * 2 * clip / divisor(batch, n) for n, z in zip(sizes, multipliers, strict=True)]
        for ratio, clip in zip(RATIOS, CLIPS, strict=True)
    ]
    return (noisy - clean).numpy() / np.array(sigma)[None, :, :, None]


def _passes_ks(sample: np.ndarray) -> bool:
    return bool(stats.kstest(sample.ravel(), "norm").pvalue > FALSE_ALARM)


def _passes_variance(sample: np.ndarray) -> bool:
    """Two-sided chi-square test of variance 1 about mean 0."""
    total, count = float((sample**2).sum()), sample.size
    return bool(2 * min(stats.chi2.cdf(total, count), stats.chi2.sf(total, count)) > FALSE_ALARM)


@pytest.mark.parametrize(
    ("batch", "sizes", "epsilon"),
    [
        (FULL, [5, 9, 40, 160], [0.3, 8.0, 1.0, 2.0]),
        (Fresh(0.05), [40, 55, 70, 160], [0.3, 8.0, 1.0, 2.0]),
        (Subsample(0.3), [20, 20, 20, 20], [2.0] * 4),
        (WithReplacement(0.3), [20, 20, 20, 20], [2.0] * 4),
        (Poisson(0.3), [20, 20, 20, 20], [2.0] * 4),
    ],
    ids=["full", "fresh", "subsample", "with_replacement", "poisson"],
)
def test_noise_is_gaussian_with_the_claimed_sigma(batch, sizes, epsilon):
    """Each test passes by chance on wrong noise, and fails on right noise, with probability 1e-6 at most."""
    sample = _standardised(batch, sizes, epsilon)
    assert _passes_ks(sample)
    assert _passes_variance(sample)
    for wrong in (2 / 3, 3 / 2):
        assert not _passes_ks(sample * wrong)
    for wrong in (2 / 3, 1 / 1.1, 1.1, 3 / 2):
        assert not _passes_variance(sample * wrong)
    # Silo by silo and query by query too: errors that cancel in the whole would show here.
    for part in [*np.moveaxis(sample, 2, 0), *np.moveaxis(sample, 1, 0)]:
        assert _passes_variance(part)
        assert not _passes_variance(part * 1.5)
        assert not _passes_variance(part / 1.5)


def test_noise_is_what_the_budget_demands():
    """sigma measured against sigma solved from the Gaussian profile, neither by the code under test.

    R full gradients of clip C make one Gaussian release of mu = sqrt(R) 2C / (n sigma).
    """
    n, clip, rounds, epsilon = 25, 0.8, 40, 1.5
    problem = LogisticRegression(D)
    algorithm = NoisyMinibatchSGD(rounds, 0.1, clip)
    data = silos_of(problem, [n])
    zero = {"w": torch.zeros(D, dtype=torch.float64)}
    noisy, clean = (open_gate(data, problem, algorithm, epsilon=e) for e in (epsilon, math.inf))
    noise = np.concatenate([(noisy.answer(r, zero)["g"] - clean.answer(r, zero)["g"]) for r in range(rounds)])

    def excess(mu):
        upper, lower = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(stats.norm.cdf(upper) - math.exp(epsilon) * stats.norm.cdf(lower) - DELTA)

    sigma = math.sqrt(rounds) * 2 * clip / (n * optimize.brentq(excess, 1e-3, 10))
    assert _passes_variance(noise / sigma)
    assert not _passes_variance(noise / sigma * 1.05)
    assert not _passes_variance(noise / sigma / 1.05)


def _uncorrelated(rows: np.ndarray) -> bool:
    """Whether no two rows correlate more than the largest of all pairs would by chance."""
    correlation = np.corrcoef(rows)[np.triu_indices(len(rows), 1)].clip(-0.999999, 0.999999)
    largest = float(np.abs(np.arctanh(correlation)).max()) * math.sqrt(rows.shape[1] - 3)
    return largest < stats.norm.isf(FALSE_ALARM / 2 / len(correlation))


def test_noise_is_independent_across_silos_rounds_and_queries():
    rows = _standardised(FULL, [5, 9, 40, 160], [0.3, 8.0, 1.0, 2.0]).reshape(-1, D)
    assert _uncorrelated(rows)
    assert not _uncorrelated(np.vstack([rows, rows[7]]))
    assert not _uncorrelated(np.vstack([rows, -rows[7]]))
    assert not _uncorrelated(np.vstack([rows, rows[7] + rows[20]]))
    # A stream read with an offset would correlate only when shifted.
    shifted = np.stack([np.roll(row, k) for k, row in enumerate(rows)])
    assert _uncorrelated(shifted)


@dataclass(frozen=True)
class Uneven:
    """1, 2, 3, 1, 2, 3, .. gradients in its rounds, all of them sent; round r broadcasts r."""

    num_rounds: int

    def server(self, w: Tensor, problem: Any, public: Public, rng: np.random.Generator) -> ServerHalf:
        for r in range(self.num_rounds):
            yield Round({"w": torch.full_like(w, r)}, answer=w)
        return w

    def silo(
        self, problem: Any, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        w = broadcast["w"]
        return {str(k): ask(Query("gradient", (w,), 1.0)) for k in range(int(w[0]) % 3 + 1)}


def _uneven(
    visits: Iterable[tuple[int, list[int]]],
    dimension: int,
    rounds: int,
    names: str = "abc",
    dtype: torch.dtype = torch.float64,
) -> dict[Any, Tensor]:
    """{(round, silo, query): its noise}, on silos of zeros that are visited as told."""
    data = [(np.zeros((n, dimension)), np.zeros(n)) for n in ({"a": 3, "b": 3, "c": 9}[s] for s in names)]
    gate = open_gate(data, LinearRegression(dimension), Uneven(rounds), names=list(names), dtype=dtype)
    noise = {}
    for r, members in visits:
        reply = gate.answer(r, {"w": torch.full((dimension,), r, dtype=dtype)}, members)
        for row, member in enumerate(members):
            noise |= {(r, names[member], k): value[row] for k, value in reply.items()}
    return noise


@pytest.mark.parametrize(
    ("dimension", "rounds"),
    [(1, 130), pytest.param(1, 700, marks=pytest.mark.slow), (5, 150), (340, 6), (342, 6), (2000, 4)],
)
def test_no_noise_is_used_twice(dimension, rounds):
    """Nor does it depend on the order of the rounds, or on which silos are asked or held together."""
    forward = _uneven([(r, [0, 1, 2]) for r in range(rounds)], dimension, rounds)
    everything = torch.cat(list(forward.values()))
    assert len(everything) == 3 * dimension * sum(r % 3 + 1 for r in range(rounds))
    assert len((everything / everything.abs().mean()).unique()) == len(everything)
    backward = _uneven(
        [(r, part) for part in ([1], [0, 2]) for r in reversed(range(rounds))], dimension, rounds
    )
    mixed = _uneven([(r, [s]) for r in range(rounds) for s in (2, 0, 1)], dimension, rounds)
    alone = {}
    for name in "abc":
        alone |= _uneven([(r, [0]) for r in range(rounds)], dimension, rounds, name)
    for other in (backward, mixed, alone):
        assert other.keys() == forward.keys()
        assert all(torch.equal(other[place], value) for place, value in forward.items())


@pytest.mark.parametrize(("dimension", "dtype"), [(600, torch.float64), (601, torch.float32)])
@pytest.mark.parametrize("ahead", [1, 2000, 5000])
def test_noise_does_not_depend_on_how_far_ahead_it_is_drawn(ahead, dimension, dtype, monkeypatch):
    """Nor on which silos are asked together; float32 numbers are drawn in pairs, here with one to spare."""
    visits = [(r, [0, 1, 2]) for r in range(3)]
    expected = _uneven(visits, dimension, 3, dtype=dtype)
    monkeypatch.setattr("silos.vault.entropy._AHEAD", ahead)
    for visited in (visits, [(r, [s]) for r in (2, 0, 1) for s in (1, 2, 0)]):
        found = _uneven(visited, dimension, 3, dtype=dtype)
        assert all(torch.equal(found[place], value) for place, value in expected.items())
    answers = torch.cat([value / value.norm() for value in expected.values()])
    assert len(answers.unique()) > 0.99 * len(answers)


def test_noise_does_not_depend_on_how_much_of_a_block_is_kept(monkeypatch):
    """Blocks of 85 rounds, 12 numbers each, in parts of 22 (the last of 19); out of order, silo by silo."""
    forward = [(r, [0, 1, 2]) for r in range(90)]
    expected = _uneven(forward, 4, 90)
    monkeypatch.setattr("silos.vault.entropy._KEPT", 1)
    monkeypatch.setattr("silos.vault.entropy._TOGETHER", 2)
    for visits in (forward, forward[::-1], [(r, [s]) for r in range(90) for s in (2, 0, 1)]):
        found = _uneven(visits, 4, 90)
        assert all(torch.equal(found[place], value) for place, value in expected.items())


def test_few_silos_of_many_draw_what_they_draw_with_all():
    """Whose numbers are not kept, since they are hardly asked for again in a part of a block."""
    names, rounds = [f"silo{i}" for i in range(3000)], 40
    plan = dry_run(NoisyMinibatchSGD(rounds, 0.1, 1.0), LinearRegression(4), public_of([3]), 0, Limits()).plan

    def noise() -> Noise:
        entropy = SeededEntropy(0, 0, names, ["run"] * 3000)
        return Noise(GAUSSIAN, entropy, plan, 3000, lambda query: 4, torch.float64)

    everyone, few = noise(), noise()
    for r in (0, 1, 39, 7):
        expected = everyone.round(range(3000), r).next()
        for members in ([2999], [5, 77, 1500]):
            assert torch.equal(few.round(members, r).next(), expected[members])
    assert few._values.size == 0


def test_clip_zero_releases_zeros():
    """No record can add anything, so no noise is needed; not even a sign of zero tells them apart."""
    problem = problems(3)["logistic"]
    half_of = {"clip": 1.0}

    def half(w, ask, memory):
        return {"g": ask(Query("gradient", (w,), half_of["clip"], FULL))}

    for n in (1, 2, 6):
        (silo,) = silos_of(problem, [n])
        gate = open_gate([silo], problem, scripted(half))
        half_of["clip"] = 0.0
        answer = gate.answer(0, {"w": torch.ones(3, dtype=torch.float64)})["g"]
        half_of["clip"] = 1.0
        assert answer.tolist() == [[0.0] * 3]


def test_float32_answers_carry_float64_noise_rounded_once():
    problem = LinearRegression(4)
    data = [(np.zeros((3, 4)), np.zeros(3))]
    algorithm = NoisyMinibatchSGD(2, 0.1, 1.0)
    plan = dry_run(algorithm, problem, public_of([3]), 0, Limits()).plan
    half, whole = (
        open_gate(data, problem, algorithm, dtype=dtype, plan=plan).answer(
            0, {"w": torch.zeros(4, dtype=dtype)}
        )["g"]
        for dtype in (torch.float32, torch.float64)
    )
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), whole, rtol=1e-6, atol=0)
