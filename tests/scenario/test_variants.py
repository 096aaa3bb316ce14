"""A scenario file of several variants."""

from pathlib import Path
from typing import Any

import pytest
from support.refusals import ANY, refused
from support.scenarios import BASE

import fedsim
from fedsim.api.given import scenario_of
from fedsim.common.errors import InputError
from fedsim.common.serialise import to_yaml
from fedsim.scenario.load import completed, load, parse

FILE = BASE | {
    "variant": "honest",
    "privacy": {"epsilon": 3},
    "variants": {
        "honest": {},
        "published": {
            "privacy": {"calibration": "theorem", "epsilon": "unlimited", "claimed_epsilon": 3},
            "algorithm.batch": {"sampler": "with_replacement", "fraction": 0.5},
        },
    },
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(to_yaml(FILE))
    return path


def test_the_file_says_which_variant_it_is(file: Path) -> None:
    scenario = load(file)
    assert (scenario.variant, scenario.variants, scenario.privacy.epsilon) == ("honest", None, 3)


def test_another_variant_is_chosen_by_set_and_other_changes_go_over_it(file: Path) -> None:
    scenario = load(file, ["algorithm.batch.fraction=0.25", "variant=published"])
    assert scenario.variant == "published"
    assert scenario.privacy.calibration == "theorem"
    assert scenario.algorithm.build().batch.fraction == 0.25


def test_python_chooses_as_the_command_line_does(file: Path) -> None:
    by_line = load(file, ["variant=published"])
    assert scenario_of(file, {"variant": "published"}) == by_line
    assert scenario_of(str(file)) == load(file)


def test_a_run_keeps_the_name_of_its_variant(file: Path, tmp_path: Path) -> None:
    fedsim.simulate(file, {"trials": 1}, out=tmp_path / "run", progress=False)
    assert load(tmp_path / "run" / "scenario.yaml").variant == "honest"


def test_an_unknown_variant_is_named_with_the_nearest(file: Path) -> None:
    with refused("scenario.variant", ANY, "'publishd'", "published"):
        load(file, ["variant=publishd"])


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"variant": None}, r"scenario\.variant: None: choose one of honest, published"),
        ({"variants": {"honest": 3}}, r"scenario\.variants: .*must be"),
        ({"variants": {"honest": {"variant": "x"}}}, r"scenario\.variants\.honest\.variant: 'x'"),
        ({"variants": {"honest": {"trails": 3}}}, r"trails"),
    ],
)
def test_what_is_wrong_with_variants_is_named(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        completed(FILE | wrong, {})


def test_a_scenario_without_variants_has_none_to_choose() -> None:
    plain = {key: value for key, value in FILE.items() if key not in ("variant", "variants")}
    with refused("scenario.variant", "published", "no variants to choose from"):
        completed(plain, {"variant": "published"})


def test_variants_are_not_left_over() -> None:
    with refused("scenario.variants"):
        parse(FILE)


# The shipped scenario of the thesis's network on MNIST: what its variants promise.

MLP = Path(__file__).parents[2] / "scenarios" / "thesis" / "mnist_mlp.yaml"


def variant_of(variant: str) -> Any:
    """Fields of the data set and of the model are its kind's own."""
    return load(MLP, [f"variant={variant}"])


@pytest.mark.parametrize("variant", ["honest", "thesis_split"])
def test_these_bound_epsilon_with_every_record_and_the_thesiss_sizes(variant: str) -> None:
    scenario = variant_of(variant)
    assert scenario.privacy.epsilon == 3
    assert scenario.privacy.calibration == "accountant"
    assert scenario.problem.model.hidden == 64
    assert not any("batch" in one for one in scenario.sweep.grid["algorithm"])


def test_only_the_thesiss_records_are_prepared_at_a_cost_that_is_ignored() -> None:
    data = {v: variant_of(v).data for v in ("honest", "honest_rounds", "thesis_split", "thesis")}
    assert {v for v, each in data.items() if each.preprocessing_cost} == {"thesis_split", "thesis"}
    assert {v for v, each in data.items() if each.pca == 50} == {"thesis_split", "thesis"}
    for v in ("honest", "honest_rounds"):
        assert (data[v].fitted, data[v].transform.dct, data[v].transform.crop) == ({}, 60, 20)


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
