"""The unit in a scenario: what is refused before a record is read, by field and cure; sizes and noise."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.refusals import ANY, refused
from support.scenarios import BASE, changed

from fedsim.api.asked import Histogram
from fedsim.api.release import release
from fedsim.api.sweep import sweep
from fedsim.common.errors import InputError
from fedsim.data.arrays import Arrays
from fedsim.data.source import Outline
from fedsim.privacy import gaussian
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview

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


@pytest.mark.parametrize(
    ("unit", "privacy", "more", "why"),
    [
        (person(relation="replace_values"), SUMS, {}, "use replace_person"),
        (
            ADDED,
            {"expected_persons": 50},
            {"algorithm.batch": {"sampler": "subsample", "fraction": 0.1}},
            "use full or poisson",
        ),
        (
            ADDED,
            {"expected_persons": 50, "mechanism": "shuffled_gaussian"},
            {},
            "use gaussian or summed_gaussian",
        ),
        (
            person(silos_per_person=2),
            {"mechanism": "shuffled_binomial", "honest_fraction": 1.0},
            {},
            "gaussian or",
        ),
        (
            person(),
            {},
            {"problem": "linear_regression", "algorithm": {"name": "label_regression"}},
            "use bound limit or smooth",
        ),
    ],
)
def test_a_plan_without_a_price_for_persons_is_refused_in_the_scenario(
    unit: Any, privacy: dict[str, Any], more: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=r"scenario\.privacy\.unit") as error:
        resolved(unit, more, **privacy)
    assert why in str(error.value)
    assert "'name': 'person'" in str(error.value)


def test_an_expected_number_stands_for_the_private_one_everywhere() -> None:
    """The outline's 40 and 60 are private: neither size, weight nor delta may follow them."""
    sized = {"problem": {"name": "logistic_regression", "silo_weights": "size"}}
    found = resolved(ADDED, sized, expected_persons={"a": 50, "b": 150})
    assert found.sizes == (50, 150)
    assert found.weights == (0.25, 0.75)
    assert found.deltas == (1 / 50**2, 1 / 150**2)
    assert found.public().sizes.tolist() == [50, 150]
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


def released(persons: int, **privacy: Any) -> tuple[float, float]:
    """A count of persons by a range that holds them all, and its standard error."""
    own = {"epsilon": 1.0, "delta": 1e-6} | privacy
    tree = changed(BASE, {"privacy": own, "data": "synthetic", "partition": "natural_id"})
    found = release(tree, {"x0": Histogram(2)}, data=visits(persons))
    return sum(found.values["x0"].values()), next(iter(found.errors["x0"].values()))


def test_a_release_by_an_expected_number_of_persons_has_half_the_noise_and_follows_no_true_number() -> None:
    one, error = released(60, unit=ADDED, expected_persons=60)
    assert released(80, unit=ADDED, expected_persons=60) == pytest.approx((60, error))
    replaced = released(60, unit="person")[1]
    assert replaced == pytest.approx(error * 2**0.5, rel=1e-6)  # of one cell: spread sqrt 2 against 1
    assert one == pytest.approx(60)  # counts add up to the public number


def test_private_tuning_of_persons_whose_number_or_silos_it_cannot_price_is_refused() -> None:
    tune = {"grid": {"algorithm.step_size": [0.1, 0.5]}, "private": {"fraction": 0.4}}
    for unit, more in ((ADDED, {"expected_persons": 30}), (person(silos_per_person=2), {})):
        tree = changed(BASE, {"privacy": {"epsilon": 1.0, "unit": unit} | more, "sweep": {"tune": tune}})
        scenario = parse(tree | {"data": "synthetic", "partition": "natural_id"})
        with refused("scenario.privacy.unit", ANY, "private tuning is for persons of one silo each"):
            sweep(scenario, data=visits(60))
