"""Credentials of a deployment's parties: an authority, the server's certificate, a key for every node.

A folder for each party, to be handed over whole:

    authority/  ca.key                                  the operator of `fedsim certs`; offline
    server/     ca.crt server.crt server.key            the server: TLS
                envelopes.key envelopes.pub             the server: what silos seal to, with a shuffler
                superexec.secret                        the server: between its own processes
                nodes/NAME.pub                          the server: the nodes that it lets in
    NAME/       ca.crt node.key node.pub                silo NAME

What is there already is kept, so that running it again adds what is missing. A node's key says who brings a
silo's frames; that they are the silo's own words is said by its daemon's identity key, which is made there.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.common.files import files_below
from fedsim.common.notices import ending
from fedsim.secagg.envelopes import KEY_FILE, PUBLIC_FILE, EnvelopeKey

AUTHORITY_DAYS, DAYS = 3650, 397
SECRET, SHARED = 0o600, 0o444
LOCAL = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"(?=.{1,64}$)[A-Za-z0-9]([A-Za-z0-9 .,&'()+_-]*[A-Za-z0-9._)-])?")
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_TAKEN = ("authority", "server", "shuffler", "run", "README")
_A_FOLDER = f"at most 64 letters, digits, spaces and .,&'()+_-, and none of {', '.join(_TAKEN)}"
_SKEW = timedelta(hours=1)  # clocks that are behind accept a certificate that was made just now

Key = ec.EllipticCurvePrivateKey


def make(
    directory: Path, silos: Sequence[str], hosts: Sequence[str] = (), days: int = DAYS, renew: bool = False
) -> list[Path]:
    """Make what is missing of a deployment's keys and certificates; the files that were made.

    Args:
        hosts: names and addresses under which silos reach the server, besides this machine's own.
        days: how long the server's certificate is valid; the authority's is for ten years.
        renew: replace the server's certificate by one of the same key for `days` from now, for the hosts of
            the old one and `hosts`.

    Raises:
        InputError: a name or host that cannot be one, half a pair of files, a server's certificate that is
            there and lacks one of `hosts`, or nothing to sign with.
    """
    check_names(silos, "--silo", directory)
    for host in hosts:
        if _address(host) is None and not _HOST.fullmatch(host):
            raise InputError("--host", host, "a host name or an IP address, without a port")
    if renew and not (directory / "authority" / "ca.key").exists():
        hint = "is needed to sign the new certificate: bring it back for this command"
        raise InputError("--renew", str(directory / "authority" / "ca.key"), hint)
    before = set(files_below(directory))
    authority, certificate = _authority(directory)
    shared = _pem(certificate)
    _server(directory / "server", authority, certificate, hosts, days, renew)
    _write(directory / "server" / "ca.crt", shared, SHARED)
    if not (directory / "server" / KEY_FILE).exists():
        EnvelopeKey.create(directory / "server")
        (directory / "server" / PUBLIC_FILE).chmod(SHARED)
    for name in silos:
        folder = directory / folder_of(name)
        _write(folder / "ca.crt", shared, SHARED)
        _write(directory / "server" / "nodes" / f"{folder.name}.pub", _node_key(folder, name), SHARED)
    _write(directory / "README", _README.encode(), SHARED)
    return [file for file in files_below(directory) if file not in before]


def notices(authority: Path) -> list[str]:
    """Lines on the authority's and the server's certificate, in their last days; InputError if unreadable."""
    lines = []
    for file in (authority, authority.with_name("server.crt")):
        try:
            end = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise InputError("certificate", str(file), f"one in PEM ({type(error).__name__})") from None
        lines += [f"{line} (see fedsim certs --renew)" for line in ending(f"Certificate {file.name}", end)]
    return lines


def folder_of(name: str) -> str:
    """What a silo's folder is called.

    >>> folder_of("VA Long Beach")
    'VA-Long-Beach'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def check_names(silos: Sequence[str], field: str, directory: Path | None = None) -> None:
    """InputError on the field unless every silo can have a folder of its own, in `directory` if given."""
    others = {} if directory is None else _owners(directory)
    for name in silos:
        if _NAME.fullmatch(name) is None or folder_of(name) in _TAKEN:
            raise InputError(field, name, _A_FOLDER)
        other = others.setdefault(folder_of(name), name)
        if other != name:
            raise InputError(field, name, f"another name: its folder {folder_of(name)} is that of {other!r}")


def _owners(directory: Path) -> dict[str, str]:
    """By folder the silo whose key is there, as `_node_key` has written; a key of other make has no owner."""
    lines = {file.parent.name: file.read_text(errors="replace") for file in directory.glob("*/node.pub")}
    said = {folder: "".join(line.strip().split(" ", 2)[2:]) for folder, line in lines.items()}
    return {folder: name for folder, name in said.items() if folder_of(name) == folder}


def _authority(directory: Path) -> tuple[Key, x509.Certificate]:
    """The pair that signs; its certificate is the `ca.crt` of every folder."""
    key_file, certificate_file = directory / "authority" / "ca.key", directory / "authority" / "ca.crt"
    if _pair(key_file, certificate_file):
        return _read_key(key_file), x509.load_pem_x509_certificate(certificate_file.read_bytes())
    key = ec.generate_private_key(ec.SECP384R1())
    made = _blank("fedsim deployment authority", None, key, AUTHORITY_DAYS).sign(key, hashes.SHA256())
    _write(key_file, _private_pem(key), SECRET)
    _write(certificate_file, _pem(made), SHARED)
    return key, made


def _server(
    folder: Path, authority: Key, issuer: x509.Certificate, hosts: Sequence[str], days: int, renew: bool
) -> None:
    key_file, certificate_file = folder / "server.key", folder / "server.crt"
    _write(folder / "superexec.secret", secrets.token_bytes(32), 0o400)
    names = [_name(host) for host in (*LOCAL, *hosts)]
    if _pair(key_file, certificate_file):
        if not renew:
            for host in hosts:
                if not covers(certificate_file, host):
                    hint = f"{certificate_file} is not for it; --renew makes one that is"
                    raise InputError("--host", host, hint)
            return
        key = _read_key(key_file)
        names = [*_covered(certificate_file), *names]
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        _write(key_file, _private_pem(key), SECRET)
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    made = (
        _blank("fedsim server", issuer.subject, key, days)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(dict.fromkeys(names)), critical=False)
        .add_extension(authority_id, critical=False)
        .sign(authority, hashes.SHA256())
    )
    _write(certificate_file, _pem(made), SHARED, replace=True)


def _blank(subject: str, issuer: x509.Name | None, key: Key, days: int) -> x509.CertificateBuilder:
    """A certificate to be signed; without an issuer that of an authority, which is its own."""
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]), datetime.now(UTC)
    signs = issuer is None
    others = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
    unused = dict.fromkeys(others.split(), False)
    usage = x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **unused)
    return (
        x509.CertificateBuilder(issuer or name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
    )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _name(host: str) -> x509.GeneralName:
    address = _address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


def _covered(file: Path) -> list[x509.GeneralName]:
    """The hosts that a certificate is for."""
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def covers(file: Path, host: str) -> bool:
    """Whether a certificate is for a host's name or address."""
    return _name(host) in _covered(file)


def _node_key(folder: Path, name: str) -> bytes:
    """The node's P-384 key in OpenSSH's format, as Flower reads it; its public line, which alone stays where
    the key is the silo's.
    """
    private_file, public_file = folder / "node.key", folder / "node.pub"
    if private_file.exists():
        _pair(private_file, public_file)
    if not public_file.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        line = key.public_key().public_bytes(*ssh)
        _write(private_file, _private_pem(key, serialization.PrivateFormat.OpenSSH), SECRET)
        _write(public_file, line + f" {name}\n".encode(), SHARED)
    return public_file.read_bytes()


def _private_pem(key: Key, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _read_key(file: Path) -> Key:
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    assert isinstance(key, Key)
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pair(first: Path, second: Path) -> bool:
    """Whether both are there; InputError if only one is."""
    if first.exists() != second.exists():
        there, missing = (first, second) if first.exists() else (second, first)
        raise InputError(str(there), "alone", f"{missing.name} beside it, or neither")
    return first.exists()


def _write(file: Path, data: bytes, mode: int, replace: bool = False) -> None:
    """Make a file whole, with its mode from the first moment on; one that is there is kept, or replaced."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and not replace:
        return
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with atomic_file(file) as draft, os.fdopen(os.open(draft, new, mode), "wb") as out:
        os.fchmod(out.fileno(), mode)  # whatever the umask
        out.write(data)


_README = """\
Who gets what of this folder. Files of mode 0600 and 0400 are secrets: hand them over on a safe way, and
delete them here afterwards.

authority/   no party. It signs the server's certificate; a holder of ca.key can impersonate the server.
server/      the server's operator: ca.crt, server.crt and server.key for TLS; nodes/ has the public keys of
             the nodes that it lets in; superexec.secret is for its own processes. With a shuffler:
             envelopes.key opens what silos seal to the server, and the roster has envelopes.pub.
NAME/        silo NAME: ca.crt to know the server by, node.key to be known by, node.pub its public half.
             `fedsim kit NAME` takes node.key from here into the kit.

A silo may make node.key itself (ssh-keygen -t ecdsa -b 384) and send node.pub only: it goes to server/nodes.
Renew the server's certificate: run `fedsim certs` again, with --renew.
"""
