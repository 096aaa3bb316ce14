"""Draws with replacement as the gate makes them, read off noise-free answers."""

import numpy as np
import pytest
import torch
from scipy import stats
from support.helpers import FALSE_ALARM, Silo, asking, open_gate, scripted

from fedsim.problems.glm import LinearRegression
from fedsim.protocol.batch import Batch, Subsample, WithReplacement

N = 10


def drawn(batch: Batch, rounds: int, seed: int = 0) -> np.ndarray:
    """How often each record was used, (rounds, N): record j has feature e_j, so its gradient at 0 is -e_j."""
    gate = open_gate(
        [(np.eye(N), np.ones(N))],
        LinearRegression(N),
        scripted(asking(clip=1e3, batch=batch), rounds),
        epsilon=np.inf,
        seed=seed,
    )
    zero = {"w": torch.zeros(N).double()}
    used = torch.stack([gate.answer(r, zero)["g"][0] for r in range(rounds)]).numpy() * -batch.size(N)
    np.testing.assert_allclose(used, used.round(), atol=1e-12)
    return used.round().astype(int)


def passes(counts: np.ndarray, law: np.ndarray) -> bool:
    """Pearson's chi-square of observed counts against probabilities."""
    return bool(stats.chisquare(counts, law * counts.sum()).pvalue > FALSE_ALARM)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
def test_multiplicities_are_binomial_and_not_those_of_a_subset(fraction: float) -> None:
    rounds, batch = 1500, WithReplacement(fraction)
    used = drawn(batch, rounds)
    k = batch.size(N)
    assert (used.sum(1) == k).all()
    assert passes(used.sum(0), np.full(N, 1 / N))
    # One record's multiplicity is binomial; the rounds are independent.
    most = min(k, 3)
    law = stats.binom.pmf(np.arange(most + 1), k, 1 / N)
    law[-1] += stats.binom.sf(most, k, 1 / N)
    for record in (0, 4, N - 1):
        assert passes(np.bincount(np.minimum(used[:, record], most), minlength=most + 1), law)
    if k > 1:
        subset = drawn(Subsample(fraction), rounds)
        assert not passes(np.bincount(subset[:, 0], minlength=most + 1), law)


def test_the_draws_of_one_batch_are_independent() -> None:
    """With two draws each of the N^2 ordered pairs is as likely: equal pairs have chance 1 / N."""
    used = drawn(WithReplacement(0.2), 2000)
    twice = int((used.max(1) == 2).sum())
    assert stats.binomtest(twice, 2000, 1 / N).pvalue > FALSE_ALARM
    assert stats.binomtest(2 * twice, 2000, 1 / N).pvalue < FALSE_ALARM


def test_one_draw_is_a_subset_of_one() -> None:
    np.testing.assert_array_equal(drawn(WithReplacement(0.1), 50), drawn(Subsample(0.1), 50))


@pytest.mark.parametrize("clip", [0.7, 3.0])
def test_a_record_drawn_j_times_moves_the_answer_by_2cj_over_k_and_no_more(clip: float) -> None:
    """Every record of a silo against long, short and broken replacements, on the same draws of the batch."""
    rounds, batch = 6, WithReplacement(0.8)
    times, k = drawn(batch, rounds), batch.size(N)
    assert times.max() >= 3
    zero = {"w": torch.zeros(3).double()}

    def answers(silo: Silo) -> torch.Tensor:
        algorithm = scripted(asking(clip=clip, batch=batch), rounds)
        gate = open_gate([silo], LinearRegression(3), algorithm, epsilon=np.inf)
        return torch.stack([gate.answer(r, zero)["g"][0] for r in range(rounds)])

    x, y = np.tile([1e6, 0.0, 0.0], (N, 1)), np.ones(N)
    before = answers((x, y))
    for i in range(N):
        bound = 2 * clip * times[:, i] / k
        for row in ([-1e6, 0.0, 0.0], [0.0, 1e9, 0.0], [0.0] * 3, [np.nan] * 3, [1e-3, 2.0, np.inf]):
            changed = x.copy()
            changed[i] = row
            moved = (answers((changed, y)) - before).norm(dim=-1).numpy()
            assert np.all(moved <= bound * (1 + 1e-9) + 1e-12)
            if row[0] == -1e6:
                np.testing.assert_allclose(moved, bound, rtol=1e-6, atol=1e-12)
