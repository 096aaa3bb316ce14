"""What `fedsim list` says, and what editors show."""

from __future__ import annotations

from typing import get_args

import pytest

from fedsim.data.config import AnyPartition
from fedsim.data.datasets import data_sets
from fedsim.data.registry import datasets, partitions

MODELS = [*data_sets().values(), *get_args(AnyPartition)]


def test_every_data_set_and_partition_has_its_line() -> None:
    assert set(datasets()) == {"breast_cancer", "digits", "synthetic", "csv"}
    names = {"iid", "size", "dirichlet", "pathological", "natural_id", "label_pairs", "sorted"}
    assert set(partitions()) == names
    assert all(line.endswith(".") for line in [*datasets().values(), *partitions().values()])


@pytest.mark.parametrize("model", MODELS)
def test_every_field_has_a_description(model) -> None:
    fields = model.model_json_schema()["properties"]
    assert all(field.get("description") for field in fields.values())


@pytest.mark.parametrize("model", MODELS)
def test_configurations_are_frozen_and_strict(model) -> None:
    assert model.model_config["frozen"]
    assert model.model_config["extra"] == "forbid"
