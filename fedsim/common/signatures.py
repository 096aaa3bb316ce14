"""Ed25519 signatures as they are checked: public keys are 64 hexadecimal digits.

What is signed is the SHA-256 of a body: Ed25519 alone goes over a body twice, which takes ten times longer.
"""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedsim.common.errors import InputError


def public_key(text: str, field: str = "identity") -> Ed25519PublicKey:
    """The key that a line of hexadecimal digits stands for.

    Raises:
        InputError: it is none; names `field`.
    """
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text.strip()))
    except ValueError:
        raise InputError(field, text, "an Ed25519 public key as 64 hexadecimal digits") from None


def signed_part(body: bytes) -> bytes:
    """What is signed for a body, 32 bytes."""
    return hashlib.sha256(body).digest()


def is_signed(key: Ed25519PublicKey, body: bytes, signature: bytes) -> bool:
    """Whether the holder of `key` signed exactly `body`; signatures have 64 bytes."""
    try:
        key.verify(signature, signed_part(body))
    except InvalidSignature:
        return False
    return True
