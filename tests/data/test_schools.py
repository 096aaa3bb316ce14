"""The synthetic schools: their shape, and how far one school is from another."""

from itertools import pairwise

import numpy as np
import pytest

from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.federation import load, outline
from fedsim.data.schools import CATEGORIES, Schools
from fedsim.protocol.unit import RECORD


def test_they_have_the_shape_of_the_school_data_set() -> None:
    data = Schools(test_fraction=0.0)
    sizes = outline(data, NaturalIdPartition(), 0, RECORD).sizes
    assert (len(sizes), min(sizes.values()), max(sizes.values())) == (139, 22, 251)
    silos = load(data, NaturalIdPartition(), 0, 0, RECORD).silos
    x = np.vstack([silo.train.features for silo in silos])
    y = np.concatenate([silo.train.target for silo in silos])
    assert x.shape == (sum(sizes.values()), 28)
    assert (x.min(), x.max(), y.min(), y.max()) == (pytest.approx(-1, abs=0.05), 1, 0, 1)
    assert set(np.unique(x[:, 2:])) == {0, 1}
    ends = np.cumsum([2, *CATEGORIES.values()])
    assert all((x[:, a:b].sum(axis=1) == 1).all() for a, b in pairwise(ends))


@pytest.mark.parametrize(("own", "alike"), [(0.0, True), (0.05, False)])
def test_schools_are_as_different_as_is_asked(own: float, alike: bool) -> None:
    """The mean residual of a school about the best model of all: noise alone gives .14^2 / n_i."""
    silos = load(Schools(own=own, test_fraction=0.0), NaturalIdPartition(), 0, 0, RECORD).silos
    x = np.vstack([silo.train.features for silo in silos])
    w = np.linalg.lstsq(x, np.concatenate([silo.train.target for silo in silos]), rcond=None)[0]
    means = [(silo.train.target - silo.train.features @ w).mean() for silo in silos]
    by_noise = np.mean([0.14**2 / len(silo.train.target) for silo in silos])
    assert (np.mean(np.square(means)) < 1.5 * by_noise) == alike
