"""The noisy number of mistakes: what a record can change, and how much noise hides it."""

import math

import numpy as np
import pytest
import torch

from fedsim.common.errors import Refused
from fedsim.privacy import gaussian
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported
from fedsim.problems.registry import problems
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Release, Terms
from fedsim.simulation.selection import Scorer, admit_selection
from silos.vault.entropy import Purpose, SeededEntropy
from silos.vault.scores import mistakes

SIZES = (40, 5)
NAMES = ("a", "b")
RUNS = ("run", "run")


def silos(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((n, 3)), rng.integers(0, 2, n)) for n in SIZES]


def scorer(
    data: list[tuple[np.ndarray, np.ndarray]],
    noise: tuple[float, ...],
    trial: int = 0,
    names: tuple[str, ...] = NAMES,
    kind: str = "logistic_regression",
) -> Scorer:
    problem = problems()[kind](3, problems()[kind].outputs(2))
    return Scorer(
        data, problem, noise, SeededEntropy(0, trial, names, RUNS[: len(names)]), Limits(), torch.float64
    )


W = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)


@pytest.mark.parametrize(
    "name",  # not that of a network, whose head is one of the others
    [
        name
        for name, kind in problems().items()
        if (kind.suits(2) or kind.suits(3)) and name != "neural_network"
    ],
)
def test_mistakes_are_what_the_problem_calls_an_error(name):
    kind = problems()[name]
    classes = 3 if kind.suits(3) else 2
    outputs = kind.outputs(classes)
    problem = kind(3, outputs)
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=rng) if outputs == 1 else torch.randn(200, outputs, generator=rng)
    target = torch.randint(0, classes, (200,), generator=rng)
    assert float(mistakes(scores, target).double().mean()) == float(problem.error(scores, target))


@pytest.mark.parametrize("kind", ["logistic_regression", "softmax_regression"])
def test_replacing_any_record_moves_a_silo_by_one_record_and_the_others_not_at_all(kind):
    z, w = (1.3, 0.7), W if kind == "logistic_regression" else torch.cat([W, 0.3 - W])
    before = scorer(silos(), z, kind=kind).answer(w)
    largest = 0.0
    for place in range(SIZES[0]):
        for features in ([1e300, -1e300, 1e300], [math.inf] * 3, [math.nan] * 3, [0.0] * 3, [-1.0, 0.0, 0.0]):
            for label in (0, 1):
                data = silos()
                data[0][0][place], data[0][1][place] = features, label
                after = scorer(data, z, kind=kind).answer(w)
                change = abs(after[0] - before[0])
                assert min(change, abs(change - 1 / SIZES[0])) < 1e-12
                assert after[1] == before[1]
                largest = max(largest, change)
    assert largest == pytest.approx(1 / SIZES[0])


def test_a_silo_s_noise_is_its_own_and_no_trial_s_twice():
    alone = scorer(silos()[1:], (2.0,), names=("b",)).answer(W)
    together = scorer(silos(), (1.0, 2.0)).answer(W)
    assert alone[0] == together[1]
    assert scorer(silos(), (1.0, 2.0), trial=1).answer(W)[0] != together[0]


@pytest.mark.parametrize("purpose", Purpose)
def test_a_score_s_noise_is_drawn_for_scores_and_hides_nothing_else(purpose):
    """Noise that a training round used too would cancel."""
    drawn = (scorer(silos(), (1.0, 1.0)).answer(W) - scorer(silos(), (0.0, 0.0)).answer(W)) * SIZES
    streams = SeededEntropy(0, 0, NAMES, RUNS).streams(range(2), 0, purpose)
    same = [abs(stream.standard_normal() - one) < 1e-9 for stream, one in zip(streams, drawn, strict=True)]
    assert same == [purpose is Purpose.SCORE] * 2


def test_one_score_and_no_more():
    desk = scorer(silos(), (1.0, 1.0))
    with pytest.raises(Refused, match="dimension"):
        desk.answer(torch.zeros(4, dtype=torch.float64))
    with pytest.raises(Refused, match="limit"):
        desk.answer(torch.full((3,), math.nan, dtype=torch.float64))
    with pytest.raises(Refused, match="not a plain tensor"):
        desk.answer(torch.nn.Parameter(W))
    desk.answer(W)
    with pytest.raises(Refused, match="released already"):
        desk.answer(W)


def test_a_record_that_the_model_cannot_be_applied_to_is_a_mistake_and_decides_nothing_else():
    """An embedding has no row for it: an error instead of a score would say so of a record."""
    problem = NeuralNetwork(4, 3, model=Imported("support.network_modules:Tokens"))
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 8, (40, 4)).astype(float), problem.start(0).double()

    def wrong(features, target):
        desk = Scorer(
            [(features, target)], problem, (0.0,), SeededEntropy(0, 0, ("a",), ("run",)), Limits(), w.dtype
        )
        return float(desk.answer(w)[0]) * len(target)

    right = problem.scores(torch.as_tensor(x), w).argmax(-1).numpy()
    assert wrong(x, right) == 0
    for place in (0, 17, 39):
        bad = x.copy()
        bad[place] = 1e6
        assert wrong(bad, right) == pytest.approx(1)
    assert wrong(np.full((5, 4), -1.0), right[:5]) == pytest.approx(5)


# What silos agree to before private tuning.

LONG, SHORT = ((Release(FULL, 1.0), 35),), ((Release(FULL, 1.0), 10),)
DELTA = 1e-5


def mu(z: float, releases: float) -> float:
    return float(gaussian.epsilon(math.sqrt(releases) / z, DELTA))


def test_each_silo_pays_for_all_candidates_and_the_total_is_the_larger_part():
    terms = [Terms("a", 30, 1.0, DELTA, ()), Terms("b", 7, 8.0, DELTA, ())]
    runs = [LONG, LONG, SHORT]
    for silo in admit_selection([runs, runs], terms, Limits()):
        training, scores = silo["candidates"], silo["scores"]
        budget, (z, of_score) = training.terms.epsilon, (part.noise_multiplier for part in (training, scores))
        assert training.epsilon_guaranteed == pytest.approx(mu(z, 35 + 35 + 10), rel=1e-9)
        assert scores.epsilon_guaranteed == pytest.approx(mu(of_score, 3), rel=1e-9)
        assert silo.epsilon == max(training.epsilon_guaranteed, scores.epsilon_guaranteed)
        assert (training.releases, scores.releases) == (35 + 35 + 10, 3)
        assert all(budget * (1 - 1e-6) <= part.epsilon_guaranteed <= budget for part in silo.parts.values())
        assert mu(z, 35 + 10) < 0.9 * budget  # a candidate less would be cheaper


def test_sampled_plans_stay_within_the_budget_of_the_half():
    plan = ((Release(Subsample(0.1), 1.0), 20),)
    (silo,) = admit_selection([[plan] * 4], [Terms("a", 50, 2.0, DELTA, ())], Limits())
    assert 1.99 <= silo["candidates"].epsilon_guaranteed <= 2.0
    (one,) = admit_selection([[plan]], [Terms("a", 50, 2.0, DELTA, ())], Limits())
    assert one["candidates"].noise_multiplier < silo["candidates"].noise_multiplier


def test_a_silo_that_takes_part_in_nothing_pays_for_its_scores_alone():
    (silo,) = admit_selection([[(), ()]], [Terms("a", 5, 1.0, DELTA, ())], Limits())
    training, scores = silo["candidates"], silo["scores"]
    assert (training.noise_multiplier, training.epsilon_guaranteed) == (0.0, 0.0)
    assert silo.epsilon == scores.epsilon_guaranteed == pytest.approx(mu(scores.noise_multiplier, 2))


def test_without_a_budget_there_is_no_noise_and_no_guarantee():
    (silo,) = admit_selection([[LONG]], [Terms("a", 5, math.inf, DELTA, ())], Limits())
    assert [part.noise_multiplier for part in silo.parts.values()] == [0.0, 0.0]
    assert silo.epsilon == math.inf


def test_the_silo_that_cannot_afford_it_is_named():
    terms = [Terms("rich", 30, 5.0, DELTA, ()), Terms("poor", 30, 0.05, DELTA, ())]
    affordable = Limits(max_noise_multiplier=500.0)
    admit_selection([[SHORT], [SHORT]], terms, affordable)
    with pytest.raises(
        Refused, match=r"silo 'poor', 40 runs to choose from: plan costs epsilon .* budget is 0\.05"
    ):
        admit_selection([[LONG] * 40] * 2, terms, affordable)
