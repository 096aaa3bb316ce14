"""Clips for heavy tails: against Theorems 59, 61 and 63 by hand, what they balance, and what is refused."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refusals import ANY, refused
from support.scenarios import invoke, write
from support.theorem_scenarios import tree as made_of

from fedsim.privacy import gaussian
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.theory.bounds import clipped_convex, clipped_curved, clipped_pl
from fedsim.theory.heavy_tails import CLIPS, bias
from fedsim.theory.symbols import Symbols

ALGORITHMS: dict[str, dict[str, Any]] = {
    "accelerated_minibatch_sgd": {},
    "noisy_minibatch_sgd": {"strong_convexity": 0.1},
    "prox_sgd": {},
}
STEPS = {"num_rounds": 5, "step_size": 0.1, "clip_norm": "theorem"}


def scenario(name: str = "accelerated_minibatch_sgd", **sections: Any) -> dict[str, Any]:
    """10 silos of 1,000 records, d = 6, five disjoint batches."""
    batch = {"sampler": "fresh", "fraction": 0.2}
    algorithm = {"name": name, "batch": batch, **STEPS, **ALGORITHMS.get(name, {})}
    assumed = {"moment": 3, "moment_bound": 7.0}
    made = made_of(10, 1000, algorithm=algorithm, assumptions=assumed, privacy={"epsilon": 1, "delta": 1e-6})
    return made | {key: made.get(key, {}) | value for key, value in sections.items()}


def resolved(name: str = "accelerated_minibatch_sgd", **sections: Any) -> Resolved:
    return resolve(parse(scenario(name, **sections)))


def clip(name: str = "accelerated_minibatch_sgd", **sections: Any) -> float:
    return float(resolved(name, **sections).algorithm.clip_norm)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_clip_is_the_theorems_with_mu_in_place_of_its_epsilon(name: str) -> None:
    mu = float(gaussian.mu(1.0, 1e-6))
    averaged = 7 * (mu * 1000 * math.sqrt(10) / math.sqrt(6 * 5)) ** (1 / 3)
    last = 7 * (mu * 1000 * math.sqrt(10) / (math.sqrt(6) * 5)) ** (1 / 3)
    assert clip(name) == pytest.approx(last if name == "prox_sgd" else averaged, rel=1e-8)


def test_the_thesis_own_number_at_one_silo() -> None:
    # Thm 59: r (eps n / sqrt(d T))^(1/k) at r = 10, k = 2, d = 50, T = 9, n = 100,000, eps = 1 as zCDP has it
    noise = 2 * math.sqrt(50) * 9 / (1.0 * 100_000)
    found = CLIPS["accelerated_minibatch_sgd"].clip(2, 10.0, noise, 9)
    assert found == pytest.approx(10 * math.sqrt(100_000 / math.sqrt(450)))
    assert found == pytest.approx(686.6, abs=0.05)


@pytest.mark.parametrize(("epsilon", "expected"), [(0.5, 97), (1, 134), (3, 222)])
def test_ten_silos_have_the_clips_that_a_prototype_found(epsilon: float, expected: float) -> None:
    # Student-t noise of tail 2.2, variance 11, d = 20, w* at distance 1: E|x|^2 E(noise^2 + 1) = 20 * 12.
    noise = 2 * math.sqrt(20) * 5 / (float(gaussian.mu(epsilon, 1e-6)) * 1000 * math.sqrt(10))
    found = CLIPS["accelerated_minibatch_sgd"].clip(2, math.sqrt(240), noise, 5)
    assert round(found) == expected


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bias_and_the_noise_that_steps_leave_are_equal_at_the_clip_but_for_constants(name: str) -> None:
    derived = resolved(name).derived
    assert derived is not None
    kept = derived.predicted["noise"] / (1 if name == "prox_sgd" else math.sqrt(5))
    assert derived.predicted["bias"] * (3 - 1) == pytest.approx(kept / 2, rel=1e-9)


def test_the_predicted_noise_is_that_of_the_run() -> None:
    run = resolved()
    assert run.derived is not None
    z = 1 / float(gaussian.mu(1.0, 1e-6))  # one release of each record
    per_coordinate = z * 2 * run.derived.values["clip_norm"] / 200 / math.sqrt(10)
    assert run.derived.predicted["noise"] == pytest.approx(math.sqrt(6) * per_coordinate, rel=1e-6)


def test_a_clip_moves_a_mean_by_no_more_than_the_bias() -> None:
    # A Pareto of tail 4 has E x^3 = 4; Lemma 49 on a line, where the clip is min(x, C).
    r = 4 ** (1 / 3)
    for C in (2.0, 10.0):
        lost = C**-3 / 3  # int_C^inf P(x > t) dt
        assert lost <= bias(3, r, C) == pytest.approx(4 / (2 * C**2))


def test_the_clip_grows_with_budget_and_records_and_nears_r_as_moments_grow() -> None:
    assert clip(privacy={"epsilon": 2}) > clip()
    assert clip(assumptions={"moment": 2}) > clip() > clip(assumptions={"moment": 8})
    assert clip(assumptions={"moment": 1e6}) == pytest.approx(7, rel=1e-4)
    assert clip(assumptions={"moment_bound": 14.0}) == pytest.approx(2 * clip())
    # Half of the silos in a round: sqrt M counts, whatever their number is.
    half = clip(participation={"name": "uniform", "num_silos": 5})
    assert half == pytest.approx(clip() * 0.5 ** (1 / 6), rel=1e-8)


def test_the_noise_of_a_sum_is_smaller_and_the_clip_larger_by_its_root() -> None:
    # One silo's noise on the sum of ten, in place of each one's: sqrt(N) less, and C has its k-th root.
    summed = clip(privacy={"mechanism": "summed_gaussian", "honest_fraction": 1})
    assert summed == pytest.approx(clip() * math.sqrt(10) ** (1 / 3), rel=0.01)


def test_slopes_of_the_rates_where_noise_rules() -> None:
    base = Symbols(
        n=10**6, N=16, M=16, d=1000, epsilon=1.0, delta=1e-6, beta=8.0, mu=2.0, D=5.0, moment=3.0,
        moment_bound=4.0,
    )  # fmt: skip
    log_mu = math.log(float(gaussian.mu(2.0, 1e-6) / gaussian.mu(1.0, 1e-6)))

    def xi(s: Symbols) -> float:
        return 1 / (float(gaussian.mu(s.epsilon, s.delta)) * s.n) ** 2 / s.N

    for formula, third, slope in (
        (clipped_convex, "D", -4 / 7),  # 4 (k-1) / (5k-1), the larger of the two at p < 1
        (clipped_curved, "mu", -4 / 3),
        (clipped_pl, "mu", -4 / 3),
    ):
        bound = partial(formula, **{third: getattr(base, third)}, k=3.0, r=4.0, beta=8.0)
        free = bound(base, 0.0)  # of drawn records alone
        private = math.log(
            (bound(richer := replace(base, epsilon=2.0), xi(richer)) - free) / (bound(base, xi(base)) - free)
        )
        assert private / log_mu == pytest.approx(slope), formula.__name__
        more = replace(base, n=4 * 10**6)
        gained = (bound(more, xi(more)) - bound(more, 0.0)) / (bound(base, xi(base)) - free)
        assert math.log(gained) / math.log(4) == pytest.approx(slope), formula.__name__


def test_it_is_stated_with_its_reason_and_beside_what_another_theorem_chose(tmp_path: Path) -> None:
    path = write(tmp_path, scenario())
    lines = invoke("privacy", path).splitlines()
    assert lines[0] == f"noisy clipped AC-SA (Theorem 59): clip_norm = {clip():.6g}"
    assert lines[1].strip().startswith("clip_norm: noise of 5 rounds counts as much as the bias of clipping")
    stated = json.loads(invoke("privacy", path, "--json"))["parameters"]
    assert stated["values"] == {"clip_norm": clip()}
    both = resolved(algorithm={"step_size": "auto"}, data={"record_norm": 1})
    assert both.derived is not None
    assert set(both.derived.values) == {"clip_norm", "step_size"}
    assert both.derived.values["clip_norm"] == clip(data={"record_norm": 1})


def test_the_rest_of_the_theorems_numbers_are_for_the_clip() -> None:
    tree = scenario(assumptions={"beta": 1.0, "D": 4.0}, algorithm={"parameters": "theorem"})
    del tree["algorithm"]["step_size"]
    run = resolve(parse(tree))
    assert run.derived is not None
    assert set(run.derived.values) == {"clip_norm", "step_size", "strong_convexity"}
    C = clip()
    squared = C**2 / (10 * 200) + run.derived.predicted["noise"] ** 2  # V^2, drawn records and noise
    assert run.derived.predicted["V"] == pytest.approx(math.sqrt(squared), rel=1e-6)
    step: float = run.algorithm.step_size  # type: ignore[attr-defined]
    assert step == pytest.approx(1 / max(2.0, 5**1.5 * math.sqrt(squared) / 4), rel=1e-6)


def test_the_command_shows_rates_where_a_moment_is_given(tmp_path: Path) -> None:
    path = write(tmp_path, scenario(assumptions={"beta": 1.0, "D": 4.0, "mu": 0.5}))
    found = {
        bound["source"]: bound
        for bound in json.loads(invoke("bounds", path, "--json"))["bounds"]
        if "T" in bound["source"] and bound["source"].split()[-1] in {"57", "58", "59", "61", "63"}
    }
    assert len(found) == 5
    p = math.sqrt(6) / (float(gaussian.mu(1.0, 1e-6)) * 1000 * math.sqrt(10))
    expected = 49 / 0.5 * (1 / 10_000 + (math.sqrt(2) * p) ** (4 / 3))
    assert found["clipped SGD, Theorem 61"]["value"] == pytest.approx(expected)
    assert found["Theorem 57"]["conditions"][0]["met"] is False  # d = 6, not 40
    assert "Theorems 57 to 63 bound a moment" in invoke("bounds", path)
    write(tmp_path, scenario(assumptions={"beta": 1.0, "D": 4.0, "moment_bound": None}))
    bare = invoke("bounds", path, "--set", "algorithm.clip_norm=1")
    assert "needs assumptions.moment_bound: convex (clipped AC-SA, Theorem 59)" in bare


DRAWN = {"sampler": "subsample", "fraction": 0.2}
BAD: dict[str, tuple[str, dict[str, Any], str, object, str]] = {
    "moment below 2": ("", {"assumptions": {"moment": 1.5}}, "assumptions.moment", 1.5, "2"),
    "no moment": ("", {"assumptions": {"moment": None}}, "assumptions.moment", None, "Theorem 59"),
    "no r": ("", {"assumptions": {"moment_bound": None}}, "assumptions.moment_bound", None, "Theorem 59"),
    "no theorem": (
        "local_sgd", {"algorithm": {"local_steps": 1}}, "algorithm.clip_norm", "theorem", "prox_sgd"
    ),
    "drawn anew": ("prox_sgd", {"algorithm": {"batch": DRAWN}}, "algorithm.batch", ANY, "fresh"),
    "every record": ("", {"algorithm": {"batch": "full"}}, "algorithm.batch", ANY, "fresh"),
    "not strongly convex": (
        "noisy_minibatch_sgd", {"algorithm": {"strong_convexity": 0}}, "algorithm.strong_convexity", 0, "61"
    ),
    "rounds that depend on the clip": (
        "", {"algorithm": {"num_rounds": "auto"}}, "algorithm.num_rounds", "auto", "number"
    ),
    "rounds by theorem": (
        "", {"algorithm": {"num_rounds": None, "parameters": "theorem"}}, "algorithm.num_rounds", None,
        "number",
    ),
    "no privacy": ("", {"privacy": {"mechanism": "none"}}, "privacy.mechanism", "none", "need noise"),
    "given noise": (
        "", {"privacy": {"calibration": "sigma", "noise_multiplier": 1}}, "privacy.calibration", "sigma",
        "accountant",
    ),
    "a step": ("", {"algorithm": {"step_size": "theorem"}}, "algorithm.step_size", "theorem", "number"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_field_and_what_would_be_right(case: str) -> None:
    name, sections, field, value, hint = BAD[case]
    tree = scenario(*([name] if name else []), **sections)
    with refused(f"scenario.{field}", value, hint):
        resolve(parse(tree))


def test_units_that_are_added_are_refused_as_by_other_theorems() -> None:
    unit = {"name": "person", "relation": "add_remove"}
    tree = scenario(privacy={"unit": unit, "expected_persons": 100}) | {"data": {"name": "visits"}}
    tree["partition"] = "natural_id"
    with refused("scenario.privacy.unit.relation", "add_remove", "one that replaces"):
        resolve(parse(tree))


def test_an_offer_has_the_number() -> None:
    section = parse(scenario()).algorithm
    with refused("scenario.algorithm.clip_norm", "theorem", "a scenario's data and budgets"):
        section.build()


def test_the_theorems_epsilon_is_mu() -> None:
    entries = json.loads(invoke("theorems", "--json"))
    (entry,) = (each for each in entries if "59, 61, 63" in each["theorem"])
    for row in entry["rows"]:
        exact = float(gaussian.epsilon(row["target"], 1e-5))
        assert np.isclose(row["true"]["disjoint batches"], exact, rtol=1e-6)
        assert row["fails"]
