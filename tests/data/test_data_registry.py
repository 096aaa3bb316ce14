"""What `fedsim list` says, and what editors show."""

from __future__ import annotations

import inspect

import pytest

from fedsim.data.registry import PARTITIONS, data_sets

MODELS = [*data_sets().values(), *PARTITIONS.values()]


def test_every_data_set_and_partition_has_its_line() -> None:
    assert set(data_sets()) == {"breast_cancer", "cifar10", "digits", "mnist", "synthetic", "csv", "npz"}
    names = {"iid", "size", "dirichlet", "pathological", "natural_id", "label_pairs", "sorted"}
    assert set(PARTITIONS) == names
    assert {name: kind.model_fields["name"].default for name, kind in PARTITIONS.items()} == {
        name: name for name in names
    }
    assert all(inspect.getdoc(model).partition("\n")[0].endswith(".") for model in MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_every_field_has_a_description(model) -> None:
    fields = model.model_json_schema()["properties"]
    assert all(field.get("description") for field in fields.values())


@pytest.mark.parametrize("model", MODELS)
def test_configurations_are_frozen_and_strict(model) -> None:
    assert model.model_config["frozen"]
    assert model.model_config["extra"] == "forbid"
