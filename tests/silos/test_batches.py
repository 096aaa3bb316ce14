"""Which records a silo uses, read off the answers.

Record j has feature e_j and target 1, so at w = 0 its gradient is -e_j: the un-noised answer times -K
is the indicator of the batch.
"""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats
from support.helpers import FALSE_ALARM, alike, asking, divisor, open_gate, scripted

from fedsim.common.errors import InputError, Refused
from fedsim.privacy.registry import GAUSSIAN
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.batch import FULL, Batch, Fresh, Full, Part, Poisson, Subsample, WithReplacement
from fedsim.protocol.contract import Query
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Plan, QueryShape, Terms
from silos.front.served import Served
from silos.vault.admission import admit

N = 10


def _gate(batches: list[Batch], rounds: int, sizes: tuple[int, ...] = (N,), seed: int = 0) -> Served:
    """Silos whose answers show their batches, with one ask for each of `batches` every round."""

    def half(w, ask, memory):
        return {str(a): ask(Query("gradient", (w,), 1e3, batch)) for a, batch in enumerate(batches)}

    width = max(sizes)
    data = [(np.eye(n, width), np.ones(n)) for n in sizes]
    return open_gate(data, LinearRegression(width), scripted(half, rounds), epsilon=np.inf, seed=seed)


def _drawn(gate: Served, batches: list[Batch], rounds: list[int], n: int = N, member: int = 0) -> np.ndarray:
    """(rounds, asks, n): 1 for a record that was used."""
    return _drawn_by_all(gate, batches, rounds, n)[member]


def _drawn_by_all(gate: Served, batches: list[Batch], rounds: list[int], n: int = N) -> np.ndarray:
    """(silos, rounds, asks, n)"""
    replies = [gate.answer(r, {"w": torch.zeros(n).double()}) for r in rounds]
    taken = [
        torch.stack([reply[str(a)][:, :n] * -divisor(batch, n) for a, batch in enumerate(batches)], 1)
        for reply in replies
    ]
    used = torch.stack(taken, 1).numpy()
    np.testing.assert_allclose(used, used.round(), atol=1e-12)
    return used.round().astype(int)


def _times_drawn(batch: Batch, batches: int) -> np.ndarray:
    """How often each record was used, (batches, N): by several silos in 10 rounds each."""
    gate = _gate([batch], 10, (N,) * (batches // 10))
    return _drawn_by_all(gate, [batch], list(range(10))).reshape(batches, N)


def _passes(observed: np.ndarray, expected: np.ndarray, scale: float = 1.0) -> bool:
    """Pearson's chi-square; `scale` corrects for draws without replacement within a batch."""
    statistic = float(((observed - expected) ** 2 / expected).sum()) * scale
    return bool(stats.chi2.sf(statistic, len(observed) - 1) > FALSE_ALARM)


def test_full_uses_every_record_once():
    assert (_drawn(_gate([FULL], 2), [FULL], [0, 1]) == 1).all()


@pytest.mark.parametrize(
    "batch", [Subsample(0.3), Subsample(0.1), Subsample(0.01), Subsample(0.95)], ids=repr
)
def test_subsample_draws_k_distinct_records_uniformly(batch):
    rounds = 1200
    used = _times_drawn(batch, rounds)
    k = batch.size(N)
    assert set(used.ravel()) <= {0, 1}
    assert (used.sum(1) == k).all()
    if k < N:
        # Counts of a K-subset have variance m q (1 - q) and sum to m K: (N-1)/N corrects the statistic.
        expected = np.full(N, rounds * k / N)
        scale = (N - 1) / N / (1 - k / N)
        assert _passes(used.sum(0), expected, scale)
        skewed = used.sum(0) + np.where(np.arange(N) == 0, 0.6 * rounds * k / N, 0)
        assert not _passes(skewed, expected, scale)


def test_subsample_draws_every_pair_of_records_alike():
    rounds, batch = 1500, Subsample(0.2)
    used = _times_drawn(batch, rounds)
    pairs = np.array([(used[:, i] & used[:, j]).sum() for i, j in combinations(range(N), 2)])
    assert _passes(pairs, np.full(45, rounds / 45))


@pytest.mark.parametrize("batch", [Subsample(0.3), Poisson(0.3)], ids=repr)
def test_every_ask_has_a_draw_of_its_own(batch):
    """Within a round and across rounds: two draws overlap as independent ones do."""
    rounds, silos = 50, 20
    used = _drawn_by_all(_gate([batch, batch], rounds, (N,) * silos), [batch, batch], list(range(rounds)))
    first, second = used[:, :, 0], used[:, :, 1]
    law = stats.hypergeom(N, 3, 3) if isinstance(batch, Subsample) else stats.binom(N, 0.09)
    chances = law.pmf(np.arange(4))
    chances[-1] += law.sf(3)

    def overlaps(one: np.ndarray, other: np.ndarray) -> bool:
        counts = np.bincount(np.minimum((one & other).sum(-1), 3).ravel(), minlength=4)
        return _passes(counts, counts.sum() * chances)

    assert overlaps(first, second)
    assert overlaps(first[:, 1:], first[:, :-1])
    assert overlaps(second[:, :-1], first[:, 1:])
    assert not overlaps(first, first)


def test_one_ask_answers_all_its_queries_on_one_draw():
    batch = Subsample(0.3)

    def half(w, ask, memory):
        query = Query("gradient", (w,), 1e3, batch)
        one, other = ask(query, query)
        return {"one": one, "other": other}

    data = [(np.eye(N), np.ones(N))]
    gate = open_gate(data, LinearRegression(N), scripted(half, 20), epsilon=np.inf)
    for r in range(20):
        reply = gate.answer(r, {"w": torch.zeros(N).double()})
        assert torch.equal(reply["one"], reply["other"])


@pytest.mark.parametrize("q", [0.05, 0.4])
def test_poisson_includes_each_record_on_its_own_with_its_fraction(q):
    rounds, batch = 1500, Poisson(q)
    used = _times_drawn(batch, rounds)
    counts = used.sum(0)
    for count in counts:
        assert stats.binomtest(int(count), rounds, q).pvalue > FALSE_ALARM / N
    assert stats.binomtest(int(counts[0] * 2), rounds, q).pvalue < FALSE_ALARM
    sizes = np.bincount(used.sum(1), minlength=N + 1)
    expected = rounds * stats.binom(N, q).pmf(np.arange(N + 1))
    keep = expected > 5
    kept, rest = sizes[keep], sizes[~keep].sum()
    assert _passes(np.append(kept, rest), np.append(expected[keep], expected[~keep].sum()))


def test_an_empty_poisson_batch_is_answered_with_zero():
    batch = Poisson(0.01)
    used = _drawn(_gate([batch], 20), [batch], list(range(20)))
    assert (used.sum(-1) == 0).any()


def test_silos_draw_independently():
    batch = Subsample(0.3)
    used = _drawn_by_all(_gate([batch], 50, (N,) * 40), [batch], list(range(50)))
    overlap = np.bincount((used[::2] & used[1::2]).sum(-1).ravel(), minlength=4)
    assert _passes(overlap, 1000 * stats.hypergeom(N, 3, 3).pmf(np.arange(4)))


@pytest.mark.parametrize("seed", range(3))
def test_fresh_batches_are_disjoint_over_a_run(seed):
    batches: list[Batch] = [Fresh(0.2), Fresh(0.1)]
    used = _drawn(_gate(batches, 3, seed=seed), batches, [0, 1, 2])
    assert (used.sum(-1) == [[2, 1]] * 3).all()
    assert used.sum((0, 1)).max() == 1
    assert used.sum() == 9


def test_fresh_batches_are_addressed_by_the_plan_and_not_by_a_cursor():
    """Rounds answered out of order, again, or by part of the cohort reach the same records."""
    batches: list[Batch] = [Fresh(0.2), Full(), Fresh(0.1)]
    forward = _drawn(_gate(batches, 3), batches, [0, 1, 2])
    backward = _drawn(_gate(batches, 3), batches, [2, 0, 1])
    np.testing.assert_array_equal(backward, forward[[2, 0, 1]])
    gate = _gate(batches, 3, (N, N))
    zero = {"w": torch.zeros(N).double()}
    gate.answer(0, zero, [1])
    late = _drawn(gate, batches, [1, 2], member=0)
    np.testing.assert_array_equal(late, forward[1:])


def test_parts_are_the_same_records_in_every_round_and_disjoint():
    batches: list[Batch] = [Part(0, 0.3), Part(0.3, 0.45), Part(0.5, 1), Part(0, 0.3)]
    used = _drawn(_gate(batches, 3), batches, [2, 0, 1])
    assert (used == used[0]).all()
    assert used[0].sum(-1).tolist() == [3, 1, 5, 3]
    assert (used[0, 0] == used[0, 3]).all()
    assert used[0, :3].sum(0).max() == 1


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        ([Part(0, 0.5), Part(0.4, 1)], "from 0 to 0.5 and from 0.4 to 1 overlap"),
        ([Part(0, 0.5), Part(0, 1)], "overlap"),
        ([Part(0, 0.5), Fresh(0.1)], "fresh batches and parts"),
        ([Part(0.51, 0.59)], "from 0.51 to 0.59 holds none of the silo's 10 units"),
    ],
)
def test_parts_that_overlap_or_are_empty_are_refused_with_the_silos_name(batches, why):
    with pytest.raises(Refused, match=f"silo 'silo0'.*{why}"):
        _gate(batches, 1)
    query = (QueryShape("gradient", 1, 1.0),)
    plan = Plan((tuple(Ask(batch, query) for batch in batches),))
    with pytest.raises(Refused, match=f"silo 'a': .*{why}"):
        admit(plan, [Terms("a", N, 1.0, 1e-5, [0])], GAUSSIAN, LIMITS)


def test_a_fresh_permutation_puts_every_record_everywhere():
    used = _drawn_by_all(_gate([Fresh(0.1)], 1, (N,) * 600), [Fresh(0.1)], [0])
    assert _passes(used.sum((0, 1, 2)), np.full(N, 60.0))


def test_fresh_batches_that_overdraw_the_data_are_refused():
    _gate([Fresh(0.25)], 5)
    with pytest.raises(Refused, match="need 12 units, the silo has 10"):
        _gate([Fresh(0.25)], 6)
    with pytest.raises(Refused):
        open_gate([(np.eye(N), np.ones(N))], LinearRegression(N), scripted(asking(batch=Fresh(0.25)), 6))


def test_only_a_silos_own_rounds_draw_on_its_data():
    algorithm = scripted(asking(clip=1e3, batch=Fresh(0.5)), 6)
    data = [(np.eye(N), np.ones(N))]
    gate = open_gate(data, LinearRegression(N), algorithm, epsilon=np.inf, rounds=[[1, 4]])
    zero = {"w": torch.zeros(N).double()}
    used = torch.stack([gate.answer(r, zero)["g"][0] for r in (1, 4)]) * -5
    np.testing.assert_allclose(used.sum(0), 1, atol=1e-12)


@pytest.mark.parametrize("batch", [Subsample(0.3), WithReplacement(0.3), Poisson(0.3), Fresh(0.1)], ids=repr)
def test_a_round_answered_again_uses_the_same_records(batch):
    ordered = _drawn(_gate([batch], 3), [batch], [0, 1, 2])
    alone = _drawn(_gate([batch], 3), [batch], [1])
    np.testing.assert_array_equal(alone[0], ordered[1])


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.0001, np.nan, np.inf])
@pytest.mark.parametrize("kind", [Subsample, WithReplacement, Poisson, Fresh])
def test_a_fraction_lies_above_0_and_at_most_at_1(kind, fraction):
    with pytest.raises(ValueError, match="fraction"):
        kind(fraction)


def test_k_by_hand():
    assert [Subsample(q).size(10) for q in (0.01, 0.24, 0.26, 1.0)] == [1, 2, 3, 10]
    assert [WithReplacement(q).size(10) for q in (0.01, 0.24, 0.26, 1.0)] == [1, 2, 3, 10]
    assert [Fresh(q).size(30) for q in (0.001, 0.1, 0.19, 1.0)] == [1, 3, 5, 30]
    assert Poisson(0.25).size(10) == 2.5
    assert Full().size(7) == 7
    assert [Part(0.1, stop).size(30) for stop in (0.2, 0.19, 1.0)] == [3, 2, 27]


@pytest.mark.parametrize(("start", "stop"), [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0.5, 1.1), (np.nan, 1)])
def test_a_part_begins_before_it_ends(start, stop):
    with pytest.raises(InputError, match=r"^stop: "):
        Part(start, stop)


# Draws with replacement.


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
def test_multiplicities_are_binomial_and_not_those_of_a_subset(fraction):
    rounds, batch = 1500, WithReplacement(fraction)
    used = _times_drawn(batch, rounds)
    k = batch.size(N)
    assert (used.sum(1) == k).all()
    assert _passes(used.sum(0), np.full(N, used.sum() / N))
    # One record's multiplicity is binomial; the rounds are independent.
    most = min(k, 3)
    law = stats.binom.pmf(np.arange(most + 1), k, 1 / N)
    law[-1] += stats.binom.sf(most, k, 1 / N)
    for record in (0, 4, N - 1):
        assert _passes(np.bincount(np.minimum(used[:, record], most), minlength=most + 1), rounds * law)
    if k > 1:
        subset = _times_drawn(Subsample(fraction), rounds)
        assert not _passes(np.bincount(subset[:, 0], minlength=most + 1), rounds * law)


def test_the_draws_of_one_batch_are_independent():
    """With two draws each of the N^2 ordered pairs is as likely: equal pairs have chance 1 / N."""
    used = _times_drawn(WithReplacement(0.2), 2000)
    twice = int((used.max(1) == 2).sum())
    assert stats.binomtest(twice, 2000, 1 / N).pvalue > FALSE_ALARM
    assert stats.binomtest(2 * twice, 2000, 1 / N).pvalue < FALSE_ALARM


def test_one_draw_is_a_subset_of_one():
    np.testing.assert_array_equal(_times_drawn(WithReplacement(0.1), 50), _times_drawn(Subsample(0.1), 50))


@pytest.mark.parametrize("clip", [0.7, 3.0])
def test_a_record_drawn_j_times_moves_the_answer_by_2cj_over_k_and_no_more(clip):
    """Every record of a silo against long, short and broken replacements, on the same draws of the batch."""
    rounds, batch = 6, WithReplacement(0.8)
    times, k = _drawn(_gate([batch], rounds), [batch], list(range(rounds)))[:, 0], batch.size(N)
    assert times.max() >= 3
    x, zeros = np.tile([1e6, 0.0, 0.0], (N, 1)), [torch.zeros(3).double()] * rounds
    rows = ([-1e6, 0.0, 0.0], [0.0, 1e9, 0.0], [0.0] * 3, [np.nan] * 3, [1e-3, 2.0, np.inf])
    changed = [np.concatenate([x[:i], [row], x[i + 1 :]]) for i in range(N) for row in rows]
    silos = [(each, np.ones(N)) for each in (x, *changed)]
    answers = alike(silos, LinearRegression(3), scripted(asking(clip=clip, batch=batch), rounds), *zeros)
    moved = (answers[:, 1:] - answers[:, :1]).norm(dim=-1).unflatten(1, (N, len(rows))).numpy()
    bound = 2 * clip * times / k
    assert np.all(moved <= bound[..., None] * (1 + 1e-9) + 1e-12)
    np.testing.assert_allclose(moved[..., 0], bound, rtol=1e-6, atol=1e-12)
