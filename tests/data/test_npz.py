"""A person's own arrays in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.common.errors import InputError
from fedsim.data.arrays import Arrays, Npz
from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.federation import load, outline
from fedsim.data.partition import IidPartition
from fedsim.scenario.load import load as load_scenario

X = np.arange(8.0).reshape(4, 2)
Y = np.array([0, 1, 1, 0])


@pytest.fixture
def npz(tmp_path: Path) -> Any:
    """`npz(fields of the data set, **arrays)`."""

    def make(fields: dict[str, Any] | None = None, **arrays: Any) -> Npz:
        np.savez(tmp_path / "records.npz", **arrays)
        return Npz(path=tmp_path / "records.npz", **(fields or {}))

    return make


def test_the_file_gives_what_the_arrays_give(npz) -> None:
    silo, ranges = np.array(["north", "south", "north", "south"]), ([0.0, 0.0], [10.0, 10.0])
    data = npz({"scaling": "declared"}, features=X, target=Y, silo=silo, ranges=np.array(ranges))
    same = Arrays(X, Y, silo, ranges=ranges)
    a, b = (load(each, NaturalIdPartition(), 0, 0) for each in (data, same))
    assert a.digest == b.digest
    assert [silo.name for silo in a.silos] == ["north", "south"]
    assert "the ranges count as public" in data.not_private[0]


def test_features_stay_as_they_are_without_ranges(npz) -> None:
    silo = load(
        npz({"intercept": False}, features=X, target=Y + 0.5), IidPartition(num_partitions=1), 0, 0
    ).silos[0]
    assert {tuple(x) for x in [*silo.train_features, *silo.test_features]} == {tuple(x) for x in X}
    assert silo.train_target.dtype == np.float64


def test_declared_classes_count_where_no_record_has_them(npz) -> None:
    data = npz({"classes": 3}, features=X, target=np.zeros(4, dtype=int))
    assert outline(data, IidPartition(num_partitions=1), 0).num_classes == 3


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no target": ({}, {"features": X}, "has no array 'target'"),
    "an unknown array": ({}, {"features": X, "target": Y, "sillo": Y}, "did you mean 'silo'?"),
    "objects": ({}, {"features": X, "target": np.array([{}, 1, 2, 3])}, "not a readable npz file"),
    "a short target": ({}, {"features": X, "target": Y[:3]}, "must have shape (4,)"),
    "ranges of no such shape": (
        {"scaling": "declared"},
        {"features": X, "target": Y, "ranges": np.zeros((3, 2))},
        "must be lower and upper ends",
    ),
    "declared without ranges": ({"scaling": "declared"}, {"features": X, "target": Y}, "has no array ranges"),
    "ranges that nobody speaks of": (
        {},
        {"features": X, "target": Y, "ranges": np.ones((2, 2))},
        "say whether they scale",
    ),
    "more classes than declared": ({"classes": 2}, {"features": X, "target": Y * 2}, "classes are 0 to 1"),
    "classes of numbers": ({"classes": 2}, {"features": X, "target": Y / 2}, "whole numbers"),
}


@pytest.mark.parametrize(("fields", "arrays", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(npz, fields: dict[str, Any], arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        npz(fields, **arrays).open()
    assert caught.value.field.startswith("scenario.data.")
    assert said in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 not a zip", b"\x93NUMPY"])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "records.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        InputError, match=r"scenario\.data\.path: .*(no such file|not a readable npz|has no array)"
    ):
        Npz(path=path).open()


def test_a_scenario_names_it_relative_to_itself(tmp_path: Path) -> None:
    np.savez(tmp_path / "records.npz", features=X, target=Y)
    lines = "name: own\ndata: {name: npz, path: records.npz}\npartition: {name: iid, num_partitions: 1}\n"
    lines += "problem: logistic_regression\nprivacy: {epsilon: 1.0}\n"
    lines += "algorithm: {name: prox_sgd, num_rounds: 1, step_size: 1.0, clip_norm: 1.0}\n"
    (tmp_path / "own.yaml").write_text(lines)
    assert load_scenario(tmp_path / "own.yaml").data.open().num_rows == 4
