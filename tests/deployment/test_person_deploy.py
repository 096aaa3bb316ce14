"""A scenario of persons, deployed: from one table to silos, their accounts, messages and the page."""

import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.channels import InMemory
from support.pooled import pooled_federation, pooled_scenario
from support.scenarios import once
from support.visits import SCHEMA, id_of, write_visits

from fedsim.api.run import load_run
from fedsim.common.errors import InputError, Refused
from fedsim.deployment.federation_file import load_federation
from fedsim.deployment.run import deploy
from fedsim.deployment.topology import Topology, prepare
from fedsim.protocol.receipts import verified_receipt
from fedsim.protocol.unit import PersonAccount
from fedsim.scenario.load import load, parse
from fedsim.scenario.resolve import resolve
from silos.front.config import load_config
from silos.front.enrolment import enrol
from silos.front.own_records import read_records
from silos.front.silo import Silo
from silos.vault.book import read

PERSONS = 90


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """Visits, 1 to 4 of each person."""
    return write_visits(tmp_path_factory.mktemp("visits") / "visits.csv", PERSONS, 4, 7)


def scenario_of(table: Path, unit: object = "person", **privacy: object) -> dict[str, Any]:
    data = {"name": "csv", "path": str(table), "target": "readmitted", "person_column": "patient_id"}
    return once(
        data=data | {"schema": SCHEMA},
        privacy={"epsilon": 4.0, "delta": 1e-4, "unit": unit, **privacy},
        evaluate={"bins": 4},
    )


def made(folder: Path, scenario: dict[str, Any]) -> Topology:
    """Every party's folder, its silos enrolled."""
    topology = prepare(resolve(parse(scenario)), folder)
    for name in topology.silos:
        enrol(load_config(topology.config(name)))
    return topology


class Heard(InMemory):
    """Keeps every byte that silos are sent and send."""

    heard: bytes = b""

    def exchange(self, frames, deadline, knocks=()):
        replies = super().exchange(frames, deadline, dict(knocks))
        self.heard += b"".join([*frames.values(), *dict(knocks).values(), *replies.values()])
        return replies


def run(topology: Topology, scenario: object = None) -> Heard:
    with ExitStack() as stack:
        silos = {name: Silo.open(load_config(topology.config(name))) for name in topology.silos}
        for silo in silos.values():
            stack.callback(silo.close)
        channel = Heard({name: silo.answer for name, silo in silos.items()})
        told = load(topology.scenario, ()) if scenario is None else parse(scenario)
        deploy(told, load_federation(topology.federation), channel, topology.run)
    return channel


def test_persons_are_the_unit_from_the_table_to_the_page(table, tmp_path):
    topology = made(tmp_path / "all", scenario_of(table))
    channel = run(topology)
    summary = load_run(topology.run).summary
    assert summary.status == "finished"
    assert "patient_id" in summary.privacy.guarantee
    assert {row.metric for row in summary.evaluation} >= {"accuracy", "auc"}
    for row in summary.privacy.silos:
        config = load_config(topology.config(row.name))
        persons = read_records(config).units(config.unit)
        assert (row.n + row.held_out, config.unit) == (persons, PersonAccount())
        assert row.epsilon_guaranteed <= 4.0
        book = read(config.ledger)
        assert [each.records for each in book.runs.values()] == ["training", "holdout"]
        key = (topology.run / "receipts" / f"{row.name}.pub").read_text().strip()
        for receipt in topology.run.glob(f"receipts/**/{row.name}.json"):
            assert verified_receipt(receipt.read_text(), key)["unit"]["name"] == "person"
    _assert_no_ids(channel.heard, topology)


def _assert_no_ids(heard: bytes, topology: Topology) -> None:
    """In no message, nor in a file that is not a silo's table, in plain or as a digest without a key."""
    files = [each for each in topology.directory.rglob("*") if each.is_file() and each.name != "records.csv"]
    found = b"\n".join([heard, *(each.read_bytes() for each in files)])
    assert b"silo-00" in found
    for person in range(PERSONS):
        plain = id_of(person).encode()
        digests = [hashlib.new(kind, plain).digest() for kind in ("md5", "sha1", "sha256", "sha512")]
        for secret in (plain, *(d[:8] for d in digests), *(d.hex()[:12].encode() for d in digests)):
            assert secret not in found


def test_silos_of_another_unit_refuse_the_scenario_and_say_why(table, tmp_path):
    topology = made(tmp_path / "all", scenario_of(table))
    records = scenario_of(table, unit="record", epsilon=4.0)
    del records["evaluate"]
    with pytest.raises(Refused, match=r"protects a person \(replace_person\)"):
        run(topology, records)
    values = scenario_of(table, unit={"name": "person", "relation": "replace_values"})
    with pytest.raises(Refused, match=r"it is of unit person \(replace_values\)"):
        run(topology, values)
    for name in topology.silos:
        assert not any(each.rounds for each in read(load_config(topology.config(name)).ledger).runs.values())


def test_a_private_number_of_persons_is_in_no_greeting_and_weighs_nothing(table, tmp_path):
    unit = {"name": "person", "relation": "add_remove"}
    expected = {"silo-00": 20, "silo-01": 30, "silo-02": 30}
    scenario = scenario_of(table, unit, expected_persons=expected)
    del scenario["evaluate"]
    topology = made(tmp_path / "all", scenario)
    assert load_config(topology.config("silo-00")).unit == PersonAccount("add_remove", 20)
    run(topology, scenario | {"privacy": {**scenario["privacy"], "expected_persons": 7}})  # theirs counts
    assert {row.name: row.n for row in load_run(topology.run).summary.privacy.silos} == expected


def test_sums_of_persons_are_agreed_on_by_all_parties(table, tmp_path):
    """Silos, server and shuffler bind the same plan, whose unit is in it."""
    privacy = {"unit": "person", "delta": 1e-4}
    scenario = pooled_scenario(data=scenario_of(table)["data"], privacy=privacy)
    pooled = pooled_federation(tmp_path, scenario, seeded=False, policy={"per_run": None})
    with pooled.silos(seeded=False) as silos, pooled.channel() as shuffler:
        deploy(scenario, pooled.federation, silos, tmp_path / "run", shuffler=shuffler)
    summary = load_run(tmp_path / "run").summary
    assert summary.status == "finished"
    assert sum(row.n for row in summary.privacy.silos) < PERSONS  # others test


def test_a_table_without_ids_is_no_table_of_persons(table, tmp_path):
    scenario = scenario_of(table)
    del scenario["data"]["person_column"]
    with pytest.raises(InputError, match="person_column"):
        resolve(parse(scenario))
