"""The public transform of images: which numbers it keeps, that it looks at one record, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refusals import ANY, refused
from support.scenarios import once

import fedsim
from fedsim.common.files import VARIABLE
from fedsim.common.seeds import generator
from fedsim.data.arrays import Arrays
from fedsim.data.builtin import BreastCancer, Digits
from fedsim.data.by_label import LabelPairsPartition
from fedsim.data.dataset import Dataset
from fedsim.data.federation import load, load_silos, outline
from fedsim.data.images import Cifar10, Mnist
from fedsim.data.partition import IidPartition
from fedsim.data.recipe import declared_recipe
from fedsim.data.transform import Transform
from tests.support.tiny_images import write_cifar10, write_mnist

ALONE = IidPartition(num_partitions=1)


def images(n: int, side: int, colours: int = 1) -> np.ndarray:
    return generator("images", n, side).uniform(0, 1, (n, colours * side * side))


def coefficient(image: np.ndarray, u: int, v: int) -> float:
    """One coefficient by the definition, sum by sum."""
    c = len(image)
    total = sum(
        image[i, j] * np.cos(np.pi * (2 * i + 1) * u / (2 * c)) * np.cos(np.pi * (2 * j + 1) * v / (2 * c))
        for i in range(c)
        for j in range(c)
    )
    return float(total * np.prod([np.sqrt((1 if k == 0 else 2) / c) for k in (u, v)]))


def low_first(c: int) -> list[tuple[int, int]]:
    """Diagonal by diagonal, from the top right of each."""
    return [(u, diagonal - u) for diagonal in range(2 * c - 1) for u in range(c) if 0 <= diagonal - u < c]


@pytest.mark.parametrize(
    ("side", "crop", "dct"), [(7, None, 12), (7, 4, 16), (8, 5, 9), (6, 6, 1), (5, 1, 1)]
)
def test_coefficients_are_those_of_the_definition_low_frequencies_first(
    side: int, crop: int | None, dct: int
) -> None:
    values, c = images(3, side), crop or side
    edge = (side - c) // 2
    inner = values.reshape(3, side, side)[:, edge : edge + c, edge : edge + c]
    expected = [[coefficient(image, u, v) for u, v in low_first(c)[:dct]] for image in inner]
    transform = Transform(dct=dct, crop=crop)
    np.testing.assert_allclose(transform.apply(values), expected, atol=1e-12)
    assert transform.names(side**2) == [f"dct_{u}_{v}" for u, v in low_first(c)[:dct]]


@pytest.mark.parametrize("colours", [1, 3])
def test_all_coefficients_are_an_orthonormal_map_and_some_shorten(colours: int) -> None:
    d = colours * 36
    whole = Transform(dct=36).apply(np.eye(d))
    np.testing.assert_allclose(whole @ whole.T, np.eye(d), atol=1e-12)
    some = Transform(dct=7, crop=5).apply(np.eye(d))
    np.testing.assert_allclose(some.T @ some, np.eye(7 * colours), atol=1e-12)


def test_colours_are_transformed_one_by_one() -> None:
    values, transform = images(4, 6, colours=3), Transform(dct=5, crop=4)
    each = [transform.apply(values[:, 36 * k : 36 * (k + 1)]) for k in range(3)]
    np.testing.assert_array_equal(transform.apply(values), np.hstack(each))
    assert transform.names(108)[4:6] == ["red_dct_1_1", "green_dct_0_0"]
    assert transform.width(108) == 15


@pytest.mark.parametrize("rows", [[0], [31, 2], list(range(7, 40))])
def test_it_looks_at_no_other_record(rows: list[int]) -> None:
    values, transform = images(40, 28), Transform(dct=100, crop=20)
    np.testing.assert_array_equal(transform.apply(values)[rows], transform.apply(values[rows]))


@pytest.mark.parametrize("scaling", ["declared", "none"])
def test_a_silo_alone_prepares_its_records_as_among_all(scaling: Any) -> None:
    data = Digits(task="parity", scaling=scaling, transform=Transform(dct=20, crop=6))
    assert not data.pools_records
    assert data.not_private == []
    federation = load(data, LabelPairsPartition(), 0, 0)
    (some,) = load_silos(data, LabelPairsPartition(), 0, 0, [federation.silos[3].name])
    np.testing.assert_array_equal(some.train.features, federation.silos[3].train.features)
    assert federation.num_features == outline(data, LabelPairsPartition(), 0).num_features == 21


@pytest.mark.parametrize(("scaling", "step"), [("declared", 2.0), ("none", 16.0)])
def test_the_public_brightness_is_a_part_of_the_declared_range_and_moves_the_mean_alone(
    scaling: Any, step: float
) -> None:
    first, second = (
        load(Digits(scaling=scaling, transform=Transform(dct=9, crop=6, subtract=q)), ALONE, 0, 0).silos[0]
        for q in (0.5, 0.25)
    )
    moved = second.train.features - first.train.features
    np.testing.assert_allclose(moved[:, 0], 0.25 * step * 6, rtol=1e-9)
    np.testing.assert_allclose(moved[:, 1:], 0, atol=1e-12)


@pytest.mark.parametrize("subtract", [0.0, 0.25, 0.5])
def test_norms_are_bounded_by_what_is_public(subtract: float) -> None:
    rng, options = np.random.default_rng(1), {"transform": Transform(dct=10, crop=6, subtract=subtract)}
    flat = [np.zeros((1, 64)), np.ones((1, 64))]
    for features, place in ((rng.uniform(0, 1, (3000, 64)), 1), (np.concatenate(flat * 5), 0)):
        data = Arrays(features, np.arange(len(features)) % 2, ranges=(0, 1), **options)
        bounds = outline(data, ALONE, 0).squared_norms
        squares = (load(data, ALONE, 0, 0).silos[0].train.features ** 2).sum(axis=1)
        assert bounds is not None
        assert squares.max() <= bounds[0] * (1 + 1e-12)
        found = (squares.max(), squares.mean())[place]
        assert found == pytest.approx(bounds[place], rel=0.03)


def test_the_image_files_are_transformed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    write_cifar10(write_mnist(tmp_path))
    transform = Transform(dct=100, crop=20)
    for data, width in ((Mnist(transform=transform), 101), (Cifar10(transform=transform), 301)):
        federation = load(data, ALONE, 0, 0)
        recipe = declared_recipe(data, width, 10)
        assert federation.num_features == width
        assert recipe == federation.fitted.recipe
        assert len(recipe.names) == width


WRONG: list[tuple[dict[str, Any], str, Any, str]] = [
    ({"dct": 65}, "dct", 65, "at most 64, the pixels of 8 x 8"),
    ({"dct": 26, "crop": 5}, "dct", 26, "at most 25, the pixels of 5 x 5"),
    ({"dct": 1, "crop": 9}, "crop", 9, "at most 8"),
]


@pytest.mark.parametrize(("given", "field", "value", "said"), WRONG)
def test_what_does_not_fit_an_image_is_named_before_records_are_read(
    given: dict[str, Any], field: str, value: Any, said: str
) -> None:
    data = Digits(transform=Transform(**given))
    for use in (lambda: outline(data, ALONE, 0), lambda: load(data, ALONE, 0, 0)):
        with refused(f"scenario.data.transform.{field}", value, said):
            use()


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"crop": 3}, ".dct", None),
        ({"dct": 0}, ".dct", 0),
        ({"dct": 1, "crop": 0}, ".crop", 0),
        ({"dct": 1, "subtract": 1.5}, ".subtract", 1.5),
        ({"dct": 1, "dtc": 2}, ".dtc", 2),
        (20, "", 20),
    ],
)
def test_a_bad_value_is_named_as_in_the_file(given: Any, field: str, value: Any) -> None:
    with refused(f"scenario.data.transform{field}", value if value is not None else ANY):
        fedsim.price(once(data={"name": "digits", "transform": given}, problem="softmax_regression"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda transform: BreastCancer(transform=transform), "is for images"),
        (lambda transform: Digits(transform=transform, pca=3), "pca: 3"),
        (lambda transform: Digits(transform=transform, scaling="training_statistics"), "training_statistics"),
        (
            lambda transform: Arrays(np.ones((4, 10)), [0, 1, 0, 1], ranges=(0, 1), transform=transform),
            "has 10",
        ),
    ],
)
def test_a_transform_of_no_images_or_beside_what_is_fitted_is_refused(data: Any, words: str) -> None:
    made: Dataset = data(Transform(dct=2))
    with refused("scenario.data.transform", {"dct": 2}, words):
        outline(made, ALONE, 0)


def test_images_need_declared_ranges() -> None:
    data = Arrays(images(4, 3), [0, 1, 0, 1], transform=Transform(dct=2))
    with refused("scenario.data.transform.subtract", 0.25, "give ranges"):
        load(data, ALONE, 0, 0)
