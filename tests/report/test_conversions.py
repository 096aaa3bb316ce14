"""What a guarantee is worth to a person: of several records, and in several silos."""

import json
import math
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.scenarios import BASE, changed

from fedsim.api.price import price
from fedsim.api.simulate import simulate
from fedsim.data.arrays import Arrays
from fedsim.data.source import Outline
from fedsim.privacy import cost, gaussian, groups
from fedsim.privacy.cost import compose, joint
from fedsim.report import conversions
from fedsim.report.conversions import persons
from fedsim.report.privacy_statement import of_plan
from fedsim.report.summary import Persons, Privacy
from fedsim.report.texts import worth_lines
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview, preview_evaluation

DELTA = 1e-6
POISSON = {"sampler": "poisson", "fraction": 0.2}
SUMMED = {"mechanism": "summed_gaussian", "honest_fraction": 1.0}


def resolved(sizes: dict[str, int], more: dict[str, Any] | None = None, **privacy: Any) -> Resolved:
    """Silos of these sizes; no record is read."""
    shape = Outline(sizes, 4, 2, sum(sizes.values()), held_out=dict.fromkeys(sizes, 30))
    tree = changed(BASE, {"privacy": {"epsilon": 1.0, "delta": DELTA} | privacy} | (more or {}))
    return resolve(parse(tree), shape)


def worth(run: Resolved, **more: Any) -> Persons:
    return persons(run, preview(run), preview_evaluation(run), **more)["persons"]


def epsilons(found: Persons) -> list[float | None]:
    return [row.epsilon for row in found.rows]


FOUR = dict.fromkeys("abcd", 200)


def test_a_person_of_several_records_has_the_largest_mu_times_as_much() -> None:
    found = worth(resolved(FOUR | {"e": 50}, epsilon=[1.0, 0.5, 0.5, 0.5, 0.2]))
    assert [row.records for row in found.rows] == [2, 5, 10, 50]
    assert epsilons(found) == pytest.approx([2.12, 5.93, 13.51, 125.45], abs=0.02)
    assert {row.delta for row in found.rows} == {DELTA}
    mu = float(gaussian.mu(1.0, DELTA))
    assert epsilons(found) == pytest.approx([float(gaussian.epsilon(s * mu, DELTA)) for s in (2, 5, 10, 50)])


def test_of_different_deltas_the_largest_counts() -> None:
    """Where all spend one epsilon, the silo of the largest delta has the largest mu."""
    found = worth(resolved({"a": 50, "b": 400}, delta="1/n^2"))
    exact = float(gaussian.epsilon(2 * float(gaussian.mu(1.0, 1 / 50**2)), 1 / 50**2))
    assert found.rows[0].epsilon == pytest.approx(exact)
    assert found.rows[0].delta == 1 / 50**2


def test_sampled_plans_of_few_kinds_are_composed_for_groups_and_others_have_the_generic_rule(
    monkeypatch,
) -> None:
    run = resolved(FOUR, {"algorithm.batch": POISSON})
    silo = preview(run)[0]
    plan = joint([(compose(run.trace.plan.census(silo.terms.rounds), silo.terms.n), silo.noise_multiplier)])
    for row, k in zip(worth(run).rows[:3], (2, 5, 10), strict=True):
        assert row.epsilon == groups.epsilon(plan, silo.terms.n, k, DELTA)
        assert row.delta == DELTA
    monkeypatch.setattr(conversions, "_KINDS", 0)
    epsilon = silo.epsilon_guaranteed
    two, *_, fifty = worth(run).rows
    assert two.epsilon == 2 * epsilon
    assert two.delta == pytest.approx(2 * math.exp(epsilon) * DELTA)
    assert (fifty.epsilon, fifty.delta) == (None, None)


@pytest.mark.parametrize(("delta", "last"), [(1e-6, None), (1e-7, 10.0)])  # at delta 0.9, at 0.09
def test_a_delta_that_covers_a_tenth_of_all_persons_or_more_is_no_guarantee(monkeypatch, delta, last) -> None:
    monkeypatch.setattr(conversions, "_KINDS", 0)
    run = resolved(FOUR, {"algorithm.batch": POISSON}, epsilon=0.2, delta=delta)
    shown = Privacy(**of_plan(run, preview(run)))
    *_, ten, fifty = json.loads(shown.json_text())["persons"]["rows"]
    assert ten["delta"] < 1e-3
    assert fifty["epsilon"] == (last and pytest.approx(last, rel=1e-2))
    assert (fifty["delta"] is None) == (last is None)
    (line,) = worth_lines(shown)
    costs, deltas = line.split("; ")[0].split(" at delta ")
    assert (costs.endswith(" / none"), "none" in deltas) == (last is None, False)
    assert len(deltas.split(" / ")) == (3 if last is None else 4)


@pytest.mark.parametrize("epsilon", [[1.0, 1.0, 1.0, 1.0], [0.5, 1.0, 2.0, 3.0]])
def test_a_person_in_several_silos_pays_mu_squared_of_the_costliest(epsilon: list[float]) -> None:
    found = worth(resolved(FOUR, unit="person", epsilon=epsilon))
    assert [row.silos for row in found.rows] == [1, 2, 3, 4]
    mus = sorted((float(gaussian.mu(each, DELTA)) for each in epsilon), reverse=True)
    exact = [float(gaussian.epsilon(math.hypot(*mus[:k]), DELTA)) for k in (1, 2, 3, 4)]
    assert epsilons(found) == pytest.approx(exact, rel=1e-6)
    if epsilon[0] == 1.0:
        assert epsilons(found)[:3] == pytest.approx([1.0, 1.45, 1.81], abs=0.006)


def test_under_one_noise_the_silos_mu_add_and_not_their_squares() -> None:
    found = worth(resolved(FOUR, unit="person", **SUMMED))
    mu = float(gaussian.mu(1.0, DELTA))
    exact = [float(gaussian.epsilon(k * mu, DELTA)) for k in (1, 2, 3, 4)]
    assert epsilons(found) == pytest.approx(exact, rel=5e-3)


def test_sampled_plans_of_unlike_silos_compose_as_one() -> None:
    run = resolved({"a": 150, "b": 250}, {"algorithm.batch": POISSON}, unit="person", epsilon=[2.0, 1.0])
    one, both = worth(run).rows
    silos = preview(run)
    assert one.epsilon == pytest.approx(silos[0].epsilon_guaranteed, abs=1e-3)
    plans = [(cost.compose(run.trace.plan.census(), each.terms.n), each.noise_multiplier) for each in silos]
    assert both.epsilon == cost.joint(plans).epsilon(1.0, DELTA)
    assert one.epsilon < both.epsilon < 3.0  # basic composition, which costs twice delta besides


def test_the_costliest_sampled_plans_are_those_at_the_delta_that_is_stated() -> None:
    sizes, half = {"a": 32, "b": 2400, "c": 32, "d": 2400}, {"sampler": "poisson", "fraction": 0.5}
    run = resolved(sizes, {"algorithm.batch": half}, unit="person", delta="1/n^2")
    silos, largest = preview(run), 32**-2
    plans = [(cost.compose(run.trace.plan.census(), each.terms.n), each.noise_multiplier) for each in silos]
    for row in worth(run).rows:
        joined = [cost.joint(chosen).epsilon(1.0, largest) for chosen in combinations(plans, row.silos or 0)]
        assert (row.epsilon, row.delta) == (max(joined), largest)


def test_a_joint_plan_of_equal_silos_is_their_composition() -> None:
    run = resolved(FOUR, {"algorithm.batch": POISSON})
    census, z = run.trace.plan.census(), preview(run)[0].noise_multiplier
    alone = cost.compose(census, 200)
    together = cost.compose_runs([census] * 3, 200)
    assert cost.joint([(alone, z)] * 3).epsilon(1.0, DELTA) == pytest.approx(together.epsilon(z, DELTA))


def test_of_training_and_evaluation_the_larger_cost_counts_and_no_sum() -> None:
    run = resolved(FOUR, {"evaluate": {"bins": 4}, "report": {"metric": "auc"}}, unit="person")
    found = worth(run)
    mu = float(gaussian.mu(1.0, DELTA))
    assert epsilons(found) == pytest.approx(
        [float(gaussian.epsilon(k**0.5 * mu, DELTA)) for k in (1, 2, 3, 4)], rel=1e-3
    )
    more = resolved(FOUR, {"evaluate": {"bins": 4}, "algorithm.batch": POISSON}, unit="person")
    (silo, *_), (other, *_) = preview(more), preview_evaluation(more)
    larger = max(silo.epsilon_guaranteed, other.epsilon_guaranteed)
    assert epsilons(worth(more)) == pytest.approx([k * larger for k in (1, 2, 3, 4)])
    assert [row.delta for row in worth(more).rows] == pytest.approx([k * DELTA for k in (1, 2, 3, 4)])


def test_each_silo_has_the_larger_of_its_own_two_costs() -> None:
    """Two silos whose costs are in other parts: sorting each part first would lose one."""
    run = resolved({"a": 200, "b": 200}, {"evaluate": {"bins": 4}}, unit="person")
    trained, evaluated = preview(run), preview_evaluation(run)
    trained[0] = replace(trained[0], noise_multiplier=100 * trained[0].noise_multiplier)
    evaluated[1] = replace(evaluated[1], noise_multiplier=100 * evaluated[1].noise_multiplier)
    both = persons(run, trained, evaluated)["persons"].rows[-1]
    exact = float(gaussian.epsilon(math.sqrt(2) * float(gaussian.mu(1.0, DELTA)), DELTA))
    assert both.epsilon == pytest.approx(exact, rel=1e-3)


def test_exact_noise_has_no_row_where_its_distance_from_gaussian_noise_passes_delta() -> None:
    run = resolved(FOUR, {"algorithm.num_rounds": 30})
    near = worth(run, deployed=True)
    assert epsilons(near)[0] == pytest.approx(epsilons(worth(run))[0], rel=1e-3)
    assert epsilons(near)[0] > epsilons(worth(run))[0]
    assert epsilons(near)[-1] is None


def test_without_a_guarantee_there_is_nothing_to_say() -> None:
    run = resolved(FOUR, mechanism="none", epsilon=None)
    assert persons(run, preview(run)) == {}


def test_what_a_simulation_counts_is_a_row_and_not_private() -> None:
    found = worth(resolved(FOUR), most=173)
    assert [row.records for row in found.rows] == [2, 5, 10, 50, 173]
    (line,) = worth_lines(SimpleNamespace(persons=found))
    assert "2 / 5 / 10 / 50 / 173 records" in line
    assert "173 are the most that one has in these data, which is not private" in line
    assert "as many records only" in line


def test_the_price_states_it_rounded_up() -> None:
    shown = price(changed(BASE, {"privacy.delta": DELTA})).statement
    assert shown.tree()["persons"]["rows"][0] == {
        "records": 2,
        "epsilon": pytest.approx(2.123, abs=1e-3),
        "delta": DELTA,
    }
    run = resolved(FOUR, unit="person")
    (line,) = worth_lines(Privacy(**of_plan(run, preview(run))))
    first, *_ = line.removeprefix("a person in 1 / 2 / 3 / 4 silos: epsilon ").split(" ")
    assert float(first) >= 1 - 1e-9
    assert np.isclose(float(first), 1.0, atol=1e-3)


def test_a_simulation_counts_the_most_records_of_a_person_and_a_price_does_not() -> None:
    rng = np.random.default_rng(0)
    features, silo = rng.uniform(-1, 1, (120, 3)), np.arange(120) % 2
    person = np.where(np.arange(120) < 74, silo, np.arange(120))  # two have 37 records in one silo each
    data = Arrays(features, (features[:, 0] > 0).astype(int), silo, ranges=(-1.0, 1.0), person=person)
    tree = {key: value for key, value in BASE.items() if key not in ("data", "partition")}
    run = simulate(changed(tree, {"data": "synthetic", "partition": "natural_id"}), data=data)
    found = run.summary.privacy.persons
    assert 37 / 2 < found.most_records <= 37  # the rest is held out to test
    assert found.most_records in [row.records for row in found.rows]
    assert "not private" in worth_lines(SimpleNamespace(persons=found))[0]
    priced = price(changed(tree, {"data": "synthetic", "partition": "natural_id"}), data=data)
    assert priced.statement.persons.most_records is None


def test_what_is_stated_of_several_records_is_of_what_is_protected() -> None:
    """Of labels, or groups, alone: nothing covers a swap with another person's features."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (60, 2)), rng.normal(size=60)
    data = Arrays(x, y.clip(-1, 1), np.repeat(["a", "b", "c"], 20), ranges=(-1.0, 1.0))
    own = {"name": "labels", "problem": "linear_regression", "partition": "natural_id"}
    tree = own | {"algorithm": {"name": "label_regression"}, "privacy": {"epsilon": 1.0}}
    found = price(tree, data=data, conversions=True)
    said = found.statement
    assert said.title == "replace the label of one record"
    assert "for other labels of as many records only" in said.persons.note
    assert said.conversions.central_of.startswith("the label of one record of one silo; features are not")
