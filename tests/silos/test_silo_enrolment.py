"""What is fixed once: records, identity, lifetime; and what of it a later start refuses."""

import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from support.daemons import enrolment_killed_at
from support.deployed import POLICY, silo_file
from support.refusals import ANY, refused

from fedsim.common.errors import InputError
from fedsim.common.identity import Identity
from fedsim.data import csv_table
from fedsim.data.builtin import Digits
from fedsim.data.column_values import features_of
from fedsim.data.csv_table import Csv
from fedsim.data.federation import load
from fedsim.data.partition import IidPartition
from fedsim.data.schema import names_of, ranges_of
from fedsim.privacy import gaussian
from fedsim.privacy.grid import GridGaussian
from fedsim.protocol.batch import FULL
from fedsim.protocol.plan import Release
from fedsim.protocol.statistics import Extent
from silos.front.config import load_config
from silos.front.enrolment import Proposed, caps_of, enrol
from silos.front.own_records import read_records
from silos.front.silo import Silo
from silos.front.tried_out import tried_out
from silos.vault.book import Enrolment, read

X, Y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 0])


@pytest.fixture
def configure(tmp_path):
    """`configure(records section, policy=..., **top)`: a silo.yaml in `tmp_path`, read."""

    def make(records=None, policy=None, **top):
        np.savez(tmp_path / "records.npz", features=X, target=Y)
        section = records or {"name": "npz", "path": "records.npz", "classes": 2}
        own = {"name": "silo-1", "policy": {**POLICY, **(policy or {})}} | top
        return load_config(silo_file(tmp_path, records=section, **own))

    return make


def test_enrolment_says_what_is_public_and_keeps_the_key_to_its_owner(configure, tmp_path):
    found = enrol(configure())
    named = {"silo": "silo-1", "n": 4, "num_features": 3, "num_classes": 2, "unit": "record"}
    assert found == named | {"identity": found["identity"]}
    assert (tmp_path / "state" / "identity.pub").read_text().strip() == found["identity"]
    for private in ("identity.key", "ledger.sqlite"):
        assert (tmp_path / "state" / private).stat().st_mode & 0o077 == 0
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_a_silo_enrols_once(configure, tmp_path):
    first = enrol(configure())
    before = (tmp_path / "state" / "ledger.sqlite").read_bytes()
    with refused("silo.state", ANY, "is enrolled already"):
        enrol(configure(policy={"lifetime": {**POLICY["lifetime"], "epsilon": 100.0}}))
    assert (tmp_path / "state" / "ledger.sqlite").read_bytes() == before
    assert (tmp_path / "state" / "identity.pub").read_text().strip() == first["identity"]


def test_an_enrolment_that_was_cut_short_goes_on_with_its_key(configure, tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    identity = Identity.create(tmp_path / "state")
    assert enrol(configure())["identity"] == identity.public


def test_an_enrolment_killed_at_any_write_is_made_up_for_by_the_next(configure, tmp_path):
    for write in range(20):
        state = tmp_path / f"state-{write}"
        config = configure(state=state.name)
        killed = enrolment_killed_at(tmp_path / "silo.yaml", write)
        if not config.ledger.exists():
            enrol(config)
        assert list(state.glob(".writing-*")) == []
        assert (state / "identity.pub").read_text() == f"{Identity.load(state).public}\n"
        Silo.open(config).close()
        if not killed:
            break
    assert write > 5


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("", 0o770, "chmod go-w"),
        ("", 0o702, "chmod go-w"),
        ("ledger.sqlite", 0o640, "chmod 600"),
        ("ledger.sqlite-head", 0o604, "chmod 600"),
        ("identity.key", 0o640, "chmod 600"),
    ],
)
def test_a_state_that_others_may_read_or_change_is_refused(configure, tmp_path, name, mode, expected):
    place = tmp_path / "state" / name
    if not name:  # of the operator's own making
        place.mkdir()
        place.chmod(mode)
        with pytest.raises(InputError, match=rf"silo\.state: .*{expected}"):
            enrol(configure())
        place.chmod(0o755)
    enrol(configure())
    Silo.open(configure()).close()
    place.chmod(mode)
    with pytest.raises(InputError, match=rf"(silo\.state|identity): .*{expected}"):
        Silo.open(configure())


def test_a_lifetime_without_room_for_exact_noise_is_refused_at_enrolment(configure):
    """All that is accepted carries a plan of the most rounds and numbers, at the whole budget."""
    for epsilon in (20.0, 40.0, 100.0):
        lifetime = {"epsilon": epsilon, "delta": 1e-5, "expires": "2999-12-31"}
        config = configure(policy={"lifetime": lifetime, "per_run": None}, state=f"state-{epsilon}")
        if epsilon > 20:
            with refused("silo.policy.lifetime.epsilon", ANY, "lower lifetime.epsilon"):
                enrol(config)
            continue
        enrol(config)
        caps, rounds = caps_of(config).total, config.policy.max_rounds
        mechanism = GridGaussian(
            Extent(config.policy.exact_noise_dimension, config.policy.exact_noise_dimension)
        )
        z = 1 / math.sqrt(caps.mu_sq)
        assert mechanism.distance(((Release(FULL, 1.0), rounds),), z) <= caps.distance


def test_a_last_day_that_is_past_is_refused_before_anything_is_written(configure, tmp_path):
    today = datetime.now(UTC).date()
    for days, state in ((-1, "past"), (0, "today")):
        lifetime = {**POLICY["lifetime"], "expires": str(today + timedelta(days=days))}
        config = configure(policy={"lifetime": lifetime}, state=state)
        if days:
            with refused("silo.policy.lifetime.expires", ANY, "is past"):
                enrol(config)
            assert not (tmp_path / state).exists()
        else:
            enrol(config)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, []),
        ({"delta": 0.25}, ["lifetime.delta"]),  # there are four records
        ({"delta": 0.2499}, []),
        ({"epsilon": 12.0}, ["lifetime.epsilon"]),
        (
            {"epsilon": 60.0, "delta": 0.5, "sampled": {"epsilon": 20.0, "delta": 1e-5}},
            ["lifetime.epsilon", "lifetime.delta", "too"],  # large for exact noise
        ),
    ],
)
def test_a_lifetime_that_promises_next_to_nothing_is_warned_of_before_it_is_fixed(configure, change, named):
    config = configure(policy={"lifetime": {**POLICY["lifetime"], **change}})
    assert [line.split()[0] for line in Proposed.of(config).warnings] == named
    assert not config.state.exists()
    told: list[str] = []
    enrol(config, told.append)
    assert sum(line.startswith("warning: ") for line in told) == len(named)


def test_what_an_enrolment_shows_is_rounded_up_and_counts_the_runs_that_fit(configure):
    lifetime = {**POLICY["lifetime"], "epsilon": 8.00001}
    proposed = Proposed.of(
        configure(policy={"lifetime": lifetime, "per_run": {"epsilon": 2.0, "delta": 1e-6}})
    )
    lines = "\n".join(proposed.lines)
    assert "(8.001, 0.0001)-DP" in lines
    (count,) = (int(found) for found in re.findall(r"; (\d+) of full batches fit", lines))
    one, most = float(gaussian.mu(2.0, 1e-6)) ** 2, proposed.caps.total.mu_sq
    assert count * one <= most < (count + 1) * one


def test_a_silo_that_is_not_enrolled_does_not_start(configure):
    with refused("silo.state", ANY, "no silo is enrolled there"):
        Silo.open(configure())


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 9.0},
        {"delta": 1e-3},
        {"expires": "3000-01-01"},
        {"sampled": {"epsilon": 5.0, "delta": 5e-5}},
    ],
)
def test_another_lifetime_does_not_start(configure, change):
    enrol(configure())
    with refused("silo.policy.lifetime", ANY, "another lifetime"):
        Silo.open(configure(policy={"lifetime": {**POLICY["lifetime"], **change}}))
    Silo.open(configure()).close()


def test_the_rest_of_the_policy_may_change(configure):
    enrol(configure())
    Silo.open(configure(policy={"max_rounds": 5, "per_run": {"epsilon": 1.0, "delta": 1e-6}})).close()


def test_changed_records_do_not_start_and_old_ones_do(configure, tmp_path):
    enrol(configure())
    config = configure()
    np.savez(tmp_path / "records.npz", features=X + 1e-12, target=Y)
    with refused("silo.records", "npz", "the records have changed"):
        Silo.open(config)
    Silo.open(configure()).close()


def test_records_prepared_in_another_way_are_others(configure):
    enrol(configure())
    with refused("silo.records", "npz", "the records have changed"):
        Silo.open(configure({"name": "npz", "path": "records.npz", "classes": 2, "intercept": False}))


def test_the_number_of_classes_which_every_greeting_states_is_declared_and_not_counted(configure, tmp_path):
    """One record alone has the third class: a neighbouring silo must not greet otherwise."""
    for target in (Y, np.array([0, 1, 2, 0])):
        counted = configure({"name": "npz", "path": "records.npz"})
        np.savez(tmp_path / "records.npz", features=X, target=target)
        with refused("silo.records.classes", None, "declare it"):
            enrol(counted)
        declared = configure({"name": "npz", "path": "records.npz", "classes": 3}, state=f"state-{target[2]}")
        np.savez(tmp_path / "records.npz", features=X, target=target)
        assert enrol(declared)["num_classes"] == 3


def test_another_name_or_key_does_not_start(configure, tmp_path):
    enrol(configure())
    with refused("silo.name", "silo-2", "the silo was enrolled as 'silo-1'"):
        Silo.open(configure(name="silo-2"))
    (tmp_path / "state" / "identity.key").unlink()
    Identity.create(tmp_path / "state")
    with refused("silo.state", ANY, "holds another key"):
        Silo.open(configure())


def test_a_seed_needs_the_flag_and_the_flag_a_seed(configure):
    seed = {"seed": 1, "trial": 0, "run": "ab" * 32}
    enrol(configure())
    for config, flag in ((configure(insecure_simulation=seed), False), (configure(), True)):
        with refused("silo.insecure_simulation", ANY, "--insecure-simulation"):
            Silo.open(config, flag)


def test_the_digest_of_equal_records_differs_between_silos(configure):
    """Heads of the chain are made of it and leave: a guess at records must not be confirmed by it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    records = read_records(configure())
    a, b = (Identity(Ed25519PrivateKey.generate()) for _ in range(2))
    assert records.digest(a) == records.digest(a) != records.digest(b)
    changed = replace(records, rows=records.rows._replace(target=1 - records.rows.target))
    assert changed.digest(a) != records.digest(a)


SCHEMA = {
    "age": {"kind": "number", "lower": 20, "upper": 80},
    "sex": {"kind": "category", "categories": ["f", "m"]},
    "ill": {"kind": "category", "categories": ["no", "yes"]},
}
SECTION: dict[str, Any] = {"name": "csv", "path": "t.csv", "target": "ill", "schema": SCHEMA}
TABLE = "age,sex,ward,ill\n63,m,1,yes\n41,f,1,no\n57,f,1,yes\n"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_gives_what_a_simulated_silo_trains_on(configure, tmp_path, kind):
    (tmp_path / "t.csv").write_text(TABLE)
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(tmp_path / "t.csv"), tmp_path / "t.parquet")
    own = read_records(configure({**SECTION, "path": f"t.{kind}"}))
    data = Csv(path=tmp_path / "t.csv", target="ill", schema=SCHEMA, test_fraction=1e-9)
    silo = load(data, IidPartition(num_partitions=1), 0, 0).silos[0]
    assert np.array_equal(own.rows.features, silo.train.features)
    assert np.array_equal(own.rows.target, silo.train.target)
    assert own.num_classes == 2


def enrolled_before(config, monkeypatch) -> None:
    """As by a version that gave each category an indicator, and stated no rule."""

    def unstated(own):
        return {name: each for name, each in stated(own).items() if name != "recoding"}

    stated = Enrolment.tree
    with monkeypatch.context() as before:
        before.setattr(csv_table, "names_of", lambda name, column, _: names_of(name, column, False))
        before.setattr(csv_table, "ranges_of", lambda columns, _: ranges_of(columns, False))
        before.setattr(csv_table, "features_of", lambda columns, cells, _: features_of(columns, cells, False))
        before.setattr(Enrolment, "tree", unstated)
        enrol(config)


def test_a_silo_enrolled_by_the_former_rule_for_categories_is_told_to_enrol_anew(
    configure, tmp_path, monkeypatch, capfd
):
    (tmp_path / "t.csv").write_text(TABLE)
    enrolled_before(configure(SECTION), monkeypatch)
    told = "the silo enrolled by rule 1 for categories"
    with refused("silo.records", "csv", told) as caught:
        Silo.open(configure(SECTION))
    assert "\n" not in str(caught.value)
    assert "fedsim silo --config silo.yaml --enrol" in str(caught.value)
    with refused("silo.records", "csv", told):
        tried_out(configure(SECTION), {})
    assert read(tmp_path / "state" / "ledger.sqlite").runs == {}
    anew = configure(SECTION, state="anew")
    enrol(anew)
    Silo.open(anew).close()
    (tmp_path / "t.csv").write_text(TABLE.replace("63", "64"))
    with refused("silo.records", "csv", "the records have changed"):
        Silo.open(anew)


@pytest.mark.parametrize("options", [{"intercept": False}, {"schema": {**SCHEMA, "sex": SCHEMA["age"]}}])
def test_a_silo_whose_features_no_rule_has_changed_goes_on(configure, tmp_path, monkeypatch, options):
    (tmp_path / "t.csv").write_text(TABLE.replace(",f,", ",1,").replace(",m,", ",2,"))
    if "schema" not in options:
        (tmp_path / "t.csv").write_text(TABLE)
    section = {**SECTION, **options}
    enrolled_before(configure(section), monkeypatch)
    Silo.open(configure(section)).close()
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text().replace("63", "64"))
    with refused("silo.records", "csv", "the records have changed"):
        Silo.open(configure(section))


IMAGES = {"name": "npz", "path": "t.npz", "scaling": "declared", "transform": {"dct": 9, "crop": 6}}


def test_a_silo_transforms_its_images_as_a_simulated_one(configure, tmp_path):
    digits = Digits(task="parity", transform=IMAGES["transform"], test_fraction=1e-9)
    source = digits.open()
    ranges = np.stack([source.ranges.lower, source.ranges.upper])
    np.savez(tmp_path / "t.npz", features=source.features, target=source.other("parity"), ranges=ranges)
    own = read_records(configure({**IMAGES, "classes": 2}))
    silo = load(digits, IidPartition(num_partitions=1), 0, 0).silos[0]
    assert np.array_equal(own.rows.features, silo.train.features)
    assert own.num_features == 10


def test_a_transform_that_does_not_fit_is_named_by_the_silos_field(configure, tmp_path):
    np.savez(
        tmp_path / "t.npz", features=np.ones((4, 25)), target=np.arange(4) % 2, ranges=[[0] * 25, [9] * 25]
    )
    with refused("silo.records.transform.crop", 6, "at most 5"):
        enrol(configure({**IMAGES, "classes": 2}))
    (tmp_path / "t.csv").write_text(TABLE)
    with refused("silo.records.transform", {"dct": 2}, "is for images"):
        enrol(configure({**SECTION, "transform": {"dct": 2}}))
    assert not (tmp_path / "state").exists()


def test_a_value_outside_the_schema_is_named_by_the_silos_field(configure, tmp_path):
    (tmp_path / "t.csv").write_text(TABLE.replace("63,m", "63,x"))
    with refused("silo.records.schema.sex"):
        enrol(configure(SECTION))
    assert not (tmp_path / "state").exists()


def test_records_of_several_silos_are_refused(configure, tmp_path):
    (tmp_path / "t.csv").write_text(TABLE.replace("41,f,1", "41,f,2"))
    with refused("silo.records.path", ANY, "this silo's records alone"):
        enrol(configure({**SECTION, "silo_column": "ward"}))


def test_a_silo_reads_its_table_as_it_comes(configure, tmp_path):
    """With the options and the errors that a simulation has."""
    (tmp_path / "t.csv").write_text(TABLE)
    expected = read_records(configure(SECTION)).rows.features
    odd = TABLE.replace(",", ";").replace("63;", "63,0;").replace("ward", "Köln").replace("57;", "k. A.;")
    (tmp_path / "t.csv").write_bytes(odd.encode("latin-1"))
    filled = {**SCHEMA, "age": {**SCHEMA["age"], "fill": 57}}
    options = {"encoding": "latin-1", "decimal": ",", "missing": ["k. A."], "schema": filled}
    assert np.array_equal(read_records(configure({**SECTION, **options})).rows.features, expected)
    with refused("silo.records.path", ANY, "line 1 is not utf-8 text", "`encoding"):
        read_records(configure(SECTION))


def test_a_silo_may_name_its_file_by_its_own_name_and_no_other_silos(configure, tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "u.csv").write_text(TABLE)
    assert read_records(configure({**SECTION, "path": {"silo-1": "t.csv"}})).rows.n == 3
    with refused("silo.records.path", ANY, "this silo's records alone"):
        read_records(configure({**SECTION, "path": {"silo-1": "t.csv", "silo-2": "u.csv"}}))


def test_a_record_that_names_no_silo_is_refused(configure, tmp_path):
    (tmp_path / "t.csv").write_text(TABLE.replace("41,f,1", "41,f,NA"))
    with refused("silo.records.silo_column", "ward", "1 of 3 records have no value"):
        read_records(configure({**SECTION, "silo_column": "ward"}))


def test_a_missing_file_is_named(configure):
    with refused("silo.records.path", ANY, "no such file"):
        enrol(configure({"name": "npz", "path": "nothing.npz"}))
