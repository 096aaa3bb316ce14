"""The score is the likelihood ratio: compared with densities written down by themselves."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from fedsim.protocol.batch import FULL, Batch, Fresh, Part, Poisson, Subsample, WithReplacement
from fedsim.protocol.contract import Query
from fedsim.testing.attacks.cohorts import Heard
from fedsim.testing.attacks.likelihood import Places, Scores, draws

N, D, Z = 20, 3, 2.0
BATCHES = (FULL, Subsample(0.25), Poisson(0.3), WithReplacement(0.25))


def _chance(batch: Batch, j: int) -> float:
    match batch:
        case Subsample():
            return {0: 15 / 20, 1: 5 / 20}.get(j, 0.0)
        case Poisson():
            return {0: 0.7, 1: 0.3}.get(j, 0.0)
        case WithReplacement():
            return float(stats.binom.pmf(j, 5, 1 / 20))
    return float(j == 1)


def _made(seed: int) -> tuple[Query, torch.Tensor, Places]:
    rng = torch.Generator().manual_seed(seed)
    base, first, second, answer = (
        torch.randn(1, D, generator=rng, dtype=torch.float64) * size for size in (1, 0.1, 0.1, 1)
    )
    return Query("gradient", (), 0.5, FULL, 1.5), answer, Places(base, first, second)


def _normal(made: tuple[Query, torch.Tensor, Places], batch: Batch, moved: torch.Tensor | float) -> float:
    """The density of an answer around its base, moved by so much."""
    query, answer, place = made
    sigma = query.noise_ratio * Z * 2 * float(query.clip) / batch.size(N)
    return float(np.prod(stats.norm.pdf(answer.numpy(), (place.base + moved).numpy(), sigma)))


def _density(batch: Batch, made: list[tuple[Query, torch.Tensor, Places]], world: str) -> float:
    return sum(
        _chance(batch, j) * math.prod(_normal(each, batch, j * getattr(each[2], world)) for each in made)
        for j in range(6)
    )


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.sampler)
def test_two_queries_on_one_draw(batch):
    made = [_made(0), _made(1)]
    queries = tuple(Query(q.statistic, (), q.clip, batch, q.noise_ratio) for q, _, _ in made)
    scores = Scores(1, N, Z)
    scores.add(batch, Heard(queries, tuple(answer for _, answer, _ in made)), [place for _, _, place in made])
    expected = math.log(_density(batch, made, "second") / _density(batch, made, "first"))
    assert scores.ratios()[0] == pytest.approx(expected, rel=1e-9)


def test_asks_add_up():
    batch, scores, expected = Subsample(0.25), Scores(1, N, Z), 0.0
    for seed in range(3):
        query, answer, place = _made(seed)
        scores.add(batch, Heard((Query("gradient", (), 0.5, batch, 1.5),), (answer,)), [place])
        worlds = [_density(batch, [(query, answer, place)], world) for world in ("second", "first")]
        expected += math.log(worlds[0] / worlds[1])
    assert scores.ratios()[0] == pytest.approx(expected, rel=1e-9)


FRESH, PARTS = Fresh(0.3), (Part(0, 0.3), Part(0.5, 1))
ONE_OF = {  # of each answer: its batch and which one that is; of each that a record may be in: its share
    "fresh batches": ([(FRESH, 0), (FRESH, 1)], {0: 0.3, 1: 0.3, None: 0.4}),
    "parts, whose answers add": (
        [(PARTS[0], 0), (PARTS[0], 0), (PARTS[1], 1)],
        {0: 0.3, 1: 0.5, None: 0.2},
    ),
}


@pytest.mark.parametrize(("asked", "shares"), ONE_OF.values(), ids=ONE_OF)
def test_a_record_is_in_one_batch_or_in_none(asked, shares):
    """Where it is in none, or in another one, an answer is that of the first world."""
    scores, made = Scores(1, N, Z), []
    for seed, (batch, which) in enumerate(asked):
        query, answer, place = _made(seed)
        place = Places(place.base, torch.zeros_like(place.first), place.second)
        made.append((which, batch, (query, answer, place)))
        scores.add(batch, Heard((Query("gradient", (), 0.5, batch, 1.5),), (answer,)), [place])
    worlds = {
        where: math.prod(
            _normal(each, batch, each[2].second * (which == where)) for which, batch, each in made
        )
        for where in shares
    }
    total = sum(share * worlds[where] for where, share in shares.items())
    assert scores.ratios()[0] == pytest.approx(math.log(total / worlds[None]), rel=1e-9)


@pytest.mark.parametrize(("batch", "n"), list(product(BATCHES, (20, 40))), ids=str)
def test_draws_are_a_law(batch, n):
    j, log_chance = draws(batch, n)
    assert float(log_chance.exp().sum()) == pytest.approx(1.0, abs=1e-9)
    assert float((j * log_chance.exp()).sum()) == pytest.approx(batch.size(n) / n, rel=1e-6)


def test_an_answer_without_noise_and_without_clip_tells_nothing():
    zero = torch.zeros(1, D, dtype=torch.float64)
    scores = Scores(1, N, Z)
    scores.add(FULL, Heard((Query("gradient", (), 0.0, FULL),), (zero,)), [Places(zero, zero, zero)])
    assert scores.ratios()[0] == 0.0
