"""An account of persons: what fixes it, what it refuses, and what of persons leaves the silo."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pydantic import TypeAdapter
from support.deployed import POLICY, Caller, calling, offer_of, resolved_of, silo_file
from support.scenarios import invoke
from support.visits import SCHEMA, id_of, write_visits

from fedsim.common.errors import InputError
from fedsim.common.seeds import generator
from fedsim.protocol.receipts import verified_receipt
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import RECORD, Person, PersonAccount, Rule, Unit
from fedsim.scenario.evaluation import evaluation_of
from fedsim.wire.messages import Greeting, Offer
from silos.front.config import Config, load_config
from silos.front.enrolment import Proposed, enrol
from silos.front.own_records import read_records
from silos.front.pending import PendingOffers
from silos.front.silo import Silo
from silos.vault import gate as gates
from silos.vault.book import read
from silos.vault.owners import ALONE, Owners
from silos.vault.vault import Vault

PERSONS, SILO = 30, "silo-00"
BARE = {"name": "person", "relation": "add_remove"}
POINT = torch.zeros(3, dtype=torch.float64)
ADD_REMOVE = BARE | {"expected_persons": 40}
RESOLVED = resolved_of(data={"name": "synthetic", "rows": 120, "features": 2}, evaluate={"bins": 4})


def write(folder: Path, unit: object = "person", persons: int = PERSONS, **more: Any) -> Path:
    """A silo with a table of visits, 1 to 5 a person; its file."""
    folder.mkdir(parents=True)
    write_visits(folder / "visits.csv", persons, 5, persons)
    table = {"name": "csv", "path": "visits.csv", "target": "readmitted", "person_column": "patient_id"}
    own = {} if unit is None else {"unit": unit}
    return silo_file(folder, SILO, table | {"schema": SCHEMA}, **own, **more)


def again(file: Path, **changes: Any) -> Config:
    """The silo's file with other fields; None takes one out."""
    tree = {**yaml.safe_load(file.read_text()), **changes}
    file.write_text(yaml.safe_dump({name: each for name, each in tree.items() if each is not None}))
    return load_config(file)


def offer(n: int = PERSONS, unit: object = "person", session: int = 1, **changes: Any) -> dict[str, Any]:
    made = offer_of(RESOLVED, SILO, session=f"{session:064x}", unit=unit, **changes)
    if unit is None:
        del made["unit"]
    shape = made["shape"]
    return made | {"shape": {**shape, "sizes": {**shape["sizes"], SILO: n}}}


def refused(caller: Caller, made: Mapping[str, Any]) -> str:
    return caller.refused("offer", **{**made, "head": caller.head})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = load_config(write(tmp_path / SILO))
    enrol(made)
    return made


def test_what_an_enrolment_fixes_is_said_and_greeted(tmp_path):
    config = load_config(write(tmp_path / SILO))
    said = "\n".join(Proposed.of(config).lines)
    assert "  persons    30, 3 features, 2 classes; none is added or changed" in said
    assert "  unit       all records of one person (column patient_id), replace_person" in said
    found = enrol(config)
    assert found["n"] == PERSONS
    with calling(config) as caller:
        head = caller.send("hello").head
    assert head["n"] == PERSONS
    assert head["unit"] == asdict(PersonAccount()) | {"name": "person"}
    assert Greeting.model_validate(head).unit == PersonAccount()
    assert read(config.ledger).enrolment.unit == PersonAccount()


def test_accounts_greetings_and_receipts_of_records_are_what_they_were(tmp_path):
    config = load_config(write(tmp_path / SILO, unit=None))
    enrol(config)
    assert "unit" not in read(config.ledger).enrolment.tree()
    with calling(config) as caller:
        assert "unit" not in caller.send("hello").head
        run = caller.admitted(offer(90, unit=None))["run"]
        assert "unit" not in json.loads(caller.closed(run)["receipt"])
    assert Offer.model_validate(offer(unit="record")).text == Offer.model_validate(offer(unit=None)).text


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (None, "person"),
        ("person", None),
        ("person", {"name": "person", "relation": "replace_values"}),
        ("person", ADD_REMOVE),
        (ADD_REMOVE, "person"),
        (ADD_REMOVE, ADD_REMOVE | {"expected_persons": 41}),
    ],
)
def test_another_unit_than_the_enrolled_one_is_refused(tmp_path, first, later):
    file = write(tmp_path / SILO, unit=first)
    enrol(load_config(file))
    with pytest.raises(InputError, match=r"silo.unit: .*for its whole account; enrol anew elsewhere"):
        Silo.open(again(file, unit=later))
    Silo.open(again(file, unit=first)).close()


UNITS = {
    "replace_record": None,
    "replace_person": "person",
    "replace_values": {"name": "person", "relation": "replace_values"},
    "add_remove": ADD_REMOVE,
}


@pytest.mark.parametrize("own", UNITS)
def test_an_offer_of_another_unit_is_refused_either_way_round(tmp_path, own):
    """And one of the same unit is admitted, whatever its bound is."""
    config = load_config(write(tmp_path / SILO, unit=UNITS[own]))
    n = enrol(config)["n"]
    with calling(config) as caller:
        before = caller.silo.ledger.head
        for relation in UNITS:
            other = None if relation == "replace_record" else {"name": "person", "relation": relation}
            if relation != own:
                for size in (n, 90, PERSONS, 40):
                    said = refused(caller, offer(size, other))
                    assert "offer: it is of unit " in said
                    assert "the silo's account protects a " in said
        assert caller.silo.ledger.head == before
        if own == "replace_record":
            caller.admitted(offer(n, None))
        else:
            for session, bound in enumerate([{"bound": "clip"}, {"bound": "limit", "h": 2}]):
                caller.admitted(offer(n, {"name": "person", "relation": own, **bound}, session))


def test_a_plan_is_of_its_unit_and_bound(config):
    bounds: list[dict[str, Any]] = [{"bound": "clip"}, {"bound": "mean"}, {"bound": "smooth", "h": 3}]
    with calling(config) as caller:
        for session, bound in enumerate(bounds):
            caller.admitted(offer(unit={"name": "person", **bound}, session=session))
        runs = caller.silo.ledger.book.runs.values()
        assert len({run.plan for run in runs}) == len({run.offer for run in runs}) == 3
        known = offer(unit={"name": "person", "bound": "mean"}, session=0)
        assert "known with another offer" in refused(caller, known)
        for rule in (
            Rule("sweet_spot", {1: 1.0}),
            Rule("quantile", share=0.1),
        ):  # of a server that does not say which
            unit = Person("limit", rule)
            said = refused(caller, offer(unit=TypeAdapter(Unit).dump_python(unit, mode="json"), session=9))
            assert "h is to be chosen, and the plan releases no contributions" in said


@pytest.fixture
def laid_out(monkeypatch) -> list[list[int]]:
    """How many records each person has of those that each gate was given, sorted."""
    seen: list[list[int]] = []

    def lay_out(silos, problem, dtype, persons=None):
        (codes,) = persons.codes
        assert len(codes) == len(silos[0][1])
        assert persons.unit == Person(bound="mean")
        seen.append(sorted(np.unique(codes, return_counts=True)[1].tolist()))
        return gates.lay_out(silos, problem, dtype, persons)

    monkeypatch.setattr("silos.vault.vault.lay_out", lay_out)
    return seen


def test_a_gate_has_the_persons_of_its_records_also_after_a_restart(config, laid_out):
    mean = {"name": "person", "bound": "mean"}
    with calling(config) as caller:
        run = caller.admitted(offer(unit=mean))["run"]
        (first,) = caller.asked(run, 0, w=POINT).values()
    with calling(config, head=caller.head) as caller:
        (known,) = caller.asked(run, 0, w=POINT).values()
        assert torch.equal(known, first)
        caller.asked(run, 1, w=POINT)
        receipt = verified_receipt(caller.closed(run)["receipt"], caller.silo.ledger.enrolment.identity)
    assert laid_out == [sorted(1 + person % 5 for person in range(PERSONS))] * len(laid_out)
    assert len(laid_out) >= 2
    assert receipt["unit"] == {"name": "person", "relation": "replace_person", "silos_per_person": 1}
    assert receipt["rounds"] == [0, 1]


def test_a_seeded_silo_chooses_the_records_that_a_simulated_one_chooses():
    codes = np.repeat([0, 1], 9)
    own = Rows(np.zeros((18, 2)), np.zeros(18), owners=codes)
    vault = Vault({"training": own}, None, None, None, None, (3, 1, "ab" * 32))
    found = vault._owners(own, Person("limit", 2), SILO)
    simulated = Owners.of(Person("limit", 2), [codes], (3, 1, [SILO]))
    drawn = [each.streams[0].random(18).tolist() for each in (found, simulated)]
    assert drawn[0] == drawn[1] == generator("records of a person", 3, 1, SILO).random(18).tolist()
    assert vault._owners(own, RECORD, SILO) is ALONE


def test_a_silo_calibrates_to_its_own_share_of_a_person_in_several(config):
    """k silos of a quarter of mu^2 each cost what one would; the account is charged its own quarter."""
    own = []
    with calling(config) as caller:
        for k in (1, 4):
            said = caller.admitted(offer(unit={"name": "person", "silos_per_person": k}, session=k))
            reserved = caller.silo.ledger.run(said["run"]).record.price.whole.mu_sq
            own.append((said["noise_multiplier"], reserved))
    assert own[1][0] == pytest.approx(2 * own[0][0], rel=1e-6)
    assert own[1][1] == pytest.approx(own[0][1] / 4, rel=1e-6)


def test_an_offer_for_fewer_silos_of_a_person_than_the_account_asks_for_is_refused(tmp_path):
    file = write(tmp_path / SILO, unit={"name": "person", "silos_per_person": 3})
    enrol(load_config(file))
    with calling(load_config(file)) as caller:
        for k in (1, 2):
            said = refused(caller, offer(unit={"name": "person", "silos_per_person": k}))
            assert f"its silos_per_person is {k}; the silo's account asks for 3 or more" in said
        for k in (3, 4):
            caller.admitted(offer(unit={"name": "person", "silos_per_person": k}, session=k))
    with pytest.raises(InputError, match=r"silo\.unit: .*for its whole account"):
        Silo.open(again(file, unit="person"))


def test_persons_of_more_records_than_exact_noise_covers_are_refused_to_the_owner(tmp_path, monkeypatch):
    file = write(tmp_path / SILO)
    records = read_records(load_config(file)).rows.n
    monkeypatch.setattr("silos.front.enrolled.MAX_RECORDS", records)
    assert enrol(load_config(file))["n"] < records - 1
    monkeypatch.setattr("silos.front.enrolled.MAX_RECORDS", records - 1)
    with pytest.raises(InputError, match=r"silo\.records: .*exact noise covers"):
        Silo.open(load_config(file))
    policy = yaml.safe_load(file.read_text())["policy"] | {"exact_noise_dimension": 0}
    Silo.open(again(file, policy=policy)).close()


def test_what_stands_for_a_private_number_of_persons_is_all_that_is_told(tmp_path):
    """Two silos whose greetings differ in nothing that is made of records, and the divisor is public."""
    said = []
    for persons in (37, 43):
        config = load_config(write(tmp_path / f"{persons}" / SILO, unit=ADD_REMOVE, persons=persons))
        assert enrol(config)["n"] == 40
        with calling(config) as caller:
            head = dict(caller.send("hello").head)
            run = caller.admitted(offer(40, BARE))["run"]
            caller.asked(run, 0, w=POINT)
            receipt = json.loads(caller.closed(run)["receipt"])
            assert f"has 40 persons, the offer says {persons}" in refused(caller, offer(persons, BARE, 2))
        del head["head"], head["time"]  # neither is made of records
        said.append(head)
        assert receipt["unit"] == ADD_REMOVE | {"silos_per_person": 1}
    assert said[0] == said[1]
    assert said[0]["n"] == 40


@pytest.mark.parametrize(("expected", "odd"), [(14, True), (15, True), (16, False), (59, False), (60, True)])
def test_a_number_far_from_the_true_one_is_told_to_the_owner_alone(tmp_path, capsys, expected, odd):
    unit = ADD_REMOVE | {"expected_persons": expected}
    config = load_config(write(tmp_path / SILO, unit=unit))
    assert odd == any("expected_persons" in line for line in Proposed.of(config).warnings)
    enrol(config)
    with calling(config) as caller:
        said = capsys.readouterr()
        assert odd == (f"unit.expected_persons {expected}" in said.err)
        assert odd == (("half or less" if expected == 60 else "twice or more") in said.err)
        assert str(PERSONS) not in said.err  # which a service manager may keep
        caller.send("hello")
        assert b"warning" not in caller.sent[0]


@pytest.mark.parametrize("most", [89, 90, 10**12])
def test_the_time_of_a_round_is_counted_for_the_declared_number_of_records(tmp_path, capsys, most):
    """Of records whose number is private, 90 here: the owner is told, and an offer meets the same answer."""
    file = write(tmp_path / SILO, policy=POLICY | {"max_records": most})
    config = load_config(file)
    assert (most < 90) == any("max_records" in line for line in Proposed.of(config).warnings)
    enrol(config)
    with calling(config) as caller:
        assert (most < 90) == ("policy.max_records 89" in capsys.readouterr().err)
        if most < 1_000:
            caller.asked(caller.admitted(offer())["run"], 0, w=POINT)
        else:
            reason = refused(caller, offer())
            assert f"for {most:,} records (policy.max_records), at most 60" in reason
            assert not caller.silo.ledger.book.runs


def test_ids_written_in_two_ways_are_told_to_the_owner_alone(tmp_path, capsys):
    file = write(tmp_path / SILO)
    table = tmp_path / SILO / "visits.csv"
    table.write_text(table.read_text() + f" {id_of(0).lower()} ,30,0.5,1\n")
    enrol(load_config(file))
    capsys.readouterr()
    with calling(load_config(file)) as caller:
        assert "differ from others in spaces, case or leading zeros only" in capsys.readouterr().err
        assert not caller.send("hello").head["notices"]


@pytest.mark.parametrize(("unit", "parts"), [("person", (24, 6)), (ADD_REMOVE, (32, 8))])
def test_both_parts_are_counted_in_persons_or_by_what_is_declared(tmp_path, unit, parts):
    config = load_config(write(tmp_path / SILO, unit=unit, holdout=0.2))
    enrol(config)
    with calling(config) as caller:
        head = caller.send("hello").head
    assert (head["n"], head["held_out"]) == parts


@pytest.mark.parametrize("true", [1, 2, 3, 20])
@pytest.mark.parametrize("batch", [{}, {"sampler": "poisson", "fraction": 0.25}], ids=["full", "poisson"])
def test_whether_a_silo_enrols_starts_and_answers_is_no_matter_of_its_true_number(tmp_path, true, batch):
    """Of one person a part is empty, and by the key a part of few may be."""
    unit = {"unit": ADD_REMOVE | {"expected_persons": 20}, "holdout": 0.2}
    config = load_config(write(tmp_path / SILO, persons=true, **unit))
    enrol(config)
    algorithm = RESOLVED.scenario.algorithm.model_dump(mode="json") | ({"batch": batch} if batch else {})
    with calling(config) as caller:
        head = caller.send("hello").head
        assert (head["n"], head["held_out"]) == (16, 4)
        run = caller.admitted(offer(16, unit=BARE, algorithm=algorithm))["run"]
        assert [caller.asked(run, r, w=POINT)["g"].isfinite().all() for r in range(6)] == [True] * 6
        held = offer_of(evaluation_of(RESOLVED), SILO, session=f"{2:064x}", unit=BARE, records="holdout")
        held["shape"]["sizes"][SILO] = 4
        run = caller.admitted(held)["run"]
        assert all(each.isfinite().all() for each in caller.asked(run, 0, w=POINT).values())


def test_a_holdout_is_of_the_number_that_is_declared(tmp_path):
    unit = ADD_REMOVE | {"expected_persons": 5}
    config = load_config(write(tmp_path / SILO, unit=unit, persons=20, holdout=0.2))
    with pytest.raises(InputError, match=r"silo\.holdout: 0\.2: holds out 1 of 5 persons"):
        enrol(config)


def test_a_silo_of_one_person_is_refused_to_the_owner(tmp_path):
    one = load_config(write(tmp_path / "one", persons=1))
    with pytest.raises(InputError, match=r"silo\.records\.person_column.*one person"):
        enrol(one)
    assert not one.ledger.exists()


WRONG = [
    ({"unit": "persons"}, r"silo\.unit\.name: 'persons': must be one of record, person"),
    ({"unit": {"name": "record", "relation": "add_remove"}}, r"silo\.unit\.relation: .*unknown key"),
    ({"unit": BARE}, r"silo\.unit\.expected_persons: None: .*requires it"),
    ({"unit": {"name": "person", "expected_persons": 9}}, r"silo\.unit\.expected_persons: 9: "),
    ({"unit": {"name": "person", "relation": "swap"}}, r"silo\.unit\.relation: 'swap'"),
    ({"unit": {"name": "person", "bound": "clip"}}, r"silo\.unit\.bound: .*unknown key"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_a_wrong_unit_is_named_before_records_are_read(tmp_path, changes, said):
    file = write(tmp_path / SILO)
    (tmp_path / SILO / "visits.csv").unlink()
    with pytest.raises(InputError, match=said):
        again(file, **changes)


def test_persons_need_a_column_that_says_whose_a_record_is(tmp_path):
    file = write(tmp_path / SILO)
    records = yaml.safe_load(file.read_text())["records"]
    del records["person_column"]
    with pytest.raises(InputError, match=r"silo\.records\.person_column: None: is required with unit person"):
        again(file, records=records)


def test_an_operator_reads_whose_account_it_is(config):
    with calling(config) as caller:
        run = caller.admitted(offer())["run"]
        receipt = caller.closed(run)["receipt"]
    shown = " ".join(invoke("ledger", "show", config.state).split())
    assert "-DP for replacing all records of one person in that silo by those of another person, any" in shown
    assert json.loads(invoke("ledger", "show", config.state, "--json"))["unit"] == asdict(PersonAccount())
    place = config.state / "receipt.json"
    place.write_text(receipt)
    verified = invoke("ledger", "verify", place, "--key", config.state / "identity.pub")
    assert "-DP for replacing all records of one person" in " ".join(verified.split())


def test_an_operator_who_decides_reads_the_unit_of_an_offer(tmp_path):
    config = load_config(write(tmp_path / SILO, policy=POLICY | {"approve": "ask"}))
    enrol(config)
    with calling(config) as caller:
        assert "has to decide" in refused(caller, offer())
        (waits,) = PendingOffers(config.state).all(caller.silo.ledger.now())
    shown = " ".join(invoke("offers", "show", config.state, waits.digest[:8]).split())
    assert "persons, as the server says; 30 are this silo's" in shown
    assert "bound clip, silos_per_person 1" in shown
    assert "-DP for replacing all records of one person in that silo by those of another person" in shown


def test_no_id_leaves_the_silo(tmp_path, capsys, caplog, monkeypatch):
    """Neither as it is nor as a digest without a key: in traffic, state folder, log and errors."""
    caplog.set_level(logging.DEBUG)
    file = write(tmp_path / SILO, holdout=0.2)
    config = load_config(file)
    lines: list[str] = []
    enrol(config, lines.append)
    with calling(config) as caller:
        caller.send("hello")
        run = caller.admitted(offer(24))["run"]
        for r in range(6):
            caller.asked(run, r, w=POINT)
        refused(caller, offer(24, unit=None, session=2))
        caller.refused("ask", {"w": POINT * float("nan")}, run=run, round=0)
        caller.closed(run)
        caller.send("close", run="ab" * 32)
        with monkeypatch.context() as broken:
            broken.setattr("silos.vault.gate.Gate.asked", _breaks)
            run = caller.admitted(offer(24, session=3))["run"]
            assert "see its log" in caller.refused("ask", {"w": POINT}, run=run, round=0)
    assert "RuntimeError" in caplog.text
    table = tmp_path / SILO / "visits.csv"
    for broken in (f"{id_of(3)},old,0.5,1\n", f"{id_of(4)},30,0.5,2\n", " ,30,0.5,1\n"):
        table.write_text(table.read_text() + broken)
        with pytest.raises(InputError) as error:
            Silo.open(config)
        lines.append(str(error.value))
        table.write_text(table.read_text().removesuffix(broken))
    printed = capsys.readouterr()
    lines += [printed.out, printed.err, caplog.text]
    found = b"".join(caller.sent) + "".join(lines).encode()
    for place in config.state.rglob("*"):
        found += place.read_bytes() if place.is_file() else b""
    assert SILO.encode() in found  # the search finds what is there
    for secret in _forms():
        assert secret not in found


def _breaks(*_: object) -> None:
    raise RuntimeError(" ".join(map(id_of, range(PERSONS))))


def _forms() -> list[bytes]:
    """Every id in plain, and what a digest of it may begin with."""
    found = []
    for person in range(PERSONS):
        plain = id_of(person).encode()
        found.append(plain)
        for kind in ("md5", "sha1", "sha256", "sha512", "blake2b"):
            digest = hashlib.new(kind, plain).digest()
            found += [digest[:8], digest.hex()[:12].encode()]
    return found
