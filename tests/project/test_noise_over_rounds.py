"""The page on noise over the rounds: its sensitivities, its strategies and the numbers that it shows."""

import itertools
import re

import numpy as np
import pytest
import torch

from benchmarks.correlated_noise import (
    PAGE,
    by_epsilon,
    deviations,
    falling,
    optimised,
    participations,
    sensitivity,
)

ROUNDS = 6


def moved_most(strategy: torch.Tensor, epochs: int) -> float:
    """By brute force over all patterns, every T / k-th round or some of these, and over signs."""
    found, apart = 0.0, ROUNDS // epochs
    for first, count in itertools.product(range(apart), range(1, epochs + 1)):
        for pattern in itertools.combinations(range(first, ROUNDS, apart), count):
            for signs in itertools.product((1.0, -1.0), repeat=count):
                vector = torch.zeros(ROUNDS, dtype=torch.float64)
                vector[list(pattern)] = torch.tensor(signs, dtype=torch.float64)
                found = max(found, float((strategy @ vector).norm()))
    return found


@pytest.mark.parametrize(("bands", "epochs"), [(1, 2), (2, 1), (2, 3), (3, 2), (6, 2), (None, 1), (None, 6)])
def test_the_sensitivity_is_that_of_brute_force_over_patterns(bands: int | None, epochs: int) -> None:
    cyclic = participations(ROUNDS, epochs)
    strategy = optimised(ROUNDS, cyclic, bands)
    if bands is not None:
        assert torch.equal(strategy, torch.tril(strategy) - torch.tril(strategy, -bands))
    claimed = float(sensitivity(strategy, cyclic))
    assert claimed == pytest.approx(1, rel=1e-9)
    if (bands or ROUNDS) * epochs > ROUNDS:  # rounds of a record overlap: a bound, which signs may not reach
        assert moved_most(strategy, epochs) <= claimed * (1 + 1e-9)
    else:
        assert moved_most(strategy, epochs) == pytest.approx(claimed, rel=1e-6)


def test_the_sensitivity_is_that_of_jax_privacy() -> None:
    peer = pytest.importorskip("jax_privacy.matrix_factorization.sensitivity")
    for bands, epochs in ((2, 1), (2, 3), (3, 2), (None, 3), (None, 6)):
        strategy = optimised(ROUNDS, participations(ROUNDS, epochs), bands)
        theirs = peer.fixed_epoch_sensitivity_for_X((strategy.T @ strategy).numpy(), epochs)
        assert float(theirs) == pytest.approx(1, rel=1e-5)  # theirs may be in float32


def test_an_optimised_strategy_is_better_than_those_around_it() -> None:
    own = participations(ROUNDS, 2)
    strategy = optimised(ROUNDS, own, 3)
    least = deviations(strategy, own)[1]
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        change = torch.randn(ROUNDS, ROUNDS, generator=generator, dtype=torch.float64) * (strategy != 0)
        assert deviations(strategy + 0.05 * change, own)[1] >= least * (1 - 1e-7)


@pytest.mark.parametrize(("bands", "expected"), [(1, 1000.0), (4, 531.0), (10, 376.0)])
def test_one_epoch_of_100_rounds(bands: int, expected: float) -> None:
    own = participations(100, 1)
    strategy = torch.eye(100, dtype=torch.float64) if bands == 1 else optimised(100, own, bands)
    assert deviations(strategy, own)[0] == pytest.approx(expected, rel=0.05)


def test_full_batches_have_less_than_any_strategy() -> None:
    every = participations(100, 100)
    assert deviations(torch.eye(100, dtype=torch.float64), every)[0] == pytest.approx(100)


def test_the_page_shows_what_the_program_finds() -> None:
    text = PAGE.read_text()
    cells = {
        tuple(each.strip() for each in line.split("|")[1:3]): line.split("|")[3:-1]
        for line in text.splitlines()
        if re.match(r"\| (30|100) \| (one|full|\d+ epochs)", line)
    }
    last = {key: [float(cell.split()[0]) for cell in own] for key, own in cells.items()}
    assert last["100", "one epoch"] == pytest.approx([1000, 531, 376, 245, 100], rel=0.05)
    assert falling() in text
    known = {(100, 100): last["100", "full batch"], (100, 10): last["100", "10 epochs"]}
    rows = by_epsilon(known | {(100, 1): last["100", "one epoch"]}).splitlines()
    for ours, shown in zip(rows[2:], _between(text, "epsilon").splitlines()[2:], strict=True):
        assert ours.split("|")[1] == shown.split("|")[1]
        values = [np.array(line.split("|")[2:5], float) for line in (ours, shown)]
        assert values[0] == pytest.approx(values[1], rel=0.01)  # of rounded cells


def _between(text: str, section: str) -> str:
    return text.split(f"<!-- {section} -->\n")[1].split("\n<!-- /")[0]
