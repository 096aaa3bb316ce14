"""federation.yaml by command: other lines stay, and nothing is written where the result would be wrong."""

import secrets
from pathlib import Path
from typing import ClassVar, Self

import pytest
import yaml
from support.deployed import SCENARIO
from support.refusals import refused
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.errors import InputError
from fedsim.deployment import certs
from fedsim.deployment.federation_edit import add, rekey, remove
from fedsim.deployment.federation_file import load_federation
from fedsim.deployment.flower import control
from fedsim.deployment.kit import write_kit
from fedsim.deployment.node_keys import node_key, node_keys
from fedsim.deployment.roster_file import write_roster
from fedsim.secagg.roster import load_roster

COMMENTED = """# of the study
silos:
  # the first
  north: {identity: north.pub, node: keys/north/node.pub}
  south:
    identity: south.pub
    node: keys/south/node.pub  # by courier
deadline: 30   # seconds
"""
NAMES = ("north", "south", "west", "east")


@pytest.fixture
def place(tmp_path):
    certs.make(tmp_path / "keys", NAMES)
    for name in NAMES:
        (tmp_path / f"{name}.pub").write_text(secrets.token_hex(32))
    (tmp_path / "federation.yaml").write_text(COMMENTED)
    return tmp_path


def node(place: Path, name: str) -> Path:
    return place / "keys" / name / "node.pub"


def test_a_silo_is_added_rekeyed_and_removed_and_other_lines_stay(place):
    file = place / "federation.yaml"
    add(file, "west", place / "west.pub", node(place, "west"))
    line = "  west: {identity: west.pub, node: keys/west/node.pub}\n"
    assert file.read_text() == COMMENTED.replace("deadline", line + "deadline")
    with rekey(file, "south", node(place, "east")) as old:
        assert "# by courier" in file.read_text()
    assert old == node_key(node(place, "south"))
    known = load_federation(file)
    assert node_keys(known)["south"] == node_key(node(place, "east"))
    assert "# by courier" not in file.read_text()
    for name, key in (("south", "east"), ("west", "west")):
        with remove(file, name) as old:
            assert old == node_key(node(place, key))
    kept = COMMENTED.splitlines(True)
    assert file.read_text() == "".join(kept[:4] + kept[7:])


@pytest.mark.parametrize(
    ("before", "entry"),
    [
        *(("", name) for name in ("silos:\n", "silos:", "silos: # ours\n", "deadline: 30")),
        ("silos: # ours\n", "deadline: 30\n"),
    ],
)
def test_the_first_silo_makes_the_section(place, before, entry):
    file = place / "elsewhere.yaml"
    file.write_text(before + entry)
    add(file, "north", place / "north.pub", node(place, "north"))
    assert list(load_federation(file).silos) == ["north"]
    assert file.read_text().startswith(before)
    assert entry.strip() in file.read_text()


def test_the_first_silo_makes_the_file(place):
    """Names of any length, also one that looks like a number, are kept as they are."""
    file, names = place / "elsewhere.yaml", ["2024", "a clinic of " * 8 + "x"]
    add(file, names[0], place / "north.pub", node(place, "north"))
    add(file, names[1], place / "south.pub", node(place, "south"))
    assert list(load_federation(file).silos) == names


def test_the_silos_that_a_run_needs_are_counted_when_it_begins(place):
    """As a page has the file: `min_silos` stands in it before the first silo does."""
    file = place / "elsewhere.yaml"
    file.write_text("min_silos: 2  # of a run\nroot_certificates: keys/server/ca.crt\nsuperlink: a:1\n")
    write_kit("north", file, place / "kit")
    for name in ("north", "south"):
        add(file, name, place / f"{name}.pub", node(place, name))
        assert CliRunner().invoke(app, ["federation", "list", str(file)]).exit_code == 0
    with remove(file, "south"):
        pass
    with rekey(file, "north", node(place, "east")):
        pass
    scenario = place / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(SCENARIO))
    given = ["deploy", str(scenario), "--federation", str(file), "--out", str(place / "run")]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 2
    assert "federation.min_silos: 2: at most 1" in shown.output


class Link:
    """In place of a line to a SuperLink."""

    forgotten: ClassVar[list[bytes]] = []

    def __init__(self, address: str, *_: object) -> None:
        self.away = address == "away:1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def unregister(self, key: bytes) -> bool:
        if self.away:
            raise InputError("superlink", "away:1", "a SuperLink that answers")
        self.forgotten.append(key)
        return True


@pytest.mark.parametrize("command", ["rekey", "remove"])
def test_the_file_keeps_the_old_node_until_the_superlink_has_forgotten_it(place, command, monkeypatch):
    monkeypatch.setattr(control, "Control", Link)
    monkeypatch.setattr(Link, "forgotten", [])
    file, begun = place / "federation.yaml", f"{COMMENTED}root_certificates: keys/server/ca.crt\n"
    file.write_text(begun)
    options = ["--node", str(node(place, "east"))] if command == "rekey" else []
    given = ["federation", command, str(file), "south", *options]
    assert CliRunner().invoke(app, [*given, "--superlink", "away:1"]).exit_code == 2
    assert file.read_text() == begun
    assert "lets the old node in" in CliRunner().invoke(app, given).output
    file.write_text(begun)
    assert "has forgotten" in CliRunner().invoke(app, [*given, "--superlink", "there:1"]).output
    assert CliRunner().invoke(app, [*given, "--superlink", "there:1"]).exit_code == 2
    assert Link.forgotten == [node_key(node(place, "south"))]


def test_what_would_be_wrong_is_not_written(place):
    file = place / "federation.yaml"
    with refused("NAME", "north", "is in the federation already"):
        add(file, "north", place / "west.pub", node(place, "west"))
    with refused("federation.silos.west.identity", str(place / "north.pub"), "another silo's identity"):
        add(file, "west", place / "north.pub", node(place, "west"))
    with refused("federation.silos.west.node", str(node(place, "north")), "is another silo's node too"):
        add(file, "west", place / "west.pub", node(place, "north"))
    with refused("federation.silos.west.identity", str(place / "nobody.pub"), "cannot be read"):
        add(file, "west", place / "nobody.pub", node(place, "west"))
    with refused("NAME", "nort", "did you mean 'north'?"):
        remove(file, "nort").__enter__()
    file.write_text("silos: {north: {identity: north.pub, node: keys/north/node.pub}}\n")
    with refused("federation.silos", str(file), "a line of its own for each silo"):
        add(file, "west", place / "west.pub", node(place, "west"))
    file.write_text("silos: null\n")
    with refused("federation.silos", str(file), "a line of its own for each silo"):
        add(file, "west", place / "west.pub", node(place, "west"))


def test_the_list_has_every_identity(place):
    shown = CliRunner().invoke(app, ["federation", "list", str(place / "federation.yaml")])
    assert shown.exit_code == 0
    for name in ("north", "south"):
        assert (place / f"{name}.pub").read_text() in shown.output


def test_a_roster_is_made_of_the_federations_keys(place):
    file, shuffler = place / "federation.yaml", place / "shuffler"
    shuffler.mkdir()
    for name in ("envelopes", "identity"):
        (shuffler / f"{name}.pub").write_text(secrets.token_hex(32))
    file.write_text(f"{COMMENTED}root_certificates: keys/server/ca.crt\n")
    given = ["federation", "roster", file, "--shuffler", shuffler, "--socket", place / "run" / "s", "--out"]
    terms = ["--name", "study", "--min-silos", 2, "--honest-fraction", 0.5]
    out, command = place / "roster.yaml", [*map(str, [*given, place / "roster.yaml", *terms])]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    made = load_roster(out)
    assert made.digest in shown.output
    assert made.silos["north"] == (place / "north.pub").read_text()
    named = load_federation(file).shuffler
    assert named is not None
    assert (named.roster, named.socket) == (out, place / "run" / "s")
    assert named.key.read_bytes()
    assert "# of the study" in file.read_text()
    assert CliRunner().invoke(app, command).exit_code == 2
    with refused("roster.min_silos", 3, "at most 2"):
        terms = {"federation": "study", "min_silos": 3, "honest_fraction": 0.5}
        file.write_text(f"{COMMENTED}root_certificates: keys/server/ca.crt\n")
        write_roster(file, shuffler, place / "s", place / "other.yaml", terms)
    assert not (place / "other.yaml").exists()
