"""MNIST's files, and which of their images become whose records; on small files in its format."""

import gzip
import hashlib
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refusals import ANY, refused

from fedsim.common.errors import InputError
from fedsim.common.files import VARIABLE
from fedsim.data import images
from fedsim.data.by_label import LabelPairsPartition, NaturalIdPartition
from fedsim.data.federation import load, load_silos
from fedsim.data.fetch import content, obtain
from fedsim.data.images import CIFAR_URL, CLASSES, INSIDE, MNIST_SHA256, PARTS, Cifar10, Mnist
from fedsim.data.recipe import declared_recipe
from fedsim.scenario.load import digests
from tests.support.tiny_images import digits, idx, write_cifar10, write_mnist

PER_DIGIT = 12


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return write_mnist(tmp_path, PER_DIGIT) / "mnist"


def raw(silo: Any) -> np.ndarray:
    """Features of a silo's records as whole numbers, training before test."""
    both = np.concatenate([silo.train.features, silo.test.features])
    return np.round(both * 255).astype(int)


@pytest.mark.usefixtures("folder")
def test_pixels_and_labels_are_the_files() -> None:
    images, labels = digits(PER_DIGIT)
    for task, expected in (("digit", labels), ("parity", labels % 2)):
        design = Mnist(task=task).open().design(np.arange(len(labels)))
        np.testing.assert_array_equal(design.target, expected)
        np.testing.assert_allclose(design.features * 255, images.reshape(len(labels), -1))
    declared = load(Mnist(), LabelPairsPartition(), 0, 0).silos[0].train.features
    assert -1 <= declared.min() < -0.9
    assert 0.9 < declared.max() <= 1


@pytest.mark.usefixtures("folder")
def test_distinct_images_are_dealt_once_and_equally() -> None:
    data = Mnist(task="parity", images_per_digit=10, scaling="none", intercept=False)
    federation = load(data, LabelPairsPartition(), 0, 0)
    assert len(federation.silos) == 25
    places = np.concatenate([raw(silo)[:, 0] for silo in federation.silos])
    assert len(np.unique(places)) == len(places) == 100
    for silo in federation.silos:
        shown = raw(silo)[:, 1]
        a, b = map(int, silo.name.split("+"))
        assert sorted(shown) == sorted([a, a, b, b])
        target = np.concatenate([silo.train.target, silo.test.target])
        np.testing.assert_array_equal(target, shown % 2)
    (alone,) = load_silos(data, LabelPairsPartition(), 0, 0, ["2+7"])
    whole = next(silo for silo in federation.silos if silo.name == "2+7")
    np.testing.assert_array_equal(alone.train.features, whole.train.features)


@pytest.mark.usefixtures("folder")
def test_the_published_draw_repeats_images_across_silos_and_says_so() -> None:
    data = Mnist(draw="published", images_per_digit=10, scaling="none", intercept=False)
    federation = load(data, NaturalIdPartition(), 0, 0)
    assert [len(raw(silo)) for silo in federation.silos] == [20] * 25
    for silo in federation.silos:
        a, b = map(int, silo.name.split("+"))
        shown = raw(silo)[:, 1]
        assert (shown == a).sum() == (shown == b).sum() == 10
    of_zero = [set(raw(s)[raw(s)[:, 1] == 0][:, 0]) for s in federation.silos if s.name.startswith("0+")]
    assert len(set.union(*of_zero)) == 10  # one pool of ten images for five silos
    assert all(len(found) < 10 for found in of_zero)  # with replacement
    assert "images stand in several silos" in data.not_private[0]
    assert data.pools_records
    assert not Mnist().pools_records


@pytest.mark.usefixtures("folder")
def test_what_is_drawn_follows_from_the_data_sets_seed_alone() -> None:
    def places(seed: int, draw: Any) -> list[float]:
        source = Mnist(seed=seed, draw=draw, images_per_digit=5).open()
        return source.keys("pixel_0_0", "").tolist()

    for draw in ("distinct", "published"):
        assert places(0, draw) == places(0, draw) != places(1, draw)


@pytest.mark.usefixtures("folder")
def test_more_images_than_there_are_of_a_digit_are_refused() -> None:
    with refused("scenario.data.images_per_digit", 13, "at most 12", "more of 0"):
        Mnist(images_per_digit=13).open().num_rows  # noqa: B018
    with refused("scenario.data.images_per_digit", 774, "at most 12"):
        Mnist(draw="published").open().num_rows  # noqa: B018


def test_a_recipe_is_known_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    recipe = declared_recipe(Mnist(task="parity"), 785, 2)
    assert recipe is not None
    assert recipe.classes == ("0", "1")


LABELS, IMAGES = "train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte.gz"
FEW = idx(np.zeros(3, dtype=np.uint8))
BROKEN: dict[str, tuple[str, bytes, str]] = {
    "no gzip file": (LABELS, FEW, "is no whole gzip file"),
    "a gzip file cut short": (
        IMAGES,
        gzip.compress(idx(np.zeros((99, 28, 28), dtype=np.uint8)))[:-20],
        "cut",
    ),
    "another format": (LABELS, gzip.compress(b"\0\0\x0d\1" + FEW[4:]), "must be an idx file of bytes"),
    "images for labels": (LABELS, gzip.compress(idx(np.zeros((3, 28, 28), dtype=np.uint8))), "with 1 axes"),
    "a header alone": (LABELS, gzip.compress(b"\0\0\x08\1\0"), "must be an idx file"),
    "fewer numbers than it says": (LABELS, gzip.compress(FEW[:-1]), "says that it has 3 numbers, and has 2"),
    "more numbers than it says": (LABELS, gzip.compress(FEW + bytes(9)), "has 3 numbers, and has more"),
    "more than are unpacked": (
        IMAGES,
        gzip.compress(b"\0\0\x08\3" + b"\xff" * 12 + bytes(99)),
        "at most 4,294,967,296 are unpacked",
    ),
    "fewer images than labels": (
        IMAGES,
        gzip.compress(idx(np.zeros((3, 28, 28), dtype=np.uint8))),
        "for each of 120 labels, and has shape 3 x 28 x 28",
    ),
    "images of another size": (
        IMAGES,
        gzip.compress(idx(np.zeros((120, 8, 8), dtype=np.uint8))),
        "an image of 28 x 28",
    ),
    "a label that is no digit": (
        LABELS,
        gzip.compress(idx(np.full(120, 10, dtype=np.uint8))),
        "0 to 9, and has 10",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named(folder: Path, case: str) -> None:
    name, written, said = BROKEN[case]
    (folder / name).write_bytes(written)
    with pytest.raises(InputError, match=said) as caught:
        load(Mnist(), LabelPairsPartition(), 0, 0)
    assert str(folder / name) in str(caught.value)


def test_a_missing_file_is_named_with_its_place(folder: Path) -> None:
    (folder / LABELS).unlink()
    with refused("scenario.data", ANY, "put it there, or name another folder by --data-dir or FEDSIM_DATA"):
        Mnist().open().num_rows  # noqa: B018


def test_files_with_other_images_are_refused_before_a_run(folder: Path) -> None:
    with pytest.raises(InputError, match="does not hold what was published: SHA-256") as caught:
        obtain(Mnist().downloads)
    assert str(folder / IMAGES) in str(caught.value)


def test_a_run_knows_its_files_by_what_is_compressed_in_them(folder: Path) -> None:
    before = digests(Mnist(), None)
    assert set(before) == {f"data.{IMAGES}", f"data.{LABELS}"}
    unpacked = gzip.decompress((folder / LABELS).read_bytes())
    (folder / LABELS).write_bytes(gzip.compress(unpacked, 9))
    assert digests(Mnist(), None) == before
    (folder / LABELS).write_bytes(gzip.compress(unpacked[:-1] + b"\1"))
    assert digests(Mnist(), None) != before


@pytest.mark.skipif(
    not (Path(os.environ.get(VARIABLE, "nowhere")) / "mnist" / LABELS).exists(), reason="needs MNIST itself"
)
def test_the_real_files_are_those_that_were_published() -> None:
    for data in (Mnist(), Mnist(part="test")):
        obtain(data.downloads)
    assert [Mnist().open().num_rows, Mnist(part="test").open().num_rows] == [60_000, 10_000]
    assert len(Mnist(images_per_digit=3870).open().other("digit")) == 38_700
    assert content(Mnist().files[LABELS], "") == MNIST_SHA256[LABELS]


# CIFAR-10's files, and which of their images become whose records; on small files in its format.

BY_CLASS = NaturalIdPartition(partition_by="class")


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return write_cifar10(tmp_path) / "cifar10"


def raw_cifar(silo: Any) -> np.ndarray:
    """Class, file and place of a silo's records."""
    both = np.concatenate([silo.train.features, silo.test.features])
    return np.round(both[:, :3] * 255).astype(int)


@pytest.mark.usefixtures("cifar")
def test_a_silo_of_each_class_holds_that_classs_images_of_all_files() -> None:
    data = Cifar10(scaling="none", intercept=False)
    federation = load(data, BY_CLASS, 0, 0)
    assert sorted(silo.name for silo in federation.silos) == sorted(CLASSES)
    for silo in federation.silos:
        code = CLASSES.index(silo.name)
        assert (raw_cifar(silo)[:, 0] == code).all()
        assert (silo.train.target == code).all()
        assert sorted(raw_cifar(silo)[:, 1]) == sorted([1, 2, 3, 4, 5] * 3)
    places = np.concatenate([raw_cifar(silo)[:, 1:] for silo in federation.silos])
    assert len(np.unique(places, axis=0)) == len(places) == 150
    declared = load(Cifar10(), BY_CLASS, 0, 0).silos[0].train.features
    assert declared.min() == -1
    assert declared.max() == 1


def test_pixels_stand_as_in_the_file(cifar: Path) -> None:
    held = np.fromfile(cifar / "test_batch.bin", dtype=np.uint8).reshape(-1, 3073)
    design = Cifar10(part="test").open().design(np.array([7, 2]))
    np.testing.assert_array_equal(design.target, held[[7, 2], 0])
    np.testing.assert_allclose(design.features * 255, held[[7, 2], 1:])


@pytest.mark.usefixtures("cifar")
def test_some_of_each_class_are_kept_or_drawn_again_and_again() -> None:
    few = load(Cifar10(images_per_class=10, scaling="none"), BY_CLASS, 0, 0)
    assert [len(np.unique(raw_cifar(silo), axis=0)) for silo in few.silos] == [10] * 10
    data = Cifar10(images_per_class=10, draw="published", scaling="none")
    drawn = load(data, BY_CLASS, 0, 0)
    assert [len(raw_cifar(silo)) for silo in drawn.silos] == [10] * 10
    assert all(len(np.unique(raw_cifar(silo), axis=0)) < 10 for silo in drawn.silos)
    assert "images stand several times in a silo" in data.not_private[0]
    assert data.pools_records
    with refused("scenario.data.images_per_class", 16, "at most 15", "more of airplane"):
        load(Cifar10(images_per_class=16), BY_CLASS, 0, 0)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", "has 0 bytes; cut short"),
        (bytes(3072), "must hold images of 3,073 bytes each, and has 3,072 bytes"),
        (b"\x0a" + bytes(3072), "begin every image with its class, 0 to 9, and has 10"),
    ],
)
def test_a_broken_file_is_named_cifar10(cifar: Path, written: bytes, said: str) -> None:
    (cifar / "data_batch_3.bin").write_bytes(written)
    with pytest.raises(InputError, match=said) as caught:
        load(Cifar10(), BY_CLASS, 0, 0)
    assert "data_batch_3.bin" in str(caught.value)


def test_files_of_another_size_are_refused_before_a_run(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "does not hold what was published: it has 92,190 bytes, not 30,730,000"
    with pytest.raises(InputError, match=said) as caught:
        obtain(Cifar10().downloads)
    assert str(cifar / "data_batch_1.bin") in str(caught.value)
    monkeypatch.setattr(images, "BYTES", 92_190)
    obtain(Cifar10().downloads)


def test_the_published_archive_may_stand_in_the_folder(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = cifar / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for names in PARTS.values():
            for name in names:
                tar.add(cifar / name, INSIDE + name)
    before = (cifar / "data_batch_2.bin").read_bytes()
    for names in PARTS.values():
        for name in names:
            (cifar / name).unlink()
    assert CIFAR_URL.endswith(archive.name)
    with refused("scenario.data", ANY, "is not the archive that was published"):
        obtain(Cifar10().downloads)
    with refused("scenario.data", ANY, "no such file: put it there"):
        Cifar10().open().num_rows  # noqa: B018
    monkeypatch.setattr(images, "CIFAR_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(images, "BYTES", len(before))
    obtain(Cifar10().downloads)
    assert (cifar / "data_batch_2.bin").read_bytes() == before
    assert not (cifar / "test_batch.bin").exists()
    assert Cifar10().open().num_rows == 150
