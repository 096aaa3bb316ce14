"""roster.yaml: its digest names it, and what is wrong with it is said by field and value."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.refusals import ANY, refused

from fedsim.common.errors import InputError
from fedsim.secagg.roster import load_roster, parse_roster

TREE: dict[str, Any] = {
    "federation": "test",
    "silos": {f"s00{i}": f"a{i}" * 32 for i in range(3)},
    "server": "b0" * 32,
    "shuffler": {"key": "b1" * 32, "identity": "b2" * 32},
    "min_silos": 2,
    "honest_fraction": 1.0,
}


def write(path: Path, tree: Any) -> Path:
    path.write_text(yaml.safe_dump(tree))
    return path


def changed(path: str, value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(TREE)
    *folders, last = path.split(".")
    place = tree
    for folder in folders:
        place = place[folder]
    place[last] = value
    return tree


def test_a_file_and_its_digest(tmp_path):
    roster = load_roster(write(tmp_path / "roster.yaml", TREE))
    assert re.fullmatch("[0-9a-f]{64}", roster.digest)
    assert roster.names == ("s000", "s001", "s002")
    assert roster.identities == tuple(bytes.fromhex(TREE["silos"][name]) for name in roster.names)
    assert roster.noise_by == "silos"


def test_the_order_of_lines_does_not_count():
    turned = {key: TREE[key] for key in reversed(TREE)}
    turned["silos"] = {name: TREE["silos"][name] for name in reversed(TREE["silos"])}
    assert parse_roster(turned).digest == parse_roster({**TREE, "honest_fraction": 1}).digest


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("federation", "other"),
        ("silos.s001", "ab" * 32),
        ("silos.s004", "ab" * 32),
        ("server", "ab" * 32),
        ("shuffler.key", "ab" * 32),
        ("shuffler.identity", "ab" * 32),
        ("min_silos", 3),
        ("honest_fraction", 0.5),
        ("noise_by", "aggregators"),
    ],
)
def test_every_term_counts(path, value):
    assert parse_roster(changed(path, value)).digest != parse_roster(TREE).digest


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("silos", {}, "at least 1"),
        ("silos.s001", "ab", "match pattern"),
        ("silos.s001", TREE["silos"]["s000"], "another identity than that of s000"),
        ("silos.s001", TREE["shuffler"]["identity"], "another identity than that of the shuffler"),
        ("server", TREE["shuffler"]["key"], "no party may hold both"),
        ("shuffler.key", 3, "valid string"),
        ("min_silos", 4, "at most 3"),
        ("min_silos", 0, "greater than or equal to 1"),
        ("min_silos", True, "not true or false"),
        ("honest_fraction", 0, "greater than 0"),
        ("honest_fraction", 1.5, "less than or equal to 1"),
        ("noise_by", "server", "'silos' or 'aggregators'"),
        ("noise", "silos", "did you mean 'noise_by'"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(path, value, expected):
    with pytest.raises(InputError) as caught:
        parse_roster(changed(path, value))
    assert caught.value.field == f"roster.{path}"
    assert caught.value.value == value
    assert expected in caught.value.hint


@pytest.mark.parametrize(
    "field", ["federation", "silos", "server", "shuffler", "min_silos", "honest_fraction"]
)
def test_a_missing_field_is_named(field):
    with pytest.raises(InputError, match=f"roster.{field}: None: is required"):
        parse_roster({key: value for key, value in TREE.items() if key != field})


def test_a_file_that_is_none(tmp_path):
    with refused("roster", ANY, "cannot be read"):
        load_roster(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("[1]")
    with refused("roster", ANY, "silos"):
        load_roster(tmp_path / "list.yaml")
