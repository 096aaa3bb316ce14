"""Deployed silos have their records' groups, as in a simulation; what leaves them names the groups alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.deployed import Caller, calling, enrolled, federation_of, offer_of, resolved_of, write_silos

from fedsim.common.errors import InputError, Refused
from fedsim.common.identity import Identity
from fedsim.data.arrays import Arrays, Npz
from fedsim.deployment.federation_file import load_federation
from fedsim.deployment.history import public_evaluator
from fedsim.deployment.offers import offers_of, outline_of
from fedsim.deployment.topology import prepare
from fedsim.protocol.rows import Rows
from fedsim.scenario.resolve import Resolved
from fedsim.wire.messages import Greeting, Shape
from silos.front.config import load_config
from silos.front.own_records import OwnRecords, read_records

SEXES = ["f", "m", "", "m", "f"] * 24
SCHEMA: dict[str, Any] = {
    "x": {"kind": "number", "lower": 0, "upper": 120},
    "sex": {"kind": "category", "categories": ["m", "f", "other"], "fill": "m"},
    "y": {"kind": "category", "categories": ["no", "yes"]},
}
NAMES = ("m", "f", "other")


def told(folder: Path, kind: str, **fields: Any) -> Resolved:
    """Three silos of a table, or of arrays."""
    if kind == "npz":
        x = np.arange(120.0)[:, None] / 120
        np.savez(folder / "own.npz", features=x, target=[0, 1] * 60, group=np.array(SEXES))
        return resolved_of(
            data={"name": "npz", "path": str(folder / "own.npz"), "groups": list(NAMES)} | fields
        )
    rows = [f"{k},{sex},{('no', 'yes')[k % 2]}" for k, sex in enumerate(SEXES)]
    (folder / "own.csv").write_text("\n".join(["x,sex,y", *rows, ""]))
    data = {"name": "csv", "path": str(folder / "own.csv"), "target": "y", "schema": SCHEMA}
    return resolved_of(data=data | {"attribute": "sex", "attribute_is_feature": False} | fields)


def assert_same(found: np.ndarray | None, names: tuple[str, ...], expected: np.ndarray | None) -> None:
    assert names == NAMES
    np.testing.assert_array_equal(found, expected)
    assert len(set(np.asarray(found).tolist())) > 1


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_silos_have_the_groups_of_their_own_records_and_the_server_of_its_tests(kind: str, tmp_path) -> None:
    resolved = told(tmp_path, kind)
    made, records = prepare(resolved, tmp_path / "all"), federation_of(resolved)
    for silo in records.silos:
        own = read_records(load_config(made.config(silo.name)))
        assert_same(own.rows.groups, own.groups, silo.train.groups)
        np.testing.assert_array_equal(own.rows.features, silo.train.features)
    test = load_federation(made.federation).test
    assert test is not None
    source = test.open()
    found = source.design(np.arange(source.num_rows)).groups
    assert_same(found.codes, found.names, records.silos.test.rows.groups)
    public_evaluator(test, resolved)
    swapped = test.model_copy(update={"groups": NAMES[::-1]}) if isinstance(test, Npz) else None
    if swapped is not None:
        with pytest.raises(
            InputError, match=r"federation\.test: \('other', 'f', 'm'\): .*\('m', 'f', 'other'\)"
        ):
            public_evaluator(swapped, resolved)


def test_a_parquet_table_is_written_with_its_groups(tmp_path) -> None:
    import pandas as pd

    told(tmp_path, "csv")
    pd.read_csv(tmp_path / "own.csv").to_parquet(tmp_path / "own.parquet")
    resolved = told(tmp_path, "csv", path=str(tmp_path / "own.parquet"))
    made, (silo, *_) = prepare(resolved, tmp_path / "all"), federation_of(resolved).silos
    own = read_records(load_config(made.config(silo.name)))
    assert_same(own.rows.groups, own.groups, silo.train.groups)


def test_parts_of_a_silos_records_keep_their_groups(tmp_path) -> None:
    resolved = told(tmp_path, "npz", intercept=False)
    made = prepare(resolved, tmp_path / "all")
    own = read_records(load_config(made.config(resolved.names[0])))
    (tmp_path / "key").mkdir()
    for part in own.divided(0.4, Identity.create(tmp_path / "key")):
        assert part.groups is not None
        rows = np.round(part.features[:, 0] * 120).astype(int)
        expected = [NAMES.index(SEXES[row]) if SEXES[row] else -1 for row in rows]
        assert part.groups.tolist() == expected


def test_a_silos_digest_has_groups_and_is_as_it_was_without(tmp_path) -> None:
    key, x, y = Identity.create(tmp_path), np.zeros((3, 1)), np.array([0, 1, 0])

    def digest(codes: Sequence[int] | None, names: tuple[str, ...] = ("a", "b")) -> str:
        rows = Rows(x, y, None if codes is None else np.array(codes))
        return OwnRecords(rows, 2, groups=names).digest(key)

    kept = {digest(None), digest([0, 1, 0]), digest([0, 1, -1]), digest([0, 1, 0], ("b", "a"))}
    assert len(kept) == 4


@pytest.fixture
def caller(tmp_path) -> Iterator[Caller]:
    resolved = told(tmp_path, "csv")
    with calling(*enrolled(write_silos(tmp_path / "silos", resolved)[:1])) as found:
        yield found


def test_a_silo_states_its_groups_and_takes_offers_of_as_many(caller, tmp_path) -> None:
    said = Greeting(**caller.send("hello").head)
    assert said.groups == NAMES
    assert all(word not in caller.sent[0] for word in (b"codes", b"sex"))
    resolved = told(tmp_path, "csv")
    others = {name: said.model_copy(update={"silo": name}) for name in resolved.names}
    assert outline_of(others).groups == resolved.outline.groups == NAMES
    with pytest.raises(Refused, match=r"differ in groups .*silo-01: \('f', 'm'\)"):
        outline_of(others | {"silo-01": said.model_copy(update={"groups": ("f", "m")})})
    offer = offer_of(resolved, "silo-00")
    assert offers_of(resolved, "0" * 64, [[0, 1, 2]] * 6)["silo-00"].shape == Shape(**offer["shape"])
    for groups in (0, 2, 4):
        shape = offer["shape"] | {"num_groups": groups}
        reason = f"silo 'silo-00' has 3 groups, the offer says {groups}"
        assert reason in caller.refused("offer", **offer | {"shape": shape, "head": caller.head})
    caller.admitted(offer)


def test_offers_and_greetings_without_groups_are_what_they_were() -> None:
    said = Greeting(silo="a", n=3, num_features=2, num_classes=2, version="1", notices=(), head="0" * 64)
    assert (
        "groups"
        not in said.model_dump_json() + Shape(sizes={"a": 1}, num_features=1, num_classes=2).model_dump_json()
    )
    assert resolved_of().outline.groups == ()


def test_a_silo_declares_the_groups_that_it_states(tmp_path) -> None:
    path, *_ = write_silos(tmp_path / "silos", told(tmp_path, "npz"))
    tree = yaml.safe_load(path.read_text())
    del tree["records"]["groups"]
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(InputError, match=r"records\.groups: None: is public, so declare it"):
        read_records(load_config(path))
    assert Arrays([[0.0], [1.0]], [0, 1], group=["a", "b"]).open().groups == ("a", "b")
