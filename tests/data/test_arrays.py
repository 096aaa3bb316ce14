"""Records in memory."""

import csv
import inspect
import os
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from support.distribution import ROOT
from support.refusals import refused
from support.scenarios import once

from fedsim.common.errors import InputError
from fedsim.data.arrays import Arrays
from fedsim.data.builtin import Digits, Synthetic
from fedsim.data.by_label import DirichletPartition, NaturalIdPartition
from fedsim.data.federation import Federation, load, outline
from fedsim.data.partition import IidPartition
from fedsim.data.registry import PARTITIONS, data_sets
from fedsim.report.outcome import Results
from fedsim.report.privacy_statement import not_private
from fedsim.scenario.load import load as scenario_of
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation import on_ray
from fedsim.simulation import trial as in_process

DIGITS = Digits().open()
PIXELS, DIGIT = DIGITS.features, DIGITS.other("digit")
NORTH_SOUTH = ["north", "south", "north", "south"]
SCENARIO = once(partition="natural_id", privacy={"delta": 0.01})


def small(**options: Any) -> Arrays:
    return Arrays([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], [0, 1, 1, 0], NORTH_SOUTH, **options)


def test_they_are_records_like_any_others() -> None:
    arrays = Arrays(PIXELS, DIGIT, DIGIT, ranges=(0, 16))
    ours = load(arrays, NaturalIdPartition(), 0, 1)
    theirs = load(Digits(), NaturalIdPartition(partition_by="digit"), 0, 1)
    assert ours.digest == theirs.digest
    for one, other in zip(ours.silos, theirs.silos, strict=True):
        assert one.name == other.name
        assert np.array_equal(one.train.features, other.train.features)
        assert np.array_equal(one.test.target, other.test.target)
    assert outline(arrays, NaturalIdPartition(), 0).sizes == {s.name: len(s.train.target) for s in ours.silos}


def test_a_partition_may_use_any_column() -> None:
    arrays = Arrays(PIXELS, DIGIT)
    dealt = DirichletPartition(num_partitions=3, alpha=1.0)
    assert outline(arrays, dealt, 0) == replace(outline(Digits(), dealt, 0), squared_norms=None)
    assert list(outline(small(), NaturalIdPartition(partition_by="x1"), 0).sizes) == ["2", "4", "6", "8"]
    with refused("scenario.partition.partition_by", None, "name the column that says whose record it is"):
        outline(arrays, NaturalIdPartition(), 0)


def test_nothing_is_scaled_without_ranges() -> None:
    (north, south) = load(small(test_fraction=0.01), NaturalIdPartition(), 0, 0).silos
    assert north.train.features.tolist() == [[1, 2, 1], [5, 6, 1]]
    assert south.train.target.tolist() == [1, 0]
    numbers = Arrays([[0.0], [1.0]], [0.5, 1.5], [7, 8], intercept=False)
    assert outline(numbers, NaturalIdPartition(), 0).num_classes == 0
    scaled = load(small(ranges=([0, 0], [8, 8])), NaturalIdPartition(), 0, 0)
    assert scaled.silos[0].train.features[0].tolist() == [-0.75, -0.5, 1]
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
    with refused("scenario.data.name", "arrays", "must be one of"):
        parse(scenario.model_dump(mode="json"))


def test_equal_content_makes_equal_objects_that_travel_and_cannot_change() -> None:
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
    (
        (X, [0, 1, 0], ["a", None, "b"]),
        {},
        "silo: 1: of 3 records have no text or whole number (the first is row 1)",
    ),
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


# The stated optimum is the optimum.

ROWS = 200_000


def records(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    silo = federation.silos[0]
    return silo.train.features, silo.train.target


def logistic(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    sign = 2 * y - 1
    margin = sign * (x @ w)
    return float(np.logaddexp(0, -margin).mean()), -(x.T @ (sign / (1 + np.exp(margin)))) / len(y)


def squared(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    residual = x @ w - y
    return float((residual**2).mean()), 2 * x.T @ residual / len(y)


def cross_entropy(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """The last class is held at zero, as the stated normalisation says."""
    weights = w.reshape(x.shape[1], -1).copy()
    weights[:, -1] = 0
    scores = x @ weights
    log_likely = log_softmax(scores, axis=1)
    gradient = x.T @ (np.exp(log_likely) - np.eye(weights.shape[1])[y]) / len(y)
    gradient[:, -1] = 0
    return float(-log_likely[np.arange(len(y)), y].mean()), gradient.reshape(-1)


LOSSES = {"logistic": logistic, "linear": squared, "softmax": cross_entropy}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("link", ["logistic", "linear", "softmax"])
def test_the_optimum_is_the_minimiser(link: str, intercept: bool) -> None:
    """On 190,000 records the minimiser is within 0.1 of w*: more than 6 standard errors per coordinate.

    At most 12 coordinates with a standard error below 0.016 each; the false alarm rate is below 1e-6.
    """
    data = Synthetic(link=link, rows=ROWS, features=3, noise=0.5, intercept=intercept, test_fraction=0.05)
    federation = load(data, IidPartition(num_partitions=1), 0, 0)
    x, y = records(federation)
    start = np.zeros(len(federation.optimum))
    found = minimize(LOSSES[link], start, (x, y), jac=True, method="BFGS", options={"gtol": 1e-4})
    assert found.x == pytest.approx(federation.optimum, abs=0.1)
    assert np.linalg.norm(federation.optimum) > 1


def test_softmax_fixes_the_last_class_at_zero() -> None:
    data = Synthetic(link="softmax", features=4, classes=3)
    optimum = load(data, IidPartition(num_partitions=2), 0, 0).optimum
    assert optimum.shape == (15,)
    assert np.all(optimum.reshape(5, 3)[:, 2] == 0)
    assert np.all(optimum.reshape(5, 3)[:, :2] != 0)


def test_the_data_set_has_its_own_seed() -> None:
    first, same, other = (
        load(Synthetic(seed=own), IidPartition(num_partitions=2), seed, 0)
        for own, seed in ((0, 0), (0, 9), (1, 0))
    )
    assert np.array_equal(first.optimum, same.optimum)
    assert not np.array_equal(first.optimum, other.optimum)


def test_more_rows_keep_the_optimum() -> None:
    few, many = (load(Synthetic(rows=n), IidPartition(num_partitions=2), 0, 0).optimum for n in (10, 1000))
    assert np.array_equal(few, many)


@pytest.mark.parametrize("options", [{"scaling": "training_statistics"}, {"record_norm": 1.0}])
def test_no_optimum_is_claimed_for_features_that_are_changed(options) -> None:
    data = Synthetic(**options)
    assert load(data, IidPartition(num_partitions=2), 0, 0).optimum is None


# What `fedsim list` says, and what editors show.

MODELS = [*data_sets().values(), *PARTITIONS.values()]


def test_every_data_set_and_partition_has_its_line() -> None:
    own = {
        "breast_cancer",
        "cifar10",
        "digits",
        "mnist",
        "synthetic",
        "heavy_tails",
        "visits",
        "schools",
        "csv",
        "npz",
        "huggingface",
        "silos",
    }
    assert set(data_sets()) == own
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


# The tables of the thesis's scenarios; the hospitals' is FLamby's, from the study's own files.

THESIS = ROOT / "scenarios" / "thesis"
MEASURED = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalch", "exang", "oldpeak")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_hospitals_train_and_test_on_as_many_patients_as_in_flamby():
    scenario = scenario_of(THESIS / "heart_hospitals.yaml", ["sweep=null"])
    found = load(scenario.data, scenario.partition, scenario.seed, trial=0)
    sizes = {one.name: (len(one.train.target), len(one.test.target)) for one in found.silos}
    assert sizes == {
        "Cleveland": (199, 104),
        "Hungary": (172, 89),
        "Switzerland": (30, 16),
        "VA Long Beach": (85, 45),
    }
    assert np.mean(np.concatenate([one.train.target for one in found.silos])) == pytest.approx(0.5, abs=0.05)


def test_the_hospitals_table_is_the_studys_without_incomplete_patients():
    folder = Path(os.environ.get("FEDSIM_DATA", "/nowhere"))
    if not (original := folder / "heart_disease_uci.csv").exists():
        pytest.skip("needs heart_disease_uci.csv in the data folder")
    expected = [
        {
            "hospital": "Hungary" if row["id"] == "304" else row["dataset"],
            **{name: row[name] for name in MEASURED},
            "disease": "no" if row["num"] == "0" else "yes",
        }
        for row in rows(original)
        if all(row[name] for name in MEASURED)
    ]
    assert rows(THESIS / "heart_disease.csv") == expected


def test_published_points_are_of_seven_figures_three_curves_and_eight_levels():
    found = rows(THESIS / "published.csv")
    assert len(found) == 7 * 3 * 8
    assert set(Counter((row["figure"], row["series"]) for row in found).values()) == {8}
    spider = {row["epsilon"]: float(row["error"]) for row in found[:8]}
    assert (spider["1"], spider["3"], spider["6"]) == (0.0631, 0.0520, 0.0490)
