"""A silo's own records by person: divided whole, by its key alone, and no id is left of them."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.deployed import silo_file
from support.refusals import refused

from fedsim.common.errors import InputError
from fedsim.common.identity import Identity
from fedsim.data.source import numbered
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import RECORD, Person
from silos.front.config import load_config
from silos.front.enrolment import enrol
from silos.front.own_records import OwnRecords, read_records

PERSON, OPEN = Person(), Person(relation="add_remove")
SCHEMA = {
    "x": {"kind": "number", "lower": 0, "upper": 1000},
    "y": {"kind": "category", "categories": ["no", "yes"]},
}


def read(folder: Path, ids: Sequence[str], **more: Any) -> OwnRecords:
    return read_records(load_config(write(folder, ids, **more)))


def write(folder: Path, ids: Sequence[str], **more: Any) -> Path:
    """A silo whose record r has the feature r and this id; its file."""
    folder.mkdir(exist_ok=True)
    rows = [f"{each},{r},{('no', 'yes')[r % 2]}" for r, each in enumerate(ids)]
    (folder / "own.csv").write_text("\n".join(["who,x,y", *rows, ""]))
    table = {"name": "csv", "path": "own.csv", "target": "y", "person_column": "who", "schema": SCHEMA}
    fields = {"intercept": False, "scaling": "none"}
    return silo_file(folder, "north", **{"records": table | fields} | more)


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return Identity.create(tmp_path)


def ids_of(records: Rows, ids: Sequence[str]) -> list[str]:
    return [ids[int(x)] for x in records.features[:, 0]]


@pytest.mark.parametrize("unit", [PERSON, OPEN])
def test_no_person_is_in_both_parts(unit, identity, tmp_path) -> None:
    rng = np.random.default_rng(0)
    ids = [f"p{k}" for k in rng.integers(60, size=400)]
    records = read(tmp_path, ids)
    training, holdout = records.divided(0.3, identity, unit)
    count = [len(np.unique(part.owners)) for part in (training, holdout)]
    assert sum(count) == records.units(unit) == len(set(ids)) == 60
    assert not set(ids_of(training, ids)) & set(ids_of(holdout, ids))
    assert sorted(ids_of(training, ids) + ids_of(holdout, ids)) == sorted(ids)
    for part in (training, holdout):
        np.testing.assert_array_equal(part.owners, records.rows.owners[part.features[:, 0].astype(int)])
    if unit == PERSON:
        assert count[1] == 18


def test_one_record_a_person_is_divided_as_records_are(identity, tmp_path) -> None:
    records = read(tmp_path, [f"p{k}" for k in range(50)])
    for one, other in zip(*(records.divided(0.2, identity, unit) for unit in (RECORD, PERSON)), strict=True):
        np.testing.assert_array_equal(one.features, other.features)


def test_one_more_person_moves_no_other_where_persons_come_and_go(identity, tmp_path) -> None:
    """Neither does their order, nor another's number of records."""
    ids = [f"p{k % 70}" for k in range(150)]
    kept = set(ids_of(read(tmp_path, ids).divided(0.4, identity, OPEN)[1], ids))
    for others in ([*ids, "new"], ["new", *ids], ids[::-1], [each for each in ids if each != "p3"], ids * 2):
        found = ids_of(read(tmp_path, others).divided(0.4, identity, OPEN)[1], others)
        assert set(found) - {"new", "p3"} == kept - {"p3"}
    key = identity.sign(b"fedsim persons 1\n")
    for each in set(ids):  # the rule, which silos hold to for ever
        hashed = hmac.digest(key, hashlib.sha256(each.encode()).digest(), "sha256")
        assert (int.from_bytes(hashed[:6], "big") < 0.4 * 2**48) == (each in kept)


def test_the_share_that_is_held_out_is_right_and_differs_by_key(tmp_path) -> None:
    records, found = read(tmp_path, [f"{k}" for k in range(300)]), set()
    for number in range(30):
        (tmp_path / f"{number}").mkdir()
        holdout = records.divided(0.3, Identity.create(tmp_path / f"{number}"), OPEN)[1]
        found.add(tuple(holdout.features[:, 0]))
    assert len(found) == 30
    assert np.mean([len(each) for each in found]) == pytest.approx(90, abs=6)  # 4 standard errors


def test_few_persons_cannot_be_held_out(identity, tmp_path) -> None:
    ids = [f"p{k % 5}" for k in range(100)]
    with refused("silo.holdout", 0.2, "holds out 1 of 5 persons"):
        enrol(load_config(write(tmp_path / "few", ids, unit="person", holdout=0.2)))
    records = read(tmp_path, ids)
    assert records.divided(0.2, identity)[1].n == 20
    with refused("silo.holdout", 0.9999, "holds out 5 of 5 persons"):
        enrol(load_config(write(tmp_path / "all", ids, unit="person", holdout=0.9999)))
    assert records.divided(1e-9, identity, OPEN)[1].n == 0  # which one person decides: it is no error


def test_a_person_unit_needs_ids(identity, tmp_path) -> None:
    records = read(tmp_path, "abcd")
    plain = replace(records, rows=records.rows._replace(owners=None))
    with refused("silo.records.person_column", None, "is required"):
        plain.units(PERSON)
    np.savez(tmp_path / "own.npz", features=np.zeros((6, 1)), target=[0, 1] * 3, person=list("abcabc"))
    table = {"name": "npz", "path": "own.npz", "classes": 2}
    config = load_config(write(tmp_path, "ab", records=table))
    assert read_records(config).units(PERSON) == 3


def test_the_digest_binds_who_is_who(identity, tmp_path) -> None:
    found = [
        read(tmp_path, ids).digest(identity)
        for ids in ("abcabc", "abcabb", "xbcxbc")  # the last two: other groups, another name
    ]
    assert len(set(found)) == 3
    records = read(tmp_path, "abcabc")
    assert replace(records, rows=records.rows._replace(owners=None)).digest(identity) not in found


def test_no_id_is_in_what_is_said(identity, tmp_path) -> None:
    """Not in a warning, nor in what records remember, nor in an error."""
    secret = ["Smith-007", "smith-7", "SMITH - 7", "jones", "Xeno", "Xeno"]
    config = load_config(write(tmp_path, secret))
    told: list[str] = []
    enrol(config, told.append)
    (line,) = (line for line in told if "leading zeros" in line)
    assert line.startswith("warning: some ids differ from others")
    records = read_records(config)
    remembered = repr(vars(records)) + "".join(told)
    assert records.rows.owners.tolist() == numbered(secret).tolist()
    for each in (*secret, "Smith", "jones"):
        assert each not in remembered
    with pytest.raises(InputError, match=r"silo\.records\.person_column: 'who': 1 of 4 records") as caught:
        read(tmp_path, ["jones", "", "jones", "smith"])
    assert "jones" not in str(caught.value)
