"""A silo's kit holds what its operator needs, and is made for no silo that has one or is not known."""

import pytest
import yaml
from support.refusals import refused

from fedsim.common import files
from fedsim.deployment import certs
from fedsim.deployment.federation_edit import add
from fedsim.deployment.kit import write_kit
from silos.front.config import load_config
from silos.front.preflight import of_daemon

FEDERATION = """superlink: fl.example.org:8000
root_certificates: keys/server/ca.crt
test:
  name: csv
  path: test.csv
  target: readmitted
  schema: schema.yaml
"""
SCHEMA = "{age: {kind: number, lower: 0, upper: 110}, readmitted: {kind: category, categories: [a, b]}}"
DECIDED = "{lifetime: {epsilon: 8.0, delta: 1.0e-5, expires: 2999-12-31}}"


@pytest.fixture
def place(tmp_path):
    certs.make(tmp_path / "keys", ["north", "south"])
    (tmp_path / "federation.yaml").write_text(FEDERATION)
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    (tmp_path / "identity.pub").write_text("ab" * 32)
    return tmp_path


def test_a_kit_is_a_silo_once_its_operator_has_decided(place):
    kit, keys = place / "kit", place / "keys" / "north"
    before = {name: (keys / name).read_bytes() for name in ("ca.crt", "node.key", "node.pub")}
    write_kit("north", place / "federation.yaml", place / "kit")
    assert {file.name: file.read_bytes() for file in (kit / "node").iterdir()} == before
    assert (kit / "node" / "node.key").stat().st_mode & 0o777 == 0o600
    assert "fl.example.org:8000" in (kit / "fedsim-node.service").read_text()
    assert "$" not in "".join(file.read_text() for file in kit.glob("*.*"))
    (draft, *others) = of_daemon(kit / "silo.yaml")
    assert (draft.good, others) == (False, [])
    text = (kit / "silo.yaml").read_text().replace("<records.csv>", "patients.csv")
    (kit / "silo.yaml").write_text(text[: text.index("policy:")] + f"policy: {DECIDED}")
    config = load_config(kit / "silo.yaml")
    assert (config.name, config.records.files["path"]) == ("north", kit / "patients.csv")
    assert yaml.safe_load(config.records.files["schema"].read_text()) == yaml.safe_load(SCHEMA)


def test_a_nodes_key_is_in_its_kit_alone(place, monkeypatch):
    """In both places where the kit was not written whole, and in none but the kit where it was."""
    file, own = place / "federation.yaml", place / "keys" / "north"

    def full(folder):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken, refused("--out", str(place / "kit"), "No space left"):
        broken.setattr(files, "to_disk", full)
        write_kit("north", file, place / "kit")
    assert (own / "node.key").is_file()
    write_kit("north", file, place / "kit")
    assert sorted(each.name for each in own.iterdir()) == ["ca.crt", "node.pub"]
    certs.make(place / "keys", ["north"])
    assert not (own / "node.key").exists()
    with refused("SILO", "north", "rekey"):
        write_kit("north", file, place / "second")
    assert not (place / "second").exists()


def test_a_name_that_looks_like_a_number_stays_a_name(place):
    certs.make(place / "keys", ["2024"])
    write_kit("2024", place / "federation.yaml", place / "kit")
    assert 'name: "2024"\n' in (place / "kit" / "silo.yaml").read_text()


def test_no_kit_is_made_twice_or_for_a_stranger(place):
    file = place / "federation.yaml"
    certs.make(place / "keys", ["North-East"])
    for stranger, why in (
        ("nord", "no silo that the federation knows"),
        ("authority", "none of authority"),
        ("North East", "its folder North-East is that of 'North-East'"),
    ):
        with refused("SILO", stranger, why):
            write_kit(stranger, file, place / "kit")
    add(file, "north", place / "identity.pub", place / "keys" / "north" / "node.pub")
    with refused("SILO", "north", "is enrolled already"):
        write_kit("north", file, place / "kit")
    assert not (place / "kit").exists()
    file.write_text("root_certificates: keys/server/ca.crt\n")
    with refused("federation.superlink", None, "host:port"):
        write_kit("south", file, place / "kit")
