"""federation.yaml: every error names the field and the value."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.refusals import ANY, refused
from support.scenarios import changed

from fedsim.common.errors import InputError
from fedsim.deployment.federation_file import load_federation


@pytest.fixture
def tree(tmp_path):
    for name in ("a", "b"):
        key = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        (tmp_path / f"{name}.pub").write_text(f"{key.hex()}\n")
    (tmp_path / "token").write_text("7f" * 32 + "\n")
    (tmp_path / "token").chmod(0o600)
    return {
        "silos": {
            "a": {"identity": "a.pub", "socket": "a/silo.sock"},
            "b": {"identity": "b.pub", "node": "b/node.pub", "port": 7000, "token": "token"},
        }
    }


def written(folder: Path, tree: Any) -> Path:
    (folder / "federation.yaml").write_text(yaml.safe_dump(tree))
    return folder / "federation.yaml"


def test_a_whole_file_is_read(tmp_path, tree):
    more = {"deadline": 5, "min_silos": 1, "test": "test.npz", "heads": "h.json"}
    more |= {"superlink": "127.0.0.1:8000"}
    made = load_federation(written(tmp_path, {**tree, **more}))
    assert made.addresses == {"a": tmp_path / "a" / "silo.sock", "b": (7000, bytes([0x7F]) * 32)}
    keys = {name: bytes.fromhex((tmp_path / f"{name}.pub").read_text()) for name in "ab"}
    assert made.identities == keys
    assert made.silos["b"].node == tmp_path / "b" / "node.pub"
    assert made.heads == tmp_path / "h.json"
    assert made.test is not None
    assert (made.test.name, made.test.intercept) == ("npz", False)
    assert made.test.files["path"] == tmp_path / "test.npz"
    assert (made.deadline, made.min_silos, made.superlink) == (5, 1, "127.0.0.1:8000")


def test_public_test_records_may_be_a_data_section(tmp_path, tree):
    section = {"name": "npz", "path": "test.npz", "scaling": "none"}
    made = load_federation(written(tmp_path, {**tree, "test": section}))
    assert made.test is not None
    assert (made.test.files["path"], made.test.intercept) == (tmp_path / "test.npz", True)


WRONG = {
    "{silos: {}}": "federation.silos | at least one silo",
    "{silos.a.identiti: a.pub}": "federation.silos.a.identiti | did you mean 'identity'",
    "{deadline: 0}": "federation.deadline | greater than 0",
    "{deadline: true}": "federation.deadline | must be a number",
    "{deadline: .inf}": "federation.deadline | finite",
    "{min_silos: 0}": "federation.min_silos | greater than or equal to 1",
    "{silos.a.port: 7000}": "federation.silos.a.port | there is a socket already",
    "{silos.b.token: null}": "federation.silos.b.token | go together",
    "{test: {name: npz, path: t.npz, scaling: training_statistics}}": (
        "federation.test.scaling | is fitted on records without noise"
    ),
    "{test: {name: npz, path: t.npz, scaling: none, pca: 2}}": (
        "federation.test.pca | is fitted on records without noise"
    ),
    "{test: {name: mnist, draw: published}}": "federation.test.name | takes all silos' records together",
    "{test: {name: npy, path: t}}": "federation.test.name | did you mean 'npz'",
}


@pytest.mark.parametrize("changes", WRONG)
def test_what_is_wrong_is_named(tmp_path, tree, changes):
    field, _, expected = WRONG[changes].partition(" | ")
    with refused(field, ANY, expected):
        load_federation(written(tmp_path, changed(tree, yaml.safe_load(changes))))


def test_fewer_silos_than_a_run_needs_are_named_when_it_begins(tmp_path, tree):
    made = load_federation(written(tmp_path, {**tree, "min_silos": 3}))
    with refused("federation.min_silos", 3, "at most 2"):
        made.check_enough()
    load_federation(written(tmp_path, {**tree, "min_silos": 2})).check_enough()


@pytest.mark.parametrize("name", ["../a", ".a", "a/b", "a b ", "", "a" * 101])
def test_a_silos_name_is_a_files_name(tmp_path, tree, name):
    tree["silos"][name] = tree["silos"].pop("a")
    with refused(f"federation.silos.{name}", name):
        load_federation(written(tmp_path, tree))


@pytest.mark.parametrize("text", ["", "zz" * 32, "ab" * 31, "\xff"])
def test_what_is_no_key_is_named(tmp_path, tree, text):
    (tmp_path / "a.pub").write_text(text, encoding="latin-1")
    with refused("federation.silos.a.identity"):
        _ = load_federation(written(tmp_path, tree)).identities


def test_two_silos_have_two_identities(tmp_path, tree):
    (tmp_path / "b.pub").write_text((tmp_path / "a.pub").read_text())
    with refused("federation.silos.b.identity", ANY, "another silo's"):
        _ = load_federation(written(tmp_path, tree)).identities


def test_a_silo_without_an_address_is_named(tmp_path, tree):
    del tree["silos"]["a"]["socket"]
    with refused("federation.silos.a.socket"):
        _ = load_federation(written(tmp_path, tree)).addresses


def test_a_file_that_is_none_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_federation(tmp_path / "federation.yaml")
    with pytest.raises(InputError, match="must hold a mapping"):
        load_federation(written(tmp_path, [1]))
