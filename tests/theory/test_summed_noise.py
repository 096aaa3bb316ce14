"""The noise of secure aggregation as theorems see it: by hand, as it is added, and as a run plans it."""

import numpy as np
import pytest
import torch
from support.scenarios import once

from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.summed_gaussian import SummedGaussian
from fedsim.protocol.batch import FULL
from fedsim.protocol.pool import Pool
from fedsim.protocol.statistics import Extent
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import preview
from fedsim.theory.averaged_noise import Kind, SummedNoise, averaged_noise
from fedsim.theory.participants import Participants, law
from fedsim.theory.symbols import Constants, Premises

PLAN = [Kind(FULL, 9)]


def noise(
    claims: list[Budget], weights: list[float], participants: Participants = None, least: int = 4,
    honest: float = 1.0, dimension: int = 20_000, aggregators: float = 0.0,
) -> SummedNoise:  # fmt: skip
    names, N = tuple(map(str, range(len(claims)))), len(claims)
    share = tuple(weight / sum(weights) for weight in weights)
    premises = Premises(names, tuple(claims), share, participants, dimension, Constants())
    by = "aggregators" if aggregators else "silos"
    mechanism = SummedGaussian(Extent(dimension, dimension), least, honest, by)
    pool = Pool(tuple(claim.n for claim in claims), share, least, honest)
    each = 0.0 if aggregators else 1 / (honest * least)
    return SummedNoise(averaged_noise(premises), mechanism, pool, law(participants, N), each, aggregators)


ALIKE = [Budget(50, 1.0, 1e-6)] * 8


def central(records: int, clip: float) -> float:
    """Variance of a trusted server's noise on the mean of all records, in 9 rounds."""
    return float(3 * 2 * clip / records / gaussian.mu(1.0, 1e-6)) ** 2


def test_with_every_silo_honest_it_is_a_trusted_servers() -> None:
    found = noise(ALIKE, [1.0] * 8, least=8).variance(2.0, PLAN[0], PLAN)
    assert found == pytest.approx(central(400, 2.0), rel=1e-3)  # but for the rounding of the sensitivity


def test_an_honest_fraction_and_drawn_silos_divide_it() -> None:
    # 4 of 8 in a round, and 2 of the 4 honest: noise of 1/2 a silo, on a mean over 4, but each is in
    # 1 + 8/2 = 5 of 9 rounds.
    found = noise(ALIKE, [1.0] * 8, participants=4, least=4, honest=0.5).variance(2.0, PLAN[0], PLAN)
    assert found == pytest.approx(central(200, 2.0) * 2 * 5 / 9, rel=1e-3)


def test_two_aggregators_add_two_full_shares() -> None:
    found = noise(ALIKE, [1.0] * 8, least=8, aggregators=2.0).variance(2.0, PLAN[0], PLAN)
    assert found == pytest.approx(2 * central(400, 2.0), rel=1e-3)


def test_silos_that_differ_share_the_noise_of_the_loosest_and_heaviest() -> None:
    # Records of the first silo weigh 4 times as much: u = (1/2) / 50; the second asks for more noise and
    # shortens its terms instead.
    silos = [Budget(50, 1.0, 1e-6), Budget(200, 0.5, 1e-6)]
    found = noise(silos, [1.0, 1.0], least=2).variance(2.0, PLAN[0], PLAN)
    assert found == pytest.approx(central(100, 2.0), rel=1e-3)


@pytest.mark.parametrize(("members", "honest"), [(8, 1.0), (6, 0.5)])
def test_it_is_what_the_mechanism_adds(members: int, honest: float) -> None:
    each = noise(ALIKE, [1.0] * 8, participants=members, least=4, honest=honest)
    z, mechanism, pool = each.multiplier(PLAN), each.mechanism, each.pool
    rows = torch.zeros(members, 20_000, dtype=torch.float64)
    rng = np.random.default_rng(7)
    drawn = torch.from_numpy(rng.standard_normal(rows.shape))
    mechanism.perturb(rows, 1.0, torch.full((members, 1), z), 2.0, 2.0, lambda: drawn)
    mean = rows.sum(0) * mechanism.step(2.0) * pool.worth(FULL, members)
    # 20,000 coordinates: the ratio has standard deviation 0.01.
    assert float(mean.var()) / each.variance(2.0, PLAN[0], PLAN) == pytest.approx(1, abs=0.05)


TREE = once(
    data={"name": "synthetic", "rows": 1250, "features": 5, "test_fraction": 0.2},
    partition={"name": "iid", "num_partitions": 20},
    algorithm={"name": "noisy_minibatch_sgd", "parameters": "theorem"},
    privacy={"mechanism": "summed_gaussian", "delta": 1e-6, "honest_fraction": 0.9},
    assumptions={"L": 2.5, "beta": 1.5, "D": 6.0, "Delta": 0.7},
)


@pytest.mark.parametrize("name", ["noisy_minibatch_sgd", "accelerated_minibatch_sgd", "prox_spider"])
def test_theorems_choose_for_the_noise_that_the_run_will_have(name: str) -> None:
    resolved = resolve(parse(TREE | {"algorithm": {"name": name, "parameters": "theorem"}}))
    derived = resolved.derived
    assert derived is not None
    assert derived.theorem.endswith("with secure aggregation")
    z = preview(resolved)[0].terms.noise_multiplier
    assert z is not None
    # All 20 silos of 50 records add 1/(0.9 * 20) of the variance each.
    V = z * 2 * 2.5 / 1000 * (6 / 0.9) ** 0.5
    sampling = derived.predicted["V"] ** 2 - V**2
    assert sampling == pytest.approx(0, abs=2e-3 * V**2)


def test_sums_leave_more_rounds_and_less_error_than_noise_in_every_silo() -> None:
    own = TREE["privacy"] | {"mechanism": "gaussian", "honest_fraction": None}
    summed, alone = (resolve(parse(TREE | {"privacy": each})).derived for each in (TREE["privacy"], own))
    assert summed is not None
    assert alone is not None
    assert summed.values["num_rounds"] > alone.values["num_rounds"]
    assert summed.predicted["excess"] < alone.predicted["excess"]
