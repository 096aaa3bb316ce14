"""The shipped scenario of the thesis's network on MNIST: what its variants promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.scenario.load import load
from fedsim.scenario.model import Scenario

FILE = Path(__file__).parents[2] / "scenarios" / "thesis" / "mnist_mlp.yaml"


def variant_of(variant: str) -> Any:
    """Fields of the data set and of the model are its kind's own."""
    scenario: Scenario = load(FILE, [f"variant={variant}"])
    return scenario


@pytest.mark.parametrize("variant", ["honest", "thesis_split"])
def test_these_bound_epsilon_with_every_record_and_the_thesiss_sizes(variant: str) -> None:
    scenario = variant_of(variant)
    assert scenario.privacy.epsilon == 3
    assert scenario.privacy.calibration == "accountant"
    assert (scenario.data.pca, scenario.problem.model.hidden) == (50, 64)
    assert not any("batch" in one for one in scenario.sweep.grid["algorithm"])


def test_only_the_honest_draw_keeps_images_apart() -> None:
    draws = {v: variant_of(v).data.draw for v in ("honest", "thesis_split", "thesis")}
    assert draws == {"honest": "distinct", "thesis_split": "published", "thesis": "published"}


@pytest.mark.parametrize(("variant", "rounds", "share"), [("thesis", 25, 606), ("thesis_50_rounds", 50, 428)])
def test_as_published_the_claim_is_only_claimed(variant: str, rounds: int, share: int) -> None:
    scenario = variant_of(variant)
    assert (scenario.privacy.epsilon, scenario.privacy.theorem) == ("unlimited", "experiments")
    minibatch, spider, local = scenario.sweep.grid["algorithm"]
    assert {one["num_rounds"] for one in (minibatch, spider, local)} == {rounds}
    assert round(1238 * minibatch["batch"]["fraction"]) == share
    assert minibatch["batch"] == spider["batch"] == spider["difference_batch"]
