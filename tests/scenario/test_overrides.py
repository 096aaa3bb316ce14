"""Overrides by full and by short names."""

from __future__ import annotations

from typing import Any

import pytest

from fedsim.common.errors import InputError
from fedsim.common.section import fields
from fedsim.scenario.load import apply, full_name
from fedsim.scenario.model import Scenario

TREE: dict[str, Any] = {
    "data": {"name": "synthetic", "rows": 100},
    "partition": "iid",
    "algorithm": {"name": "local_sgd", "batch": {"sampler": "poisson", "fraction": 0.5}},
}


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("epsilon", "privacy.epsilon"),
        ("step_size", "algorithm.step_size"),
        ("trials", "trials"),
        ("seed", "seed"),  # a field of the scenario, and only then one of the data
        ("local_steps", "algorithm.local_steps"),
        ("fraction", "algorithm.batch.fraction"),  # given; others might be
        ("batch.fraction", "algorithm.batch.fraction"),
        ("rows", "data.rows"),
        ("nonprivate_twin", "report.nonprivate_twin"),
        ("algorithm.stepsize", "algorithm.stepsize"),  # in full: validation says what is wrong with it
    ],
)
def test_a_short_name_is_the_only_field_that_ends_so(short: str, full: str) -> None:
    assert full_name(TREE, short) == full


@pytest.mark.parametrize(
    ("short", "told"),
    [
        ("beta", ["problem.smoothing.beta", "assumptions.beta"]),
        ("epsilom", ["no such field", "'epsilon'"]),
        ("privcy.epsilon", ["'privacy.epsilon'"]),
        ("period", ["no such field"]),  # another algorithm's
        ("privcy", ["'privacy'"]),
    ],
)
def test_a_name_that_says_no_one_field_is_refused(short: str, told: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        apply(TREE, {short: 3})
    for text in [short, "3", *told]:
        assert text in str(caught.value)


def test_changes_are_made_in_order_to_a_copy() -> None:
    changed = apply(TREE, {"partition.num_partitions": 3, "batch": "full", "epsilon": 2.0})
    assert changed["partition"] == {"name": "iid", "num_partitions": 3}
    assert changed["algorithm"] == {"name": "local_sgd", "batch": "full"}
    assert changed["privacy"] == {"epsilon": 2.0}
    assert TREE["partition"] == "iid"
    with pytest.raises(InputError, match="no such field"):
        apply(TREE, {"algorithm": {"name": "prox_spider"}, "local_steps": 2})


def test_the_fields_of_what_a_person_names_are_fields_too() -> None:
    columns = {"age": {"kind": "number"}, "sick": {"kind": "category"}}
    found = fields(
        {"data": {"name": "csv", "schema": columns}, "privacy": {"epsilon": {"north": 1.0}}}, Scenario
    )
    assert {"data.schema.age.upper", "data.schema.sick.categories", "privacy.epsilon.north"} <= set(found)
    assert "data.schema.sick.upper" not in found
