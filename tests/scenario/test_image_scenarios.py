"""The thesis's scenarios of images: every variant stands for runs that are valid, shown on small files."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import fedsim
from fedsim.common.files import VARIABLE
from fedsim.data import images
from fedsim.data.fetch import content, obtain
from fedsim.data.images import Cifar10, Mnist
from fedsim.scenario.load import load_tree
from fedsim.simulation.sweeps.combinations import combinations
from tests.support.tiny_images import write_cifar10, write_mnist

VARIANTS = [
    ("mnist_logistic", "honest"),
    ("mnist_logistic", "thesis"),
    ("cifar10_cnn", "honest"),
    ("cifar10_cnn", "thesis"),
    ("cifar10_cnn", "thesis_100_rounds"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Few images of both sets, as if they were those that were published."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    write_mnist(tmp_path)
    write_cifar10(tmp_path)
    small = {path.name: content(path, "") for path in (tmp_path / "mnist").iterdir()}
    monkeypatch.setattr(images, "MNIST_SHA256", {name: small[name] for name in images.MNIST_SHA256})
    monkeypatch.setattr(images, "BYTES", (tmp_path / "cifar10" / "test_batch.bin").stat().st_size)
    obtain([*Mnist().downloads, *Cifar10().downloads])
    return tmp_path


def _first(tree: Any) -> Any:
    """With the first of every list of numbers alone: they differ in nothing else, and are hundreds."""
    if isinstance(tree, list) and all(isinstance(each, int | float) for each in tree):
        return tree if tree == [3, 32, 32] else tree[:1]
    if isinstance(tree, list):
        return [_first(each) for each in tree]
    return {key: _first(each) for key, each in tree.items()} if isinstance(tree, dict) else tree


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_combination_is_a_scenario_of_its_variant(name: str, variant: str) -> None:
    found = combinations(_first(load_tree(Path(name), [f"variant={variant}"])))
    for each in found:
        scenario, published = each.scenario, variant.startswith("thesis")
        assert scenario.variant == variant
        assert getattr(scenario.data, "draw", None) == ("published" if published else "distinct")
        if each.private:
            assert scenario.privacy.calibration == ("theorem" if published else "accountant")
            assert (scenario.privacy.epsilon == "unlimited") == published
    assert len(found) == len({each.title() for each in found})


SMALL: dict[str, Any] = {
    "runtime": "inprocess",
    "trials": 1,
    "sweep": None,
    "report.nonprivate_baseline": False,
    "report.baselines": False,
}
RUNS: dict[str, dict[str, Any]] = {
    "mnist_logistic": {"data.images_per_digit": 10, "num_rounds": 2},
    "cifar10_cnn": {"data.images_per_class": 15, "num_rounds": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["honest", "thesis"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.usefixtures("folder")
def test_it_runs_on_small_files_and_says_what_is_not_private(name: str, variant: str) -> None:
    few = {"data.pca": 5} if (name, variant) == ("mnist_logistic", "thesis") else {}
    run = fedsim.simulate(name, {"variant": variant, **SMALL, **RUNS[name], **few}, progress=False)
    summary = run.summary
    said = " ".join(summary.privacy.not_private)
    assert ("draw: published" in said) == (variant == "thesis")
    assert ("privacy cost that is ignored" in said) == (variant == "thesis")
    assert len(summary.privacy.silos) == {"mnist_logistic": 25, "cifar10_cnn": 10}[name]


def test_no_honest_scenario_that_is_shipped_ignores_a_cost() -> None:
    folder = Path(fedsim.__file__).parents[1] / "scenarios"
    for file in sorted(folder.rglob("*.yaml")):
        if file.name.endswith(".schema.yaml"):
            continue
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
        variants = [name for name in tree.get("variants", {}) if not name.startswith("thesis")]
        for variant in [*(f"variant={name}" for name in variants), *[None] * (not variants)]:
            data = load_tree(file, [variant] if variant else [])["data"]
            assert not isinstance(data, dict) or "preprocessing_cost" not in data, (file.name, variant)
