"""Public keys of nodes, in one form, so that they can be compared."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedsim.common.errors import InputError


def node_key(file: Path) -> bytes:
    """A node's public key from its file (a line of OpenSSH's format), as PEM.

    Raises:
        InputError: it is not there, or holds no such key.
    """
    try:
        key = load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        what = f"a node's public key, as `fedsim certs` makes it ({type(error).__name__})"
        raise InputError("node", str(file), what) from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise InputError("node", str(file), "a key on a NIST curve")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def normal(pem: bytes) -> bytes:
    """A public key as `node_key` has it; what is none stays as it is, and equals none."""
    try:
        return load_pem_public_key(pem).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return pem
