"""Preparing a record is part of the privacy claim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.common.errors import InputError
from fedsim.data.builtin import DOCUMENTED, BreastCancer, Digits, Synthetic, documented_ranges
from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.federation import load, load_silos
from fedsim.data.partition import IidPartition
from fedsim.data.prepare import declared, of_norm, standard_of, standardised
from fedsim.data.source import Ranges

ONE_SILO = IidPartition(num_partitions=1)


def pooled(federation) -> np.ndarray:
    return np.concatenate([part for s in federation.silos for part in (s.train_features, s.test_features)])


@given(lower=st.floats(1e-6, 1e6), factor=st.floats(1.1, 1e6), log=st.booleans(), beyond=st.floats(1, 1e3))
def test_declared_bounds_map_to_minus_one_and_one(lower, factor, log, beyond) -> None:
    upper = lower * factor
    column = Ranges(np.array([lower]), np.array([upper]), np.array([log]), np.array([True]))
    middle = np.sqrt(lower * upper) if log else (lower + upper) / 2
    values = np.array([[lower], [upper], [middle], [-beyond], [upper * beyond]])
    mapped = declared(values, column)[:, 0]
    assert mapped == pytest.approx([-1, 1, 0, -1, 1], abs=1e-9)
    assert mapped[[0, 1]].tolist() == [-1.0, 1.0]


def test_indicators_are_never_scaled() -> None:
    column = Ranges(np.zeros(1), np.ones(1), np.zeros(1, dtype=bool), np.zeros(1, dtype=bool))
    indicators = np.array([[0.0], [1.0], [1.0]])
    assert np.array_equal(declared(indicators, column), indicators)
    assert np.array_equal(standardised(indicators, column, standard_of(indicators)), indicators)


@pytest.mark.parametrize("data", [BreastCancer(), Digits(), Synthetic()])
def test_declared_features_lie_between_minus_one_and_one(data) -> None:
    features = pooled(load(data, ONE_SILO, 0, 0))
    assert features.min() >= -1
    assert features.max() <= 1
    assert np.all(features[:, -1] == 1)


def test_silo_statistics_standardise_each_silo_by_itself() -> None:
    data, partition = BreastCancer(scaling="silo_statistics"), IidPartition(num_partitions=3)
    for silo in load(data, partition, 0, 0).silos:
        own = np.concatenate([silo.train_features, silo.test_features])[:, :-1]
        np.testing.assert_allclose(own.mean(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(own.std(axis=0), 1, rtol=1e-9)
    (alone,) = load_silos(data, partition, 0, 0, [silo.name])
    np.testing.assert_array_equal(alone.train_features, silo.train_features)
    with pytest.raises(InputError, match=r"silo_statistics.*these records are no silo's"):
        load(data, partition, 0, 0).fitted.features(BreastCancer().open().features)


@pytest.mark.parametrize("options", [{}, {"scaling": "none"}, {"pca": 5}])
def test_records_of_one_norm_are_a_function_of_each_alone(options) -> None:
    before, after = (
        pooled(load(Digits(record_norm=norm, **options), ONE_SILO, 0, 0)) for norm in (None, 3.0)
    )
    features = after[:, :-1]
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 3.0, rtol=1e-12)
    np.testing.assert_allclose(features, 3 * before[:, :-1] / np.linalg.norm(before[:, :-1], axis=1)[:, None])
    assert (after[:, -1] == 1).all()


def test_a_record_of_any_size_gets_the_norm_and_does_not_touch_others() -> None:
    values = np.array([[0.0, 0.0], [3.0, 4.0], [1e308, 1e308], [5e-324, 0.0]])
    found = of_norm(values, 5.0)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [0, 5, 5, 5], rtol=1e-12)
    for row in range(len(values)):
        np.testing.assert_array_equal(of_norm(values[[row]], 5.0)[0], found[row])


def test_documented_ranges_are_scikit_learns_summary_table() -> None:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    table = [
        line.rsplit(maxsplit=2)
        for line in bunch.DESCR.splitlines()
        if line.rstrip()[-1:].isdigit() and "):" in line
    ]
    assert [(float(low), float(high)) for _, low, high in table] == list(DOCUMENTED.values())
    assert list(bunch.feature_names) == list(DOCUMENTED)
    assert list(bunch.target_names) == ["malignant", "benign"]


def test_a_documented_zero_becomes_the_stated_floor() -> None:
    for (low, high), floor in zip(DOCUMENTED.values(), documented_ranges().lower, strict=True):
        assert floor == pytest.approx(low or high / 100)


def test_breast_cancer_codes_malignant_0_and_benign_1() -> None:
    silos = load(BreastCancer(), NaturalIdPartition(partition_by="diagnosis"), 0, 0).silos
    assert {silo.name: set(silo.train_target) for silo in silos} == {"malignant": {0}, "benign": {1}}
    assert BreastCancer().open().num_classes == 2


def test_declared_scaling_uses_no_statistics_of_the_data(make_csv) -> None:
    """One record is replaced by the most extreme one; no other record's features move by a bit."""
    before = make_csv()
    original = load(before, NaturalIdPartition(), 0, 0)
    after = make_csv(before.path.read_text().replace("70,female,east,NaN,ill,f", "1e9,male,east,1,well,f"))
    changed = load(after, NaturalIdPartition(), 0, 0)
    for old, new in zip(original.silos, changed.silos, strict=True):
        rows = [np.concatenate([s.train_features, s.test_features]) for s in (old, new)]
        differing = np.count_nonzero((rows[0] != rows[1]).any(axis=1))
        assert differing == (1 if old.name == "east" else 0)


def test_training_statistics_standardise_and_see_the_other_records(make_csv) -> None:
    data = BreastCancer(scaling="training_statistics")
    federation = load(data, IidPartition(num_partitions=4), 0, 0)
    training = np.concatenate([silo.train_features for silo in federation.silos])[:, :-1]
    assert training.mean(axis=0) == pytest.approx(np.zeros(30), abs=1e-9)
    assert training.std(axis=0) == pytest.approx(np.ones(30))
    assert pooled(federation)[:, :-1].mean(axis=0) != pytest.approx(np.zeros(30), abs=1e-6)
    other_trial = load(data, IidPartition(num_partitions=4), 0, 1)
    assert not np.array_equal(np.sort(pooled(federation), axis=0), np.sort(pooled(other_trial), axis=0))


def test_a_constant_column_survives_standardising() -> None:
    ranges_ = Ranges(np.zeros(1), np.ones(1), np.zeros(1, dtype=bool), np.ones(1, dtype=bool))
    values = np.full((4, 1), 3.0)
    assert standardised(values, ranges_, standard_of(values)).tolist() == [[0.0]] * 4


def test_no_scaling_leaves_raw_values() -> None:
    raw = pooled(load(Digits(scaling="none", intercept=False), ONE_SILO, 0, 0))
    assert raw.shape[1] == 64
    assert (raw.min(), raw.max()) == (0, 16)


def test_a_number_to_predict_is_mapped_unless_nothing_is_scaled(make_csv, schema) -> None:
    fields = {"target": "age", "schema": {"age": schema["age"], "sex": schema["sex"]}}
    for scaling, expected in (
        ("declared", (63 - 50) / 30),
        ("training_statistics", (63 - 50) / 30),
        ("none", 63.0),
    ):
        silo = load(make_csv(scaling=scaling, **fields), ONE_SILO, 0, 0).silos[0]
        targets = np.concatenate([silo.train_target, silo.test_target])
        assert targets.dtype == np.float64
        assert np.isclose(targets, expected).any()
