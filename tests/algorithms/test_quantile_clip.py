"""A clip that is chosen as the run goes: where it goes, what it costs, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.algorithm_table import ROWS
from support.helpers import DELTA, public_of
from support.scenarios import once

import fedsim
from fedsim.algorithms.localized_accelerated_sgd import LocalizedAcceleratedSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.quantile_clip import COUNTED, QuantileClip
from fedsim.common.errors import InputError, Refused
from fedsim.privacy import cost, gaussian
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.batch import FULL, Fresh, Subsample
from fedsim.protocol.contract import Combined
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import LIMITS
from fedsim.report.outcome import Results
from fedsim.report.sections.training import ChosenClip
from fedsim.report.texts import remarks
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import execute

SGD = NoisyMinibatchSGD(num_rounds=20, step_size=0.5, clip_norm=1.0)
RULE = QuantileClip(quantile=0.75, rounds=8, share=0.1)
SIZES = (40, 60, 50)


def searched(rule, share_longer, noise=0.0, rounds=20, batch=FULL):
    """The clip of each round, where `share_longer` says how many gradients are longer than it."""
    public = replace(public_of(SIZES), noise_multipliers=torch.full((3,), noise, dtype=torch.float64))
    algorithm = rule.around(replace(SGD, num_rounds=rounds, batch=batch))
    run = algorithm.server(torch.zeros(2, dtype=torch.float64), LinearRegression(2), public, None)
    step, clips = next(run), []
    while True:
        ((name, clip),) = [each for each in step.broadcast.items() if each[0] != "w"]
        clips.append(float(clip))
        assert (name == COUNTED) == (len(clips) <= rule.rounds)
        sums = {"g": torch.zeros(2, dtype=torch.float64)}
        if name == COUNTED:
            sums["longer"] = torch.tensor([share_longer(clips[-1])], dtype=torch.float64)
        try:
            step = run.send(Combined(sums, 1.0))
        except StopIteration:
            return clips


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("start", [0.01, 1.0, 200.0])
def test_it_finds_the_quantile_of_lengths_and_stays_there(quantile, start):
    """Of a Pareto law of tail 2.2 above 1, whose quantiles are known."""
    rule = QuantileClip(quantile=quantile, rounds=16, share=0.1, start=start)
    clips = searched(rule, lambda clip: min(1.0, clip**-2.2))
    exact = (1 - quantile) ** (-1 / 2.2)
    assert 0.9 * exact <= clips[-1] <= 1.1 * exact
    assert len(set(clips[16:])) == 1
    ratios = np.array(clips[1:]) / clips[:-1]
    assert ratios.max() <= 2 + 1e-12
    assert ratios.min() >= 0.5 - 1e-12


@pytest.mark.parametrize("said", [math.inf, -math.inf, 1e9, -1e9, math.nan])
def test_no_answer_moves_it_by_more_than_a_factor_of_two(said):
    clips = np.array(searched(RULE, lambda clip: said))
    assert np.abs(np.log2(clips[1:] / clips[:-1])).max() <= 1 + 1e-12
    limits = QuantileClip(quantile=0.5, rounds=30, share=0.1, start=1e5)
    assert max(searched(limits, lambda clip: said, rounds=30)) <= LIMITS.max_clip


@pytest.mark.parametrize("batch", [FULL, Fresh(0.25), Subsample(0.1)], ids=str)
def test_a_share_within_its_noise_leaves_it(batch):
    """Of a batch of K records the noise on a share is 2 z / K a silo; silos weigh by their sizes."""
    rule, p = replace(RULE, noise_ratio=2.0), np.array(SIZES) / sum(SIZES)
    noise = 2.0 * 5.0 * np.linalg.norm(p / [batch.size(n) for n in SIZES])
    for above, moved in ((0.1, False), (1.9, False), (2.1, True), (-0.1, True)):
        clips = searched(rule, lambda clip, above=above: 0.25 + above * noise, noise=5.0, batch=batch)
        assert (clips[-1] != 1.0) == moved


@pytest.mark.parametrize("batch", [FULL, Fresh(1 / 20)], ids=str)
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_counts_take_their_share_of_mu_squared(batch, share):
    rule = replace(RULE, share=share)
    algorithm = replace(SGD, batch=batch)

    def weight(algorithm):
        plan = dry_run(algorithm, LinearRegression(3), public_of((100,)), 0, LIMITS).plan
        return plan, cost.compose(plan.census(), 100).weight

    _, without = weight(algorithm)
    plan, _ = weight(rule.around(algorithm))
    found, total = weight(rule.priced(plan).around(algorithm))
    assert sum(len(ask.queries) for asks in found.rounds for ask in asks) == 28
    assert without**2 / total**2 == pytest.approx(1 - share)


@pytest.mark.parametrize("rounds", [2, 4, 6])
def test_of_parts_the_share_is_of_the_one_that_costs_most(rounds):
    algorithm, rule = LocalizedAcceleratedSGD(2, 3, 0.5, 0.1, 1.0, 1.0), replace(RULE, rounds=rounds)

    def weight(own):
        plan = dry_run(own, LinearRegression(3), public_of((100,)), 0, LIMITS).plan
        return plan, cost.compose(plan.census(), 100).weight

    plan, _ = weight(rule.around(algorithm))
    found = weight(rule.priced(plan).around(algorithm))[1]
    assert weight(algorithm)[1] ** 2 / found**2 == pytest.approx(1 - rule.share)


def test_of_sampled_batches_they_take_about_their_share():
    algorithm, epsilons = replace(SGD, batch=Subsample(0.1)), []
    plan = dry_run(RULE.around(algorithm), LinearRegression(3), public_of((200,)), 0, LIMITS).plan
    for own in (algorithm, RULE.priced(plan).around(algorithm)):
        census = dry_run(own, LinearRegression(3), public_of((200,)), 0, LIMITS).plan.census()
        epsilons.append(cost.compose(census, 200).epsilon(2.0, DELTA))
    mu = [float(gaussian.mu(epsilon, DELTA)) for epsilon in epsilons]
    assert RULE.share / 2 <= 1 - mu[0] ** 2 / mu[1] ** 2 <= 2 * RULE.share


def scenario(clip_norm, **more):
    tree = once(
        seed=3,
        data={"link": "linear", "rows": 600},
        problem="linear_regression",
        algorithm={"num_rounds": 12, "step_size": 0.3, "clip_norm": clip_norm},
        privacy={"epsilon": [1, 3, 8], "delta": "1/n^2"},
        report={"nonprivate_baseline": True},
    )
    for key, value in more.items():
        section, _, field = key.partition("__")
        tree[section] = {**tree[section], field: value} if field else value
    return tree


CHOSEN = {"quantile": 0.75, "rounds": 6, "share": 0.1}
PUBLIC = {"name": "linear_regression", "public": {"weight": 0.1, "precondition": True}}
PUBLIC_DATA = {"name": "synthetic", "link": "linear", "rows": 200, "features": 3, "seed": 1}


def test_a_run_costs_its_budget_and_no_more():
    plain, chosen = (fedsim.price(scenario(clip)) for clip in (1.0, CHOSEN))
    for one, other, budget in zip(plain.silos, chosen.silos, (1, 3, 8), strict=True):
        assert one["epsilon_guaranteed"] == pytest.approx(other["epsilon_guaranteed"], rel=1e-6)
        assert budget * 0.999 <= other["epsilon_guaranteed"] <= budget


@pytest.mark.parametrize(
    ("clip", "field", "right"),
    [
        ({**CHOSEN, "quantile": 1.0}, "quantile: 1", "less than 1"),
        ({**CHOSEN, "quantile": 0.0}, "quantile: 0", "greater than 0"),
        ({**CHOSEN, "quantile": "a"}, "quantile: 'a'", "a valid number"),
        ({**CHOSEN, "rounds": 13}, "rounds: 13", "at most the algorithm's 12 rounds"),
        ({**CHOSEN, "rounds": 0}, "rounds: 0", "greater than or equal to 1"),
        ({**CHOSEN, "share": 0.0}, "share: 0", "greater than 0"),
        ({**CHOSEN, "share": 0.51}, "share: 0.51", "less than or equal to 0.5"),
        ({**CHOSEN, "start": 1e7}, "start: 1", "less than or equal to"),
        ({"quantile": 0.5, "rounds": 3}, "share", "is required"),
        ({**CHOSEN, "clip": 3.0}, "clip: 3", "unknown key"),
    ],
)
def test_bad_fields_are_named(clip, field, right):
    with pytest.raises(InputError) as raised:
        fedsim.price(scenario(clip))
    assert str(raised.value).startswith(f"scenario.algorithm.clip_norm.{field}")
    assert right in str(raised.value)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"algorithm__parameters": "theorem"}, "algorithm.parameters: 'theorem': given"),
        ({"problem": PUBLIC, "public": PUBLIC_DATA}, "clip_norm: .*a number where the server weighs public"),
        ({"privacy": {"calibration": "sigma", "sigma": 1.0, "epsilon": 8}}, "privacy.sigma: 1"),
    ],
)
def test_what_is_made_for_one_clip_is_refused(more, why):
    with pytest.raises(InputError, match=why):
        fedsim.price(scenario(CHOSEN, **more))


def test_the_report_has_the_clip_of_each_round():
    results = Results()
    execute(resolve(parse(scenario(CHOSEN, trials=2))), results, lambda measurement: None)
    rows = results.rows(ChosenClip)
    assert [(row.trial, row.round) for row in rows] == [(t, r) for t in (0, 1) for r in range(1, 13)]
    by_round = np.array([row.clip for row in rows]).reshape(2, 12)
    assert (by_round[:, 6:] == by_round[:, 6:7]).all()
    run = fedsim.simulate(scenario(CHOSEN, trials=2), progress=False)
    assert run.summary.chosen_clips == pytest.approx(by_round.mean(0)[:7].tolist())
    (line,) = [line for line in remarks(run.summary) if line.startswith("clip by round")]
    assert f"{run.summary.chosen_clips[-1]:.3g}; it stays at the last" in line
    assert not fedsim.simulate(scenario(1.0), progress=False).summary.chosen_clips


def test_a_kept_scenario_is_the_same_run(tmp_path):
    run = fedsim.simulate(scenario(CHOSEN), progress=False)
    run.save(tmp_path / "run")
    again = fedsim.simulate(tmp_path / "run" / "scenario.yaml", progress=False)
    assert np.array_equal(run.model, again.model)


def test_stages_of_preparation_may_come_first():
    prepare = [{"name": "standardise", "share": 0.1, "clip": 4.0}]
    run = fedsim.simulate(scenario(CHOSEN, prepare=prepare), progress=False)
    assert len(set(run.summary.chosen_clips)) > 2


def test_algorithms_without_a_gradients_clip_are_refused():
    with pytest.raises(InputError, match=r"clip_norm.*unknown key"):
        fedsim.price(scenario(CHOSEN, algorithm={"name": "sufficient_statistics", "clip_norm": CHOSEN}))
    spider = {"name": "prox_svrg", "epochs": 2, "inner_steps": 3, "step_size": 0.1, "difference_clip": 1.0}
    fedsim.price(scenario(1.0, algorithm={**spider, "clip_norm": {**CHOSEN, "rounds": 1}}))
    with pytest.raises(Refused, match=r"round 1: clip_norm is .* this round asks for none"):
        fedsim.price(scenario(1.0, algorithm={**spider, "clip_norm": {**CHOSEN, "rounds": 2}}))
    svrg = {**spider, "clip_norm": {**CHOSEN, "rounds": 30}}
    with pytest.raises(Refused, match=r"round 1: clip_norm is .* this round asks for none"):
        fedsim.price(scenario(1.0, algorithm=svrg))
    local = {"name": "localized_accelerated_sgd", "phases": 2, "phase_rounds": 4, "step_size": 0.1}
    local |= {"regularisation": 0.1, "growth": 1.0, "clip_norm": {**CHOSEN, "rounds": 30}}
    with pytest.raises(InputError, match=r"algorithm.clip_norm.rounds: 30: at most the algorithm's 8 rounds"):
        fedsim.price(scenario(1.0, algorithm=local))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_algorithms_plan_is_its_own_but_for_the_counts(row):
    """One of the round's first gradient's batch, beside that gradient."""
    problem, algorithm = LinearRegression(3), row.short(FULL)
    own = dry_run(algorithm, problem, public_of(SIZES), 0, LIMITS).plan
    rule = replace(RULE, rounds=1, noise_ratio=3.0)
    (first, *_), *rest = dry_run(rule.around(algorithm), problem, public_of(SIZES), 0, LIMITS).plan.rounds
    assert (*rest,) == own.rounds[1:]
    count, *queries = first.queries
    assert (count.statistic, count.noise_ratio) == ("longer", 3.0)
    assert (first.batch, tuple(queries)) == (own.rounds[0][0].batch, own.rounds[0][0].queries)
