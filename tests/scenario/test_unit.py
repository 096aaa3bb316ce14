"""The unit in a scenario: what is refused before a record is read, by field and cure; sizes and noise."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.refusals import refused
from support.scenarios import BASE, changed

from fedsim.api.asked import Histogram
from fedsim.api.release import Released, release
from fedsim.common.errors import InputError
from fedsim.data.arrays import Arrays
from fedsim.data.source import Outline
from fedsim.privacy import gaussian
from fedsim.protocol.contributions import tradeoff
from fedsim.protocol.unit import Person
from fedsim.report.conversions import conversions
from fedsim.scenario.by_theorem import noise_of
from fedsim.scenario.contributions import sweet_spot
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview
from fedsim.theory.averaged_noise import Kind

SHAPE = Outline(
    sizes={"a": 40, "b": 60}, num_features=4, num_classes=2, num_records=150, held_out={"a": 20, "b": 30}
)
SUMS = {"mechanism": "summed_gaussian", "honest_fraction": 1.0}


def resolved(unit: Any, more: dict[str, Any] | None = None, **privacy: Any) -> Resolved:
    """Two silos of 40 and 60 persons; no record is read."""
    tree = changed(BASE, {"privacy": {"epsilon": 1.0, "unit": unit} | privacy} | (more or {}))
    classes = 0 if tree["problem"] == "linear_regression" else 2
    return resolve(parse(tree), replace(SHAPE, num_classes=classes))


def person(**fields: Any) -> dict[str, Any]:
    return {"name": "person"} | fields


ADDED = person(relation="add_remove")


@pytest.mark.parametrize(
    ("unit", "field", "value", "hint"),
    [
        (person(bound="limit"), "unit.h", None, "is required with bound limit"),
        (person(h=3), "unit.h", 3, "h is for limit and smooth"),
        (person(bound="smooth", h=0), "unit.h", 0, "greater than or equal to 1"),
        (person(silos_per_person=0), "unit.silos_per_person", 0, "greater than or equal to 1"),
        (person(relation="add"), "unit.relation", "add", "'add_remove'"),
        ("people", "unit.name", "people", "must be one of record, person"),
        (ADDED, "expected_persons", None, "is required with relation add_remove"),
    ],
)
def test_a_unit_that_is_none_is_refused_by_its_field(unit: Any, field: str, value: Any, hint: str) -> None:
    with refused(f"scenario.privacy.{field}", value, hint):
        resolved(unit)


def test_expected_persons_are_for_units_that_are_added_or_removed() -> None:
    for unit in ("record", "person", person(relation="replace_values")):
        with refused(
            "scenario.privacy.expected_persons", 50, "only with unit person and relation add_remove"
        ):
            resolved(unit, expected_persons=50)
    with refused("scenario.privacy.expected_persons", [50], "one value a silo: 2"):
        resolved(ADDED, expected_persons=[50])


def test_an_expected_number_stands_for_the_private_one_everywhere() -> None:
    """The outline's 40 and 60 are private: neither size, weight nor delta may follow them."""
    sized = {"problem": {"name": "logistic_regression", "silo_weights": "size"}}
    found = resolved(ADDED, sized, expected_persons={"a": 50, "b": 150})
    assert found.sizes == (50, 150)
    assert found.weights == (0.25, 0.75)
    assert found.deltas == (1 / 50**2, 1 / 150**2)
    assert found.public().sizes.tolist() == [50, 150]
    assert found.public().unit.one_sided
    assert [silo.terms.n for silo in preview(found)] == [50, 150]
    assert [budget.n for budget in found.premises.claims] == [50, 150]


def test_noise_of_an_added_person_is_half_that_of_a_replaced_one() -> None:
    one, other = resolved("person"), resolved(ADDED, expected_persons=[40, 60])
    query = next(iter(one.trace.plan.queries))
    assert [found.trace.plan.spread(query) for found in (one, other)] == [2.0, 1.0]
    assert [silo.noise_multiplier for silo in preview(one)] == [
        silo.noise_multiplier for silo in preview(other)
    ]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_silo_calibrates_to_a_person_in_k_silos(k: int) -> None:
    for silo in preview(resolved(person(silos_per_person=k), delta=1e-6)):
        mu = 2 / silo.noise_multiplier  # four rounds
        assert float(gaussian.epsilon(mu * k**0.5, 1e-6)) == pytest.approx(1.0, abs=2e-3)
        assert silo.epsilon_guaranteed == pytest.approx(float(gaussian.epsilon(mu, 1e-6)))


def visits(persons: int) -> Arrays:
    """One silo in which everybody has two records."""
    x = np.random.default_rng(1).uniform(0, 1, (2 * persons, 1))
    whose = np.arange(2 * persons) % persons
    target = np.arange(2 * persons) % 3 == 0
    return Arrays(x, target.astype(int), np.zeros(2 * persons, int), ranges=(0.0, 1.0), person=whose)


def released(persons: int, **privacy: Any) -> Released:
    """A histogram over a range that holds everybody."""
    own = {"epsilon": 1.0, "delta": 1e-6} | privacy
    tree = changed(BASE, {"privacy": own, "data": "synthetic", "partition": "natural_id"})
    return release(tree, {"x0": Histogram(2)}, data=visits(persons))


def test_a_release_by_an_expected_number_of_persons_finds_the_true_one_and_its_noise_does_not_follow_it() -> (
    None
):
    few, many = (released(n, unit=ADDED, expected_persons=60, epsilon=100.0) for n in (60, 300))
    for found, n in ((few, 60), (many, 300)):
        number, cells = found.found["persons"][0], found.found["x0"]
        assert number.value == pytest.approx(n, abs=4 * number.standard_error)
        assert sum(cell.value for cell in cells) == pytest.approx(n, abs=6 * number.standard_error)
        assert found.spent == {"x0 histogram": 0.5, "persons number": 0.5}
        assert {cell.standard_error for cell in cells} == {number.standard_error}  # a term's norm is 1
    assert few.errors == many.errors
    replaced = released(60, unit="person", epsilon=100.0)
    assert sum(cell.value for cell in replaced.found["x0"]) == pytest.approx(60)  # which is public
    # spread sqrt 2 against 1; half of the variance, as two cells are forced to their sum; and one entry less
    alone, own = replaced.found["x0"][0].standard_error, few.found["x0"][0].standard_error
    assert alone == pytest.approx(own / 2**0.5, rel=1e-6)
    assert not few.notices
    assert many.notices[0].endswith("; expected_persons add up to 60: declare about as many as there are")


PROFILE = {1: 0.6, 2: 0.2, 5: 0.15, 50: 0.05}
QUANTILE = {"choose": "quantile", "share": 0.1}


def chosen(rule: Any, bound: str = "limit", more: dict[str, Any] | None = None, **privacy: Any) -> Resolved:
    return resolved(person(bound=bound, h=rule), more, **privacy)


@pytest.mark.parametrize("bound", ["limit", "smooth"])
@pytest.mark.parametrize("choose", ["sweet_spot", "tradeoff"])
def test_h_of_a_declared_profile_is_one_number_before_there_is_a_plan(choose: str, bound: str) -> None:
    """The smallest of the silos' own: the smallest silo, or the smallest budget, decides for all."""
    rule = {"choose": choose, "profile": PROFILE}
    found = [chosen(rule, bound, epsilon=epsilon) for epsilon in ([1.0, 1.0], [1e4, 1e4], [1e4, 0.5])]
    units = [each.scenario.privacy.unit for each in found]
    assert [each.trace.plan.unit for each in found] == units
    by = sweet_spot if choose == "sweet_spot" else partial(tradeoff, bound=bound)
    for each, unit in zip(found, units, strict=True):
        mus = gaussian.mu(each.epsilons, each.deltas)
        noises = 2 * each.problem.dimension**0.5 / mus
        own = [by(PROFILE, n, float(noise)) for n, noise in zip(each.sizes, noises, strict=True)]
        assert isinstance(unit, Person)
        assert unit.h == min(own)
    few, many, mixed = (getattr(unit, "h", 0) for unit in units)
    assert few == mixed < 3 < 48 < many
    again = resolve(parse(found[0].scenario.model_dump(mode="json")), found[0].outline)
    assert again.scenario == found[0].scenario


def test_an_added_persons_noise_and_that_of_two_silos_move_the_sweet_spot() -> None:
    rule = {"choose": "sweet_spot", "profile": dict.fromkeys(range(1, 21), 0.05)}
    h = []
    for fields in ({}, {"relation": "add_remove"}, {"silos_per_person": 4}):
        expected = {"expected_persons": [400, 600]} if "relation" in fields else {}
        unit = person(bound="smooth", h=rule, **fields)
        shape = replace(SHAPE, sizes={"a": 400, "b": 600}, num_classes=2)
        tree = changed(BASE, {"privacy": {"epsilon": 1.0, "delta": 1e-6, "unit": unit} | expected})
        h.append(resolve(parse(tree), shape).scenario.privacy.unit.h)  # type: ignore[union-attr]
    mu = float(gaussian.mu(1.0, 1e-6))  # noise times it is spread sqrt(d) sqrt(silos), d = 4
    assert h == [next(s for s in range(1, 21) if 400 * (20 - s) / 20 < each / mu) for each in (4, 2, 8)]


@pytest.mark.parametrize(
    ("rule", "field", "hint"),
    [
        ({"choose": "best"}, "unit.h.choose", "should be 'sweet_spot', 'tradeoff'"),
        ({"choose": "sweet_spot"}, "unit.h.profile", "sweet_spot needs profile alone"),
        ({"choose": "tradeoff", "profile": PROFILE, "share": 0.1}, "unit.h.share", "needs profile alone"),
        (QUANTILE | {"profile": PROFILE}, "unit.h.profile", "quantile needs share alone"),
        ({"choose": "tradeoff", "profile": {1: 0.5, 2: 0.4}}, "unit.h.profile", "that sum to 1"),
        ({"choose": "tradeoff", "profile": {0: 1.0}}, "unit.h.profile", "greater than or equal to 1"),
        ({"choose": "quantile"}, "unit.h.share", "quantile needs share alone"),
        ({"choose": "quantile", "share": 0.0}, "unit.h.share", "greater than 0"),
        ({"choose": "quantile", "share": 1.0}, "unit.h.share", "less than 1"),
        (QUANTILE | {"q": 1.5}, "unit.h.q", "less than or equal to 1"),
        (QUANTILE | {"largest": 1}, "unit.h.largest", "greater than or equal to 2"),
        (QUANTILE | {"larger": 1}, "unit.h.larger", "unknown key; did you mean 'largest'?"),
    ],
)
def test_a_rule_for_h_that_is_none_is_refused_by_its_field(rule: Any, field: str, hint: str) -> None:
    with pytest.raises(InputError, match=rf"scenario\.privacy\.{field}.*{hint}".replace("?", r"\?")):
        chosen(rule)


def test_a_quantile_is_paid_for_within_the_budget() -> None:
    """The plan's price is its census's, in which the histogram has its share of mu^2, whatever h is."""
    found = chosen(QUANTILE, more={"algorithm.num_rounds": 3}, epsilon=[0.5, 2.0])
    plan, stages = found.trace.plan, len(found.trace.plan.rounds) - 3
    assert stages == 1
    assert [query.statistic for ask in plan.rounds[0] for query in ask.queries] == ["contributions"]
    for silo, epsilon, delta in zip(preview(found), found.epsilons, found.deltas, strict=True):
        z = silo.noise_multiplier
        squares = [sum(ask.weight**2 for ask in asks) / z**2 for asks in plan.rounds]
        assert squares[0] / sum(squares) == pytest.approx(0.1)
        assert silo.epsilon_guaranteed == pytest.approx(float(gaussian.epsilon(sum(squares) ** 0.5, delta)))
        assert epsilon * (1 - 1e-3) <= silo.epsilon_guaranteed <= epsilon
    spread = plan.spread(plan.rounds[0][0].queries[0])
    assert spread == 2**0.5


def test_a_quantile_is_composed_with_other_stages() -> None:
    more = {"prepare": [{"name": "standardise", "share": 0.2, "clip": 5.0}]}
    found = chosen(QUANTILE, "smooth", more)
    squares = [sum(ask.weight**2 for ask in asks) for asks in found.trace.plan.rounds]
    assert [square / sum(squares) for square in squares[:2]] == pytest.approx([0.1, 0.2])
    with pytest.raises(InputError, match=r"scenario\.prepare.*sum to less than 1"):
        chosen({"choose": "quantile", "share": 0.8}, "smooth", more)


def test_noise_that_is_given_as_sigma_is_over_what_a_person_moves_a_mean_by() -> None:
    given: dict[str, Any] = {"calibration": "sigma", "sigma": 0.1, "epsilon": 50}
    z = resolved("person", **given).noise_multipliers
    added = resolved(ADDED, expected_persons=list(SHAPE.sizes.values()), **given).noise_multipliers
    assert z is not None
    assert added == tuple(2 * each for each in z)


@pytest.mark.parametrize("k", [1, 2])
def test_conversions_of_persons_speak_of_no_records(k: int) -> None:
    run = resolved(person(silos_per_person=k), epsilon=[0.5, 1.0], delta=1e-5)
    admitted = preview(run)
    found = conversions(run, admitted)
    assert found.silos == []
    assert found.central_of == f"one person, who is in {k} silo{'s' * (k > 1)} at most"
    mus = [2 / each.noise_multiplier for each in admitted]  # four rounds of all persons
    mu = math.hypot(*mus) if k == 2 else max(mus)
    assert found.central is not None
    assert found.central == pytest.approx((float(gaussian.epsilon(mu, 1e-5)), 1e-5), rel=1e-9)


def test_what_takes_sums_to_move_by_two_clips_is_refused_for_persons_more_or_fewer() -> None:
    def refusal() -> Any:
        return refused("scenario.privacy.unit.relation", "add_remove", "take a sum to move by 2 clip")

    with refusal():
        resolved(ADDED, {"algorithm.parameters": "theorem"}, expected_persons=50)
    with refusal():
        resolved(ADDED, calibration="theorem", claimed_epsilon=1.0, expected_persons=50)
    with refusal():
        _ = resolved(ADDED, expected_persons=50).symbols


FULL, POISSON = {"sampler": "full"}, {"sampler": "poisson", "fraction": 0.25}


@pytest.mark.parametrize(("batch", "sums"), [(FULL, {}), (POISSON, {}), (FULL, SUMS)])
def test_auto_takes_the_noise_of_persons_more_or_fewer(batch: Any, sums: Any) -> None:
    algorithm = {"algorithm.batch": batch, "algorithm.step_size": "auto", "algorithm.clip_norm": 0.5}
    known = replace(SHAPE, squared_norms=(4.0, 2.0))
    tree = {
        "privacy": {"epsilon": [1.0, 2.0], "unit": ADDED, "expected_persons": [80, 50], "delta": 1e-5} | sums
    }
    run = resolve(parse(changed(BASE, tree | algorithm)), known)
    admitted = preview(run)
    kind = Kind(run.algorithm.batch, len(run.trace.plan.rounds))
    found = noise_of(run.scenario.privacy, run.premises).variance(0.5, kind, [kind])
    if sums:
        assert run.sums is not None
        multiplier = admitted[0].terms.noise_multiplier
        assert multiplier is not None
        expected = (run.sums.mechanism.reach(1.0) * 0.5 * multiplier * run.sums.pool.unit(kind.batch)) ** 2
    else:
        sizes = [kind.batch.size(n) for n in (80, 50)]
        deviations = [each.noise_multiplier * 0.5 / K / 2 for each, K in zip(admitted, sizes, strict=True)]
        expected = sum(own**2 for own in deviations)
    assert found == pytest.approx(expected, rel=1e-3)
    assert run.algorithm.step_size < 1.9
