"""Records in memory."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.common.errors import InputError
from fedsim.data.arrays import Arrays
from fedsim.data.builtin import Digits
from fedsim.data.by_label import DirichletPartition, NaturalIdPartition
from fedsim.data.federation import load, outline
from fedsim.results.outcome import Results
from fedsim.results.privacy_statement import not_private
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation import on_ray
from fedsim.simulation import trial as in_process

DIGITS = Digits().open()
PIXELS, DIGIT = DIGITS.features, DIGITS.other("digit")
NORTH_SOUTH = ["north", "south", "north", "south"]
SCENARIO: dict[str, Any] = {
    "name": "arrays",
    "partition": "natural_id",
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 1.0, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0, "delta": 0.01},
}


def small(**options: Any) -> Arrays:
    return Arrays([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], [0, 1, 1, 0], NORTH_SOUTH, **options)


def test_they_are_records_like_any_others() -> None:
    arrays = Arrays(PIXELS, DIGIT, DIGIT, ranges=(0, 16))
    ours = load(arrays, NaturalIdPartition(), 0, 1)
    theirs = load(Digits(), NaturalIdPartition(partition_by="digit"), 0, 1)
    assert ours.digest == theirs.digest
    for one, other in zip(ours.silos, theirs.silos, strict=True):
        assert one.name == other.name
        assert np.array_equal(one.train_features, other.train_features)
        assert np.array_equal(one.test_target, other.test_target)
    assert outline(arrays, NaturalIdPartition(), 0).sizes == {s.name: len(s.train_target) for s in ours.silos}


def test_a_partition_may_use_any_column() -> None:
    arrays = Arrays(PIXELS, DIGIT)
    dealt = DirichletPartition(num_partitions=3, alpha=1.0)
    assert outline(arrays, dealt, 0) == outline(Digits(), dealt, 0)
    assert list(outline(small(), NaturalIdPartition(partition_by="x1"), 0).sizes) == ["2", "4", "6", "8"]
    with pytest.raises(InputError, match="name the column that says whose record it is"):
        outline(arrays, NaturalIdPartition(), 0)


def test_nothing_is_scaled_without_ranges() -> None:
    (north, south) = load(small(test_fraction=0.01), NaturalIdPartition(), 0, 0).silos
    assert north.train_features.tolist() == [[1, 2, 1], [5, 6, 1]]
    assert south.train_target.tolist() == [1, 0]
    numbers = Arrays([[0.0], [1.0]], [0.5, 1.5], [7, 8], intercept=False)
    assert outline(numbers, NaturalIdPartition(), 0).num_classes == 0
    scaled = load(small(ranges=([0, 0], [8, 8])), NaturalIdPartition(), 0, 0)
    assert scaled.silos[0].train_features[0].tolist() == [-0.75, -0.5, 1]
    assert not any("ranges" in note for note in small().not_private)
    assert any("ranges" in note for note in small(ranges=(0, 8)).not_private)


def test_a_scenario_holds_the_object_and_its_text_the_hashes() -> None:
    data = small()
    scenario = parse(SCENARIO | {"data": data})
    assert scenario.data is data
    changed = scenario.model_copy(update={"data": small(scaling="training_statistics")})
    assert "training_statistics" in not_private(changed)[0]
    text = scenario.model_dump(mode="json")["data"]
    assert text["features"].startswith("<f8(4, 2) sha256 ")
    assert text["intercept"] is True
    assert parse(SCENARIO | {"data": small()}) == scenario
    with pytest.raises(InputError, match=r"scenario\.data\.name: 'arrays': must be one of"):
        parse(scenario.model_dump(mode="json"))


def test_equal_content_makes_equal_objects_that_travel_and_nobody_changes() -> None:
    data, again = small(), pickle.loads(pickle.dumps(small()))
    other = Arrays(data.features, [1, 1, 1, 0], NORTH_SOUTH)
    assert data == again
    assert hash(data) == hash(again)
    assert data != other
    assert load(data, NaturalIdPartition(), 0, 0).digest == load(again, NaturalIdPartition(), 0, 0).digest
    given = np.ones((2, 1))
    copied = Arrays(given, [0, 1])
    given[0] = 5
    assert copied.features.tolist() == [[1], [1]]
    with pytest.raises(ValueError, match="read-only"):
        copied.features[0] = 2


X = [[1.0], [2.0], [3.0]]
BAD: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (([1.0, 2.0], [0, 1]), {}, "features: (2,): must have shape (n, p)"),
    (([[1.0], [2.0, 3.0]], [0, 1]), {}, "features: 'list': must be numbers of shape (n, p)"),
    (([["a"], ["b"]], [0, 1]), {}, "features: '<U1': must be numbers"),
    (([[1.0], [np.nan]], [0, 1]), {}, "features: nan: at [1, 0]: must be finite"),
    ((np.empty((0, 2)), []), {}, "features: (0, 2): must have shape (n, p), with at least one record"),
    ((X, [0, 1]), {}, "target: (2,): must have shape (3,)"),
    ((X, [0, 1, -1]), {}, "target: -1: classes are whole numbers from 0"),
    ((X, [0, 0, 0]), {}, "target: 0: needs records of at least two classes"),
    ((X, ["ill", "well", "ill"]), {}, "target: '<U4': must be whole numbers from 0 for classes"),
    ((X, [0.0, 1.0, np.inf]), {}, "target: inf: at [2]: must be finite"),
    ((X, [0, 1, 0], ["a", "b"]), {}, "silo: (2,): must have shape (3,)"),
    ((X, [0, 1, 0], ["a", None, "b"]), {}, "silo: None: row 1: must be a name or a whole number"),
    ((X, [0, 1, 0]), {"ranges": (1, 0)}, "ranges: (1, 0): must be (lower, upper)"),
    ((X, [0, 1, 0]), {"ranges": ([0, 0], [1, 1])}, "ranges: ([0, 0], [1, 1]): must be (lower, upper)"),
    ((X, [0, 1, 0]), {"scaling": "declared"}, "scaling: 'declared': needs ranges"),
    ((X, [0, 1, 0]), {"test_fraction": 2}, "test_fraction: 2: "),
    ((X, [0, 1, 0]), {"intercpt": False}, "intercpt: False: "),
]


@pytest.mark.parametrize(("arguments", "options", "said"), BAD)
def test_what_is_wrong_is_named(arguments, options, said: str) -> None:
    with pytest.raises(InputError) as caught:
        Arrays(*arguments, **options)
    assert str(caught.value).startswith(said)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [0, 1])
def test_they_travel_to_ray_by_value(hosts: int) -> None:
    models = []
    for runtime in ({"name": "inprocess"}, {"name": "ray", "silo_hosts": hosts}):
        resolved, results = (
            resolve(parse(SCENARIO | {"data": small(test_fraction=0.5), "runtime": runtime})),
            Results(),
        )
        (in_process if runtime["name"] == "inprocess" else on_ray).execute(resolved, results, lambda _: None)
        models.append(results.trials[0].models["private"])
    assert torch.equal(*models)
