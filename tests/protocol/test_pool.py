"""A pool's units and weights: what silos contribute adds up to the server's weighted mean."""

import pickle

import pytest
import torch

from fedsim.common.errors import InputError
from fedsim.protocol.batch import FULL, Batch, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.pool import MOST_RECORDS, Pool
from server.aggregate import coefficients

SIZES = (10, 40, 7, 25, 100)
BATCHES: list[Batch] = [FULL, Subsample(0.3), Fresh(0.2), Poisson(0.13), WithReplacement(0.5)]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("weights", [(1.0,) * 5, (0.1, 2.0, 0.4, 1.0, 3.0), tuple(map(float, SIZES))])
@pytest.mark.parametrize("members", [(0, 1, 2, 3, 4), (1, 3), (2,)])
def test_contributions_decode_to_the_weighted_mean(
    batch: Batch, weights: tuple[float, ...], members: tuple[int, ...]
) -> None:
    """sum_i w_i K_i m_i u N / M is sum_i (N p_i / M) m_i, for any means."""
    pool = Pool(SIZES, weights, 1, 1.0)
    means = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[list(members)]
    wanted = coefficients(torch.tensor(weights, dtype=torch.float64), members, 5) @ means
    sums = [
        mean * batch.size(SIZES[i]) * pool.weight(i, batch) for i, mean in zip(members, means, strict=True)
    ]
    torch.testing.assert_close(
        torch.stack(sums).sum(dim=0) * pool.worth(batch, len(members)), wanted, rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("batch", BATCHES)
def test_weights_are_shares_of_the_heaviest(batch: Batch) -> None:
    pool = Pool(SIZES, (0.1, 2.0, 0.4, 1.0, 3.0), 3, 0.5)
    weights = [pool.weight(i, batch) for i in range(5)]
    assert max(weights) == 1
    assert min(weights) > 0
    assert pool.unit(batch) == max(
        w / sum(pool.weights) / batch.size(n) for w, n in zip(pool.weights, SIZES, strict=True)
    )


def test_the_heaviest_of_several_kinds_counts() -> None:
    pool = Pool((10, 100), (0.5, 0.5), 2, 1.0)
    few = WithReplacement(0.01)  # one record of either silo
    assert pool.weight(1, FULL) == pytest.approx(0.1)
    assert pool.heaviest(1, [FULL, few]) == pool.heaviest(1, [few]) == 1
    assert pool.heaviest(1, []) == 0


def test_it_is_a_value() -> None:
    pool = Pool((10, 100), (0.5, 0.5), 2, 1.0)
    assert pickle.loads(pickle.dumps(pool)) == pool
    assert hash(pool) == hash(Pool((10, 100), (0.5, 0.5), 2, 1.0))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sizes": ()}, "sizes"),
        ({"sizes": (0, 5)}, "sizes"),
        ({"sizes": (1, MOST_RECORDS)}, "sizes"),
        ({"weights": (1.0,)}, "weights"),
        ({"weights": (1.0, 0.0)}, "weights"),
        ({"weights": (1.0, float("nan"))}, "weights"),
        ({"min_silos": 3}, "min_silos"),
        ({"min_silos": 0}, "min_silos"),
        ({"honest_fraction": 0.0}, "honest_fraction"),
        ({"honest_fraction": 1.1}, "honest_fraction"),
    ],
)
def test_other_values_are_refused(change: dict[str, object], named: str) -> None:
    values = {"sizes": (5, 5), "weights": (1.0, 1.0), "min_silos": 2, "honest_fraction": 1.0} | change
    with pytest.raises(InputError, match=f"pool.{named}"):
        Pool(**values)  # type: ignore[arg-type]
