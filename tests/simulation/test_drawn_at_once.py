"""Noise of the weighted sum drawn at once: the law of the sum, who is refused, and what is said about it."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp, kstest

import fedsim
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Query
from fedsim.report.privacy_statement import how
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import SiloHost, preview
from fedsim.simulation.trial import read
from server.aggregate import weighted
from server.participation import admitted_rounds, schedule

ROUNDS, WIDE = 100, 2000
SGD = {"name": "noisy_minibatch_sgd", "num_rounds": ROUNDS, "step_size": 0.01, "clip_norm": 1.0}
SVRG = {"name": "prox_svrg", "epochs": 25, "inner_steps": 3, "step_size": 0.1, "clip_norm": 1.0}
BASE: dict[str, Any] = {
    "name": "at once",
    "data": {"name": "synthetic", "rows": 150, "features": WIDE - 1},
    "partition": {"name": "size", "partition_sizes": [25, 50, 75]},
    "problem": {"name": "logistic_regression", "silo_weights": [0.2, 0.5, 0.3]},
    "algorithm": SGD,
    "privacy": {"epsilon": [1.0, 3.0, 9.0]},
    "runtime": {"name": "inprocess", "noise": "aggregate"},
    "report": {"baselines": False, "nonprivate_baseline": False, "clipping": False},
}
SILOS = {"runtime": {"name": "inprocess"}}
TOLD = "noise of the sum, drawn at once: no deployed silo has this transcript"


@dataclass(frozen=True)
class Mixed(NoisyMinibatchSGD):
    """Affine in three answers of two asks, one of them on part of the records."""

    def silo(self, problem, broadcast, ask, memory):
        points = (broadcast["w"],)
        first, second = ask(
            Query("gradient", points, 1.0, FULL), Query("gradient", points, 0.5, FULL, noise_ratio=2.0)
        )
        return {"g": 2 * first - 3 * second.flip(-1) + ask(Query("gradient", points, 0.1, FULL)) + 1}


def noise(scenario: Scenario) -> np.ndarray:
    """What the noise adds to the sum of every message: (numbers,), all rounds asked at the origin."""
    resolved = resolve(scenario)
    silos, count = SiloHost(resolved, 0, read(resolved, 0)), len(resolved.names)
    rounds = schedule(count, resolved.active, resolved.trace.holds, 0, 0)
    for variant in ("private", "clipped"):
        silos.open(variant, admitted_rounds(resolved.active, rounds, count))
    public, found = resolved.public(), []
    for number, sent in enumerate(resolved.trace.broadcasts):
        broadcast = {name: torch.zeros(size, dtype=resolved.dtype) for name, size in dict(sent).items()}
        noisy, quiet = (
            weighted(silos.answer(variant, number, broadcast, rounds[number]), public, rounds[number])
            for variant in ("private", "clipped")
        )
        found += [(noisy[name] - quiet[name]).double().numpy() for name in noisy]
    return np.concatenate(found)


CASES: dict[str, dict[str, Any]] = {
    "gradients": {},
    "two of three silos": {"participation": {"name": "uniform", "num_silos": 2}},
    "several clips": {"algorithm": SVRG | {"difference_clip": 0.3, "difference_noise_ratio": 2.0}},
    "float32": {"runtime": {"dtype": "float32"}},
}


@pytest.mark.parametrize("name", [*CASES, "several answers"])
def test_the_sum_has_the_law_of_single_silos_noise(name):
    """By Kolmogorov and Smirnov on two samples of 200,000 numbers: a scale that is wrong by 5 % moves the
    distribution by 0.05 phi(1) = 0.012, which gives 1e-11; equal laws give less than 1e-4 one time in 10^4.
    """
    tree = BASE | CASES.get(name, {})
    trees = [
        tree | {"runtime": tree["runtime"] | each} for each in ({"noise": "aggregate"}, {"noise": "silos"})
    ]
    made = [parse(each | {"runtime": {"name": "inprocess"} | each["runtime"]}) for each in trees]
    if name == "several answers":
        given = GivenAlgorithm.of(Mixed(num_rounds=ROUNDS, step_size=0.5, clip_norm=1.0))
        made = [each.model_copy(update={"algorithm": given}) for each in made]
    once, apart = map(noise, made)
    assert len(once) >= ROUNDS * WIDE
    assert ks_2samp(once, apart, method="asymp").pvalue > 1e-4
    for wrong in (0.95, 1.05):
        assert ks_2samp(once * wrong, apart, method="asymp").pvalue < 1e-6


def test_the_variance_is_that_of_the_weighted_sum():
    """sum_i (p_i z_i 2 C / n_i)^2, whatever silo comes first; rounds and coordinates are independent."""
    resolved = resolve(parse(BASE))
    scale = sum(
        (p * silo.noise_multiplier * 2.0 / silo.terms.n) ** 2
        for p, silo in zip(resolved.weights, preview(resolved), strict=True)
    )
    drawn = noise(parse(BASE)) / scale**0.5
    assert kstest(drawn, "norm").pvalue > 1e-4
    assert kstest(drawn * 1.05, "norm").pvalue < 1e-6
    for lag in (1, 2, WIDE, 2 * WIDE):
        assert abs(np.corrcoef(drawn[lag:], drawn[:-lag])[0, 1]) < 5.1 / len(drawn) ** 0.5


def test_one_silo_has_all_of_the_noise_and_the_others_none():
    resolved = resolve(parse(BASE))
    silos, start = SiloHost(resolved, 0, read(resolved, 0)), {"w": torch.zeros(WIDE, dtype=torch.float64)}
    for variant in ("private", "clipped"):
        silos.open(variant, [range(ROUNDS)] * 3)
    noisy, quiet = (silos.answer(variant, 0, start, None)["g"] for variant in ("private", "clipped"))
    assert torch.equal(noisy[1:], quiet[1:])
    assert not torch.isclose(noisy[0], quiet[0]).any()


def test_it_shares_no_number_with_noise_of_silos_and_costs_the_same():
    once, apart = noise(parse(BASE)), noise(parse(BASE | SILOS))
    assert abs(np.corrcoef(once, apart)[0, 1]) < 5.1 / len(once) ** 0.5
    assert np.array_equal(noise(parse(BASE)), once)
    assert preview(resolve(parse(BASE))) == preview(resolve(parse(BASE | SILOS)))


def test_price_page_and_summary_say_so(tmp_path):
    few = BASE | {"algorithm": SGD | {"num_rounds": 2}}
    run = fedsim.simulate(few, out=tmp_path / "run", progress=False)
    assert TOLD in json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["notices"]
    assert TOLD in (tmp_path / "run" / "report.html").read_text()
    assert TOLD not in how(resolve(parse(few | SILOS)))["notices"]
    assert run.model.shape
