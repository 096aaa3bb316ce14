"""The public keys of silos' nodes, by which a SuperLink lets them in; no Flower is needed to read one."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from fedsim.common.errors import InputError
from fedsim.deployment.federation_file import Federation

_PEM = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo


def node_key(file: Path) -> bytes:
    """A node's public key, PEM, from its file, a line of OpenSSH's; InputError if it is absent or wrong."""
    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        what = f"a node's public key, as `fedsim certs` makes it ({type(error).__name__})"
        raise InputError("node", str(file), what) from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise InputError("node", str(file), "a key on a NIST curve")
    return key.public_bytes(*_PEM)


def normal(pem: bytes) -> bytes:
    """A public key as `node_key` has it; what is none stays as it is, and equals none."""
    try:
        return serialization.load_pem_public_key(pem).public_bytes(*_PEM)
    except (ValueError, UnsupportedAlgorithm):
        return pem


def node_keys(federation: Federation) -> dict[str, bytes]:
    """Every silo's node's public key, PEM, by the silo's name. InputError if a silo has none, its file is
    wrong, or two silos have the same.
    """
    keys: dict[str, bytes] = {}
    for name, silo in federation.silos.items():
        field = f"federation.silos.{name}.node"
        if silo.node is None:
            raise InputError(field, None, "file of the public key of its Flower node")
        key = node_key(silo.node)
        if key in keys.values():
            raise InputError(field, str(silo.node), "is another silo's node too")
        keys[name] = key
    return keys
