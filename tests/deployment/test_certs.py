"""Certificates and keys: TLS holds with them and fails without, and nothing is overwritten."""

import os
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from support.refusals import ANY, refused
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.errors import InputError
from fedsim.deployment import certs
from fedsim.deployment.node_keys import node_key, normal
from silos.shim.fleet import trust


@pytest.fixture
def credentials(tmp_path):
    certs.make(tmp_path, ["silo-1", "silo-2"], ["superlink.example.org", "192.0.2.7"])
    return tmp_path


def handshake(server: Path, roots: Path, host: str) -> str:
    """The TLS version of a connection to `host` that `server`'s certificate answers."""
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server / "server.crt", server / "server.key")

    def answer() -> None:
        try:
            with context.wrap_socket(theirs, server_side=True) as answered:
                answered.recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with trust(roots.read_text()).wrap_socket(ours, server_hostname=host) as asked:
            return asked.version() or ""
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("host", ["superlink.example.org", "192.0.2.7", "localhost", "127.0.0.1", "::1"])
def test_a_silo_knows_the_server_by_its_name(credentials, host):
    assert handshake(credentials / "server", credentials / "silo-1" / "ca.crt", host) == "TLSv1.3"


def test_another_host_is_not_the_server(credentials):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(credentials / "server", credentials / "silo-1" / "ca.crt", "superlink.example.com")


def test_a_common_name_is_no_host_name(credentials, monkeypatch):
    """Of a certificate without subjectAltName, OpenSSL compares the common name unless it is told not to."""
    real = x509.CertificateBuilder.add_extension
    for name in ("server.crt", "server.key"):
        (credentials / "server" / name).unlink()

    def without(self: x509.CertificateBuilder, extension: x509.ExtensionType, critical: bool) -> object:
        alternative = isinstance(extension, x509.SubjectAlternativeName)
        return self if alternative else real(self, extension, critical)

    common = x509.NameAttribute(NameOID.COMMON_NAME, "localhost")
    monkeypatch.setattr(x509.CertificateBuilder, "add_extension", without)
    monkeypatch.setattr(certs.x509, "NameAttribute", lambda *_: common)
    certs.make(credentials, ["silo-1"])
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(credentials / "server", credentials / "silo-1" / "ca.crt", "localhost")


def test_another_authority_does_not_vouch_for_it(credentials, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    certs.make(other, ["silo-1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(other / "server", credentials / "silo-1" / "ca.crt", "localhost")


def test_what_certificates_are_for_and_until_when(credentials):
    authority = x509.load_pem_x509_certificate((credentials / "authority" / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((credentials / "server" / "server.crt").read_bytes())
    basic, usage = x509.BasicConstraints, x509.KeyUsage
    assert authority.extensions.get_extension_for_class(basic).value == basic(ca=True, path_length=0)
    assert authority.extensions.get_extension_for_class(usage).value.key_cert_sign
    assert not server.extensions.get_extension_for_class(basic).value.ca
    assert not server.extensions.get_extension_for_class(usage).value.key_cert_sign
    purposes = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    server.verify_directly_issued_by(authority)
    left = server.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=396) < left <= timedelta(days=397)
    assert authority.not_valid_after_utc > server.not_valid_after_utc


def test_an_expired_certificate_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(certs, "_SKEW", timedelta(days=3))
    certs.make(tmp_path, ["silo-1"], days=-1)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(tmp_path / "server", tmp_path / "silo-1" / "ca.crt", "localhost")


def test_node_keys_are_what_flower_reads(credentials):
    private = load_ssh_private_key((credentials / "silo-1" / "node.key").read_bytes(), None)
    assert isinstance(private, EllipticCurvePrivateKey)
    assert isinstance(private.curve, SECP384R1)
    public = node_key(credentials / "server" / "nodes" / "silo-1.pub")
    assert public == node_key(credentials / "silo-1" / "node.pub") == normal(public)
    assert public != node_key(credentials / "silo-2" / "node.pub")
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    assert public_key_to_bytes(private.public_key()) == public


def test_secrets_are_their_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        certs.make(tmp_path, ["silo-1"])
    finally:
        os.umask(before)
    modes = {
        str(file.relative_to(tmp_path)): stat.S_IMODE(file.stat().st_mode)
        for file in tmp_path.rglob("*")
        if file.is_file()
    }
    secret = {name for name in modes if name.endswith((".key", ".secret"))}
    assert len(secret) == 5
    assert all(modes[name] & 0o077 == 0 for name in secret)
    assert all(modes[name] == 0o444 for name in set(modes) - secret)


def test_again_adds_what_is_missing_and_keeps_the_rest(credentials):
    before = {file: file.read_bytes() for file in credentials.rglob("*") if file.is_file()}
    made = certs.make(credentials, ["silo-1", "silo-3"])
    assert {file.name for file in made} == {
        "ca.crt",
        "node.key",
        "node.pub",
        "silo-3.pub",
    }
    assert all(file.read_bytes() == content for file, content in before.items())
    assert handshake(credentials / "server", credentials / "silo-3" / "ca.crt", "superlink.example.org")


def test_a_certificate_for_other_hosts_is_not_passed_off(credentials):
    with refused("--host", "new.example.org"):
        certs.make(credentials, ["silo-1"], ["new.example.org"])


def test_half_a_pair_is_an_error(credentials):
    (credentials / "silo-1" / "node.pub").unlink()
    with refused(str(credentials / "silo-1" / "node.key"), ANY, "alone"):
        certs.make(credentials, ["silo-1"])


def test_no_second_key_is_made_of_a_silo_that_has_its_own(credentials):
    """Its node.key has gone into a kit, or never was here."""
    line, own = (credentials / "silo-1" / "node.pub").read_bytes(), credentials / "silo-1"
    (own / "node.key").unlink()
    assert certs.make(credentials, ["silo-1"]) == []
    assert not (own / "node.key").exists()
    assert (own / "node.pub").read_bytes() == line


@pytest.mark.parametrize("name", ["server", "authority", "run", "README", "../silo", "a/b", "", "."])
def test_names_that_cannot_be_folders(tmp_path, name):
    with refused("--silo"):
        certs.make(tmp_path / "new", [name])
    assert not (tmp_path / "new").exists()


def test_a_name_does_not_get_the_key_of_another_that_is_called_almost_so(tmp_path):
    certs.make(tmp_path, ["North-East"])
    with refused("--silo", "North East", "its folder North-East is that of 'North-East'"):
        certs.make(tmp_path, ["North East", "new"])
    assert not (tmp_path / "new").exists()
    key, _, _ = (tmp_path / "North-East" / "node.pub").read_text().partition(" North-East")
    (tmp_path / "North-East" / "node.pub").chmod(0o600)
    (tmp_path / "North-East" / "node.pub").write_text(f"{key} user@host\n")  # made there
    assert certs.make(tmp_path, ["North-East"]) == []


@pytest.mark.parametrize("host", ["host:8000", "https://host", "", "-a", "a..b"])
def test_hosts_that_are_none(tmp_path, host):
    with refused("--host"):
        certs.make(tmp_path / "new", ["silo-1"], [host])


def test_the_command_says_who_gets_what(tmp_path):
    arguments = [
        "certs",
        str(tmp_path / "credentials"),
        "--silo",
        "silo-1",
        "--host",
        "superlink.example.org",
    ]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "silo-1/node.key  secret" in shown.output
    assert "server/nodes/silo-1.pub\n" in shown.output
    assert "NAME/        silo NAME" in (tmp_path / "credentials" / "README").read_text()
    assert "nothing was changed" in CliRunner().invoke(app, arguments).output


def test_what_was_cut_short_is_made_again(tmp_path, monkeypatch):
    def full(*given: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fchmod", full)
        with pytest.raises(OSError, match="disk full"):
            certs.make(tmp_path, ["silo-1"])
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
    certs.make(tmp_path, ["silo-1"])
    assert len((tmp_path / "server" / "superexec.secret").read_bytes()) == 32


def test_the_servers_certificate_is_renewed_in_place(tmp_path):
    certs.make(tmp_path, ["north"], ["fl.example.org"], days=3)
    server = tmp_path / "server"
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with refused("--host", "fl2.example.org", "--renew makes one that is"):
        certs.make(tmp_path, [], ["fl2.example.org"])
    certs.make(tmp_path, [], ["fl2.example.org"], days=90, renew=True)
    assert [file.name for file, data in before.items() if file.read_bytes() != data] == ["server.crt"]
    made = x509.load_pem_x509_certificate((server / "server.crt").read_bytes())
    assert made.not_valid_after_utc > datetime.now(UTC) + timedelta(days=89)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"fl.example.org", "fl2.example.org"} <= set(names.get_values_for_type(x509.DNSName))
    (tmp_path / "authority" / "ca.key").unlink()
    with refused("--renew", ANY, "bring it back"):
        certs.make(tmp_path, [], renew=True)


@pytest.mark.parametrize(
    ("days", "said"), [(31, None), (30, "in 29 days (see fedsim certs --renew)"), (1, "in 0 days")]
)
def test_a_certificate_in_its_last_days_is_said(tmp_path, days, said):
    certs.make(tmp_path, ["north"], days=days)
    lines = certs.notices(tmp_path / "server" / "ca.crt")
    assert len(lines) == (said is not None)
    assert all("Certificate server.crt ends on 2" in line and said in line for line in lines)


def test_one_that_has_ended_and_one_that_is_none(tmp_path, monkeypatch):
    certs.make(tmp_path, ["north"], days=1)
    server, later = tmp_path / "server", datetime.now(UTC) + timedelta(days=3)
    monkeypatch.setattr("fedsim.common.notices.datetime", SimpleNamespace(now=lambda zone: later))
    assert "has ended on" in certs.notices(server / "ca.crt")[0]
    (server / "server.crt").chmod(0o600)
    (server / "server.crt").write_text("none")
    with pytest.raises(InputError, match="one in PEM"):
        certs.notices(server / "ca.crt")
