"""Principal components against scikit-learn's, and who may see them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fedsim.common.errors import InputError
from fedsim.data.builtin import Digits, Synthetic
from fedsim.data.by_label import LabelPairsPartition
from fedsim.data.federation import load, load_silos, outline
from fedsim.data.partition import IidPartition as Iid
from fedsim.data.prepare import principal_components, training_moments
from fedsim.results.privacy_statement import not_private
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import resolve


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
    training = np.concatenate([silo.train_features for silo in federation.silos])
    covariance = np.cov(training[:, :30].T)
    np.testing.assert_allclose(training[:, :30].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-9)
    assert (np.diff(np.diag(covariance)) <= 0).all()
    assert (training[:, 30] == 1).all()
    (some,) = load_silos(data, partition, 0, 0, [federation.silos[3].name])
    np.testing.assert_array_equal(some.train_features, federation.silos[3].train_features)


def test_more_components_than_features_are_refused() -> None:
    data = Synthetic(features=5, pca=6)
    for use in (
        lambda: outline(data, Iid(num_partitions=2), 0),
        lambda: load(data, Iid(num_partitions=2), 0, 0),
    ):
        with pytest.raises(InputError, match=r"scenario.data.pca: 6: at most 5"):
            use()


def scenario_of(data: dict[str, Any]) -> Scenario:
    tree = {
        "name": "x",
        "data": {"name": "digits", "task": "parity", **data},
        "partition": "label_pairs",
        "problem": "logistic_regression",
        "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 1, "step_size": 1, "clip_norm": 1},
        "privacy": {"epsilon": 1},
    }
    return parse(tree)


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
