"""silo.yaml: what is wrong is named by field, value and remedy."""

from datetime import date
from typing import Any

import pytest
import yaml
from support import scenarios
from support.deployed import POLICY
from support.refusals import lacking, refused

from fedsim.algorithms.registry import algorithms
from fedsim.common.errors import InputError
from silos.front.config import AtPort, load_config, parse_config
from silos.front.enrolment import caps_of

GOOD: dict[str, Any] = {
    "name": "silo-1",
    "records": {"name": "npz", "path": "records.npz"},
    "state": "state",
    "listen": {"socket": "silo.sock"},
    "policy": POLICY,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with the dotted field set."""
    return scenarios.changed(GOOD, {path: value})


DOWNLOAD = {
    "name": "csv",
    "path": "t.csv",
    "target": "age",
    "schema": {name: {"kind": "number", "lower": 0, "upper": 9} for name in ("age", "dose")},
    "origin": {"url": "https://somewhere.example/t.csv", "sha256": "0" * 64},
}
WRONG: list[tuple[str, Any, str]] = [
    ("policy.max_round", 5, "silo.policy.max_round: 5: unknown key | 'max_rounds'"),
    ("polcy", {}, "silo.polcy | 'policy'"),
    ("name", "../silo", "silo.name: '../silo'"),
    ("policy.lifetime", None, "silo.policy.lifetime: None: "),
    ("policy.lifetime.epsilon", "unlimited", "silo.policy.lifetime.epsilon: 'unlimited': | number"),
    ("policy.lifetime.epsilon", float("inf"), "silo.policy.lifetime.epsilon: inf"),
    ("policy.lifetime.delta", 1, "silo.policy.lifetime.delta: 1: "),
    ("policy.lifetime.expires", "soon", "silo.policy.lifetime.expires: 'soon': "),
    ("policy.max_rounds", True, "silo.policy.max_rounds: True: must be a number"),
    ("policy.algorithms", ["prox_sdg"], "silo.policy.algorithms: 'prox_sdg': not shipped | 'prox_sgd'?"),
    ("policy.problems", ["logit"], "silo.policy.problems: 'logit': not shipped"),
    ("policy.plug_ins", True, "silo.policy.plug_ins: True: list those that may run"),
    ("policy", {**POLICY, "min_clip": 2.0, "max_clip": 1.0}, "silo.policy.min_clip | at most max_clip"),
    ("listen", {"port": 7000}, "silo.listen"),
    ("records", {"name": "sql"}, "silo.records.name: 'sql' | csv | npz"),
    ("records", {"name": "mnist"}, "silo.records.name: 'mnist' | csv | npz"),
    ("records", DOWNLOAD, "silo.records.origin | exists in simulation"),
    (
        "records.scaling",
        "training_statistics",
        "silo.records.scaling: 'training_statistics': | fitted on records",
    ),
    ("records.scaling", "silo_statistics", "silo.records.scaling: 'silo_statistics': | fitted on records"),
    ("records.pca", 2, "silo.records.pca: 2: is fitted on records without noise"),
    ("records.test_fraction", 0.2, "silo.records.test_fraction: 0.2: exists in simulation"),
    ("records.reserve", {"fraction": 0.1}, "silo.records.reserve | exists in simulation only"),
    ("insecure_simulation", {"seed": 1, "run": "abc"}, "silo.insecure_simulation.run: 'abc'"),
]


@pytest.mark.parametrize(("path", "value", "words"), WRONG)
def test_what_is_wrong_is_named(path, value, words):
    with pytest.raises(InputError) as caught:
        parse_config(changed(path, value))
    assert lacking(caught.value, words) == []


def test_a_key_that_stands_twice_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "silo.yaml"
    path.write_text(yaml.safe_dump(GOOD) + "name: other\n")
    with pytest.raises(InputError, match=r"silo: .*line \d+: the key 'name' stands twice"):
        load_config(path)


def test_file_names_are_relative_to_the_file(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "silo.yaml").write_text(yaml.safe_dump({**GOOD, "listen": {"port": 7000, "token": "t.txt"}}))
    config = load_config(folder / "silo.yaml")
    assert config.state == folder / "state"
    assert config.records.files == {"path": folder / "records.npz"}
    assert config.listen == AtPort(port=7000, token=folder / "t.txt")


def test_the_last_day_is_a_date_as_yaml_writes_it(tmp_path):
    (tmp_path / "silo.yaml").write_text(
        yaml.safe_dump(changed("policy.lifetime.expires", date(2027, 12, 31)))
    )
    assert load_config(tmp_path / "silo.yaml").policy.lifetime.expires == date(2027, 12, 31)


def test_limits_are_the_policys():
    policy = parse_config(changed("policy.max_clip", 5.0)).policy
    assert policy.limits.max_clip == 5.0
    assert policy.limits.max_rounds == 1_000


def test_fedsims_own_algorithms_are_allowed_where_none_are_listed_and_none_where_the_list_is_empty():
    assert parse_config(GOOD).policy.allowed_algorithms == tuple(algorithms())
    assert parse_config(changed("policy.algorithms", [])).policy.allowed_algorithms == ()


def test_one_run_may_cost_the_lifetimes_budget_unless_it_is_told():
    policy = {key: value for key, value in POLICY.items() if key != "per_run"}
    assert parse_config({**GOOD, "policy": policy}).policy.rules.run_budget == (8.0, 1e-4)
    assert parse_config(GOOD).policy.rules.run_budget == (4.0, 1e-5)


def test_a_lifetime_that_sampled_plans_would_overspend_is_an_error():
    config = parse_config(changed("policy.lifetime.sampled", {"epsilon": 9.0}))
    with refused("silo.policy.lifetime.sampled.epsilon", 9.0):
        caps_of(config)
