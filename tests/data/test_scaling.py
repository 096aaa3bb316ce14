"""Preparing a record is part of the privacy claim."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from support.refusals import refused
from support.scenarios import once

from fedsim.common.errors import InputError
from fedsim.data.builtin import DOCUMENTED, BreastCancer, Digits, Synthetic, documented_ranges
from fedsim.data.by_label import LabelPairsPartition, NaturalIdPartition
from fedsim.data.federation import load, load_silos, outline
from fedsim.data.fitted import principal_components, standard_of, training_moments
from fedsim.data.partition import IidPartition
from fedsim.data.partition import IidPartition as Iid
from fedsim.data.prepare import declared, of_norm
from fedsim.data.source import Ranges
from fedsim.data.transform import Transform
from fedsim.report.privacy_statement import not_private
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import resolve

ONE_SILO = IidPartition(num_partitions=1)


def pooled(federation) -> np.ndarray:
    return np.concatenate([part for s in federation.silos for part in (s.train.features, s.test.features)])


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
    assert np.array_equal(standard_of(indicators).apply(indicators, column), indicators)


@pytest.mark.parametrize("data", [BreastCancer(), Digits(), Synthetic()])
def test_declared_features_lie_between_minus_one_and_one(data) -> None:
    features = pooled(load(data, ONE_SILO, 0, 0))
    assert features.min() >= -1
    assert features.max() <= 1
    assert np.all(features[:, -1] == 1)


def test_silo_statistics_standardise_each_silo_by_itself() -> None:
    data, partition = BreastCancer(scaling="silo_statistics"), IidPartition(num_partitions=3)
    for silo in load(data, partition, 0, 0).silos:
        own = np.concatenate([silo.train.features, silo.test.features])[:, :-1]
        np.testing.assert_allclose(own.mean(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(own.std(axis=0), 1, rtol=1e-9)
    (alone,) = load_silos(data, partition, 0, 0, [silo.name])
    np.testing.assert_array_equal(alone.train.features, silo.train.features)
    with refused("model", "scaling: silo_statistics", "these records are no silo's"):
        load(data, partition, 0, 0).fitted.features(BreastCancer().open().features)


@pytest.mark.parametrize("options", [{}, {"scaling": "none"}, {"pca": 5}, {"transform": Transform(dct=9)}])
def test_records_of_one_norm_are_a_function_of_each_alone(options) -> None:
    before, after = (
        pooled(load(Digits(record_norm=norm, **options), ONE_SILO, 0, 0)) for norm in (None, 3.0)
    )
    features = after[:, :-1]
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 3.0, rtol=1e-12)
    np.testing.assert_allclose(features, 3 * before[:, :-1] / np.linalg.norm(before[:, :-1], axis=1)[:, None])
    assert (after[:, -1] == 1).all()


def test_a_norm_has_the_same_bits_in_either_order_of_memory_and_at_any_count() -> None:
    values = np.random.default_rng(0).standard_normal((33, 13))
    alone = np.vstack([of_norm(row[None], 3.0) for row in values])
    for count in (2, 33):
        np.testing.assert_array_equal(of_norm(np.asfortranarray(values[:count]), 3.0), alone[:count])
    np.testing.assert_array_equal(of_norm(np.asfortranarray(values)[32:], 3.0), alone[32:])


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
    assert {silo.name: set(silo.train.target) for silo in silos} == {"malignant": {0}, "benign": {1}}
    assert BreastCancer().open().num_classes == 2


def test_declared_scaling_uses_no_statistics_of_the_data(make_csv) -> None:
    """One record is replaced by the most extreme one; no other record's features move by a bit."""
    before = make_csv()
    original = load(before, NaturalIdPartition(), 0, 0)
    after = make_csv(before.path.read_text().replace("70,female,east,NaN,ill,f", "1e9,male,east,1,well,f"))
    changed = load(after, NaturalIdPartition(), 0, 0)
    for old, new in zip(original.silos, changed.silos, strict=True):
        rows = [np.concatenate([s.train.features, s.test.features]) for s in (old, new)]
        differing = np.count_nonzero((rows[0] != rows[1]).any(axis=1))
        assert differing == (1 if old.name == "east" else 0)


def test_training_statistics_standardise_and_see_the_other_records(make_csv) -> None:
    data = BreastCancer(scaling="training_statistics")
    federation = load(data, IidPartition(num_partitions=4), 0, 0)
    training = np.concatenate([silo.train.features for silo in federation.silos])[:, :-1]
    assert training.mean(axis=0) == pytest.approx(np.zeros(30), abs=1e-9)
    assert training.std(axis=0) == pytest.approx(np.ones(30))
    assert pooled(federation)[:, :-1].mean(axis=0) != pytest.approx(np.zeros(30), abs=1e-6)
    other_trial = load(data, IidPartition(num_partitions=4), 0, 1)
    assert not np.array_equal(np.sort(pooled(federation), axis=0), np.sort(pooled(other_trial), axis=0))


def test_a_constant_column_survives_standardising() -> None:
    ranges_ = Ranges(np.zeros(1), np.ones(1), np.zeros(1, dtype=bool), np.ones(1, dtype=bool))
    values = np.full((4, 1), 3.0)
    assert standard_of(values).apply(values, ranges_).tolist() == [[0.0]] * 4


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
        targets = np.concatenate([silo.train.target, silo.test.target])
        assert targets.dtype == np.float64
        assert np.isclose(targets, expected).any()


# Principal components against scikit-learn's, and who may see them.


def test_coordinates_are_those_of_scikit_learn_up_to_sign() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(80, 6)) @ rng.normal(size=(6, 6)) + 300
    for trial in range(4):  # the sums over all records are kept from one split to the next
        training = rng.permutation(80)[: 20 if trial == 3 else 50]
        found = training_moments(values, training)
        centre, directions = principal_components(found, 4)
        ours = (values - centre) @ directions
        theirs = PCA(4).fit(values[training]).transform(values)
        np.testing.assert_allclose(np.abs(ours), np.abs(theirs), rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(directions, principal_components(found, 6).directions[:, :4])


def test_records_with_the_same_sums_are_not_taken_for_others() -> None:
    values = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    swapped = np.column_stack([values[:, 0], values[[1, 0, 3, 2, 4], 1]])
    for each in (values, swapped):
        _, centre, first, second = training_moments(each, np.arange(4))
        shifted = each[:4] - centre
        np.testing.assert_allclose(first, shifted.sum(axis=0), atol=1e-15)
        np.testing.assert_allclose(second, shifted.T @ shifted, atol=1e-15)


def test_a_federation_has_so_many_features_fitted_on_its_training_records() -> None:
    data, partition = Digits(task="parity", pca=30), LabelPairsPartition()
    federation = load(data, partition, 0, 0)
    assert federation.num_features == outline(data, partition, 0).num_features == 31
    training = np.concatenate([silo.train.features for silo in federation.silos])
    covariance = np.cov(training[:, :30].T)
    np.testing.assert_allclose(training[:, :30].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-9)
    assert (np.diff(np.diag(covariance)) <= 0).all()
    assert (training[:, 30] == 1).all()
    (some,) = load_silos(data, partition, 0, 0, [federation.silos[3].name])
    np.testing.assert_array_equal(some.train.features, federation.silos[3].train.features)


def test_more_components_than_features_are_refused() -> None:
    data = Synthetic(features=5, pca=6)
    for use in (
        lambda: outline(data, Iid(num_partitions=2), 0),
        lambda: load(data, Iid(num_partitions=2), 0, 0),
    ):
        with refused("scenario.data.pca", 6, "at most 5"):
            use()


def scenario_of(data: dict[str, Any]) -> Scenario:
    return parse(once(data={"name": "digits", "task": "parity", **data}, partition="label_pairs"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"pca": 3}, r"principal components .*\(pca: 3\), at a privacy cost that is ignored"),
        ({"scaling": "training_statistics"}, "statistics of the training records .* that is ignored"),
        ({"scaling": "silo_statistics"}, "statistics of its own records .* that is ignored"),
    ],
)
def test_what_is_fitted_on_records_must_be_said_and_is_repeated(data: dict[str, Any], said: str) -> None:
    (option,) = data
    with pytest.raises(
        InputError,
        match=rf"scenario.data.preprocessing_cost: None: say `preprocessing_cost: ignored`, since {option}",
    ):
        resolve(scenario_of(data))
    scenario = scenario_of(data | {"preprocessing_cost": "ignored"})
    resolve(scenario)
    assert re.search(said, not_private(scenario)[0])
    assert not any("ignored" in note for note in not_private(scenario_of({})))
