"""CIFAR-10's files, and which of their images become whose records; on small files in its format."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.common.errors import InputError
from fedsim.common.files import VARIABLE
from fedsim.data import cifar10
from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.cifar10 import CLASSES, INSIDE, PARTS, URL, Cifar10
from fedsim.data.federation import load
from fedsim.data.fetch import obtain
from tests.support.tiny_images import write_cifar10

BY_CLASS = NaturalIdPartition(partition_by="class")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return write_cifar10(tmp_path) / "cifar10"


def raw(silo: Any) -> np.ndarray:
    """Class, file and place of a silo's records."""
    both = np.concatenate([silo.train_features, silo.test_features])
    return np.round(both[:, :3] * 255).astype(int)


@pytest.mark.usefixtures("folder")
def test_a_silo_of_each_class_holds_that_classs_images_of_all_files() -> None:
    data = Cifar10(scaling="none", intercept=False)
    federation = load(data, BY_CLASS, 0, 0)
    assert sorted(silo.name for silo in federation.silos) == sorted(CLASSES)
    for silo in federation.silos:
        code = CLASSES.index(silo.name)
        assert (raw(silo)[:, 0] == code).all()
        assert (silo.train_target == code).all()
        assert sorted(raw(silo)[:, 1]) == sorted([1, 2, 3, 4, 5] * 3)
    places = np.concatenate([raw(silo)[:, 1:] for silo in federation.silos])
    assert len(np.unique(places, axis=0)) == len(places) == 150
    declared = load(Cifar10(), BY_CLASS, 0, 0).silos[0].train_features
    assert declared.min() == -1
    assert declared.max() == 1


def test_pixels_stand_as_in_the_file(folder: Path) -> None:
    held = np.fromfile(folder / "test_batch.bin", dtype=np.uint8).reshape(-1, 3073)
    design = Cifar10(part="test").open().design(np.array([7, 2]))
    np.testing.assert_array_equal(design.target, held[[7, 2], 0])
    np.testing.assert_allclose(design.features * 255, held[[7, 2], 1:])


@pytest.mark.usefixtures("folder")
def test_some_of_each_class_are_kept_or_drawn_again_and_again() -> None:
    few = load(Cifar10(images_per_class=10, scaling="none"), BY_CLASS, 0, 0)
    assert [len(np.unique(raw(silo), axis=0)) for silo in few.silos] == [10] * 10
    data = Cifar10(images_per_class=10, draw="published", scaling="none")
    drawn = load(data, BY_CLASS, 0, 0)
    assert [len(raw(silo)) for silo in drawn.silos] == [10] * 10
    assert all(len(np.unique(raw(silo), axis=0)) < 10 for silo in drawn.silos)
    assert "images stand several times in a silo" in data.not_private[0]
    assert data.pools_records
    with pytest.raises(InputError, match=r"images_per_class: 16: at most 15: .* more of airplane"):
        load(Cifar10(images_per_class=16), BY_CLASS, 0, 0)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", "has 0 bytes; cut short"),
        (bytes(3072), "must hold images of 3,073 bytes each, and has 3,072 bytes"),
        (b"\x0a" + bytes(3072), "begin every image with its class, 0 to 9, and has 10"),
    ],
)
def test_a_broken_file_is_named(folder: Path, written: bytes, said: str) -> None:
    (folder / "data_batch_3.bin").write_bytes(written)
    with pytest.raises(InputError, match=said) as caught:
        load(Cifar10(), BY_CLASS, 0, 0)
    assert "data_batch_3.bin" in str(caught.value)


def test_files_of_another_size_are_refused_before_a_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "does not hold what was published: it has 92,190 bytes, not 30,730,000"
    with pytest.raises(InputError, match=said) as caught:
        obtain(Cifar10().wanted)
    assert str(folder / "data_batch_1.bin") in str(caught.value)
    monkeypatch.setattr(cifar10, "BYTES", 92_190)
    obtain(Cifar10().wanted)


def test_the_published_archive_may_stand_in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for names in PARTS.values():
            for name in names:
                tar.add(folder / name, INSIDE + name)
    before = (folder / "data_batch_2.bin").read_bytes()
    for names in PARTS.values():
        for name in names:
            (folder / name).unlink()
    assert URL.endswith(archive.name)
    with pytest.raises(InputError, match="is not the archive that was published"):
        obtain(Cifar10().wanted)
    with pytest.raises(InputError, match="no such file: put it there"):
        Cifar10().open().num_rows  # noqa: B018
    monkeypatch.setattr(cifar10, "PUBLISHED", hashlib.sha256(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(cifar10, "BYTES", len(before))
    obtain(Cifar10().wanted)
    assert (folder / "data_batch_2.bin").read_bytes() == before
    assert not (folder / "test_batch.bin").exists()
    assert Cifar10().open().num_rows == 150
